-- Refunds, leases, unconditional charges and compare-and-set of one limit. A script of its own.
--
-- These operations are rarer than decisions and are not part of their script. Each one loads the
-- state as a decision does, changes it, and returns the data from which the client computes the
-- numbers of its answer.
--
-- - KEYS[1]: the limit's key. Without a key, the script does nothing and returns an empty string.
-- - ARGV[1] continues with: operation (1: 0 refund, 1 lease, 2 unconditional charge, 3 replace, 4
--   charge with dates), algorithm (1), cost (8: amount of the refund or the charge, or the charge
--   beside the lease), three numbers (8 each: parameters of the limit as in wire.lua); then, for a
--   refund, the moment at which the whole refunded usage would have expired by itself (8:
--   microseconds, 0 if unknown), for a lease the maximum of the grant (8); then, used by leases
--   only: duration of an epoch (8), used (8) and returned (8) amounts of an earlier grant, and the
--   number of its epoch (4).
-- - To replace a value, the cost is keep_until of the new value (8: microseconds), the maximum of
--   the grant is the length of the expected value (8), the used amount is the length of the new
--   value (8), the returned amount is 1, or 0 to read only (8); both values follow, empty if
--   absent.
-- - To charge a window with dated permits, the maximum of the grant is the number of groups (8),
--   which follow, oldest first: age (8: microseconds) and number of permits (4).
-- - Reply, a string in binary, little-endian: the moment (8: microseconds); state of the key (1,
--   see wire.lua); then, if it is readable, the granted lease, or 1 if a value was replaced or
--   dated permits filled a window (8), and the data for the outcome, preceded by its length (1):
--   for a level, a counter window and a fixed window the previous stored value; for a sliding
--   window the permits in it afterwards, 0, and microseconds until the usage is zero, until the
--   state equals absence, and until one more permit fits (8 each).
--
-- Invariants: a refund returns only usage that has not expired by itself, and a report changes
-- nothing if its epoch already counts as used. Tests: tests/differential.rs, tests/leases.rs.

local REFUND, LEND, REPLACE, CHARGE_DATED = 0, 1, 3, 4
-- Dated permits are reported at most this late (microseconds). A window is kept for longer by this
-- duration, so that a late report finds the permits that lie within one window of its own.
local LATEST_REPORT = 10000000
-- Upper bound of a stored value, which has to fit into a part of a reply.
local LONGEST = 255

local function refund_level(meter, amount, whole_at)
  local account = meter.account
  local given = min(amount, refillable(meter, account))
  if whole_at > 0 and time_until(meter, account) > max(0, whole_at - now) then
    -- Usage that expired by itself in the meantime is not refunded again. (If the usage is refilled
    -- by whole_at, no later call used permits, and no rounding is needed.)
    given = min(given, (accrue(meter.rate, meter.per, max(0, whole_at - now), 0)))
  end
  if given > 0 then
    refill(meter, account, given, account.remainder)
    if not meter.others then
      account.keep_until = now
    end
  end
  return given > 0
end

-- Charges an amount unconditionally, bounded by the range of exact numbers. Returns the charged
-- amount.
local function force_charge_level(meter, amount)
  -- Leased permits may still be used.
  local used = refillable(meter, meter.account) + leased_total(meter.account)
  local charged = max(0, min(amount, MAX - used))
  charge_account(meter, charged)
  return charged
end

-- Leases whole permits, at most half of the remaining ones: the rest is for direct calls and other
-- holders.
local function lend(meter, want, epoch)
  local account = meter.account
  local amount = floor(min(want, remaining(meter, account) / 2) / 1000) * 1000
  if amount == 0 then
    return 0
  end
  if leased_total(account) == 0 then
    account.current, account.previous, account.steady, account.steady_before, account.fraction = 0, 0, 0, 0, 0
    account.since, account.epoch, account.number = account.at, epoch, account.at % 4294967296
  elseif account.current == 0 then
    account.epoch = max(account.epoch, epoch)
  end
  if meter.algorithm == TOKEN_BUCKET then
    account.amount = account.amount - amount
  end
  account.current = account.current + amount
  return amount
end

-- Replaces a value if it equals the expected one. Returns the state of the key, the previous value
-- and whether it was replaced.
local function replace(key, read, new, keep_until, is_write)
  local value = try('GET', key)
  if type(value) == 'table' or value and #value > LONGEST then
    return failure_of(value, 'GET', key)
  end
  value = value or ''
  if not is_write or value ~= read then
    return READABLE, value, 0
  end
  if new == '' or keep_until <= now then
    call('DEL', key)
  else
    -- A counter window has the length of a level.
    local grain = SECOND
    if #new == LEVEL_BYTES then
      local _, algorithm, _, _, _, at = unpack(LEVEL, new)
      if algorithm < SLIDING_WINDOW then
        grain = expiry_grain(keep_until - at)
      end
    end
    call('SET', key, new, 'PX', ttl(keep_until, grain))
  end
  return READABLE, value, 1
end

-- Refunds the oldest permits of a window: they get the moment of the permit before them, which has
-- left the window. Returns the state of the key.
local function refund_window(limit, amount, whole_at)
  local found = load_ring(limit)
  local ring, live = limit.ring, limit.used
  local given = (whole_at == 0 or now < whole_at) and min(amount, live) or 0
  if found ~= READABLE or given == 0 then
    return found
  end
  local before = live < ring.count and moment(ring, live + 1) or 0
  local first = ring.head - live
  if first < 0 then
    first = first + ring.count
  end
  ring.live, ring.oldest = live - given, given < live and moment(ring, live - given) or 0
  if given == live then
    ring.keep_until, ring.newest = ring.keep_until - (ring.newest - before), before
  end
  limit.used = live - given
  if ring.keep_until <= ring.now then
    call('DEL', limit.key)
    ring.newest = 0
    return READABLE
  end
  fill(ring, first, given, before)
  write_header(ring)
  return READABLE
end

-- Charges permits unconditionally; the ring keeps the newest. Returns the state of the key.
local function force_charge_window(limit, amount)
  local found = load_ring(limit)
  local ring, permits = limit.ring, min(amount, limit.limit)
  if found ~= READABLE or permits == 0 then
    return found
  end
  local excess = ring.live + permits - max(ring.size, limit.limit)
  if excess > 0 then
    -- The oldest permits are dropped.
    ring.live = ring.live - excess
    ring.oldest = ring.live > 0 and moment(ring, ring.live) or 0
  end
  charge_ring(limit, ring, permits)
  limit.used = ring.live
  return READABLE
end

-- Returns the moments of a report, oldest first, in the ring's time.
local function dated_moments(ring, groups, place)
  local moments, last = {}, 1
  for _ = 1, groups do
    local age, number
    age, number, place = unpack('<I8I4', plan, place)
    last = max(last, ring.now - age)
    for _ = 1, number do
      moments[#moments + 1] = last
    end
  end
  return moments
end

-- Merges the newest `newer` moments of a ring with other moments, in order.
local function merged_moments(ring, newer, moments)
  local merged, next_moment = {}, 1
  while newer > 0 or next_moment <= #moments do
    local stored = newer > 0 and moment(ring, newer)
    if stored and (next_moment > #moments or stored <= moments[next_moment]) then
      merged[#merged + 1], newer = stored, newer - 1
    else
      merged[#merged + 1], next_moment = moments[next_moment], next_moment + 1
    end
  end
  return merged
end

-- Returns whether a full limit of permits lies within one window that ends at a moment of `merged`,
-- which replaces the newest `newer` moments.
local function fills_window(limit, newer, merged)
  local ring = limit.ring
  for last = 1, #merged do
    local first = last - limit.limit + 1
    local nth = newer + 1 - first
    local at = first > 0 and merged[first] or nth <= ring.count and moment(ring, nth) or 0
    if at > 0 and merged[last] - at < limit.window then
      return true
    end
  end
  return false
end

-- Charges dated permits unconditionally. Other replicas may have reported later ones, which are
-- written again after them. Returns the state of the key, and whether the permits filled a window.
local function charge_dated(limit, groups, place)
  local found = load_ring(limit)
  local ring = limit.ring
  if found ~= READABLE or groups == 0 then
    return found, false
  end
  if ring.pages and limit.limit > ring.size then
    grow(ring, limit.limit)
  end
  ring.lasts, ring.pages = ring.pages and ring.lasts or 0, ring.pages or {}
  local moments, newer = dated_moments(ring, groups, place), 0
  while newer < ring.count and moment(ring, newer + 1) > moments[1] do
    newer = newer + 1
  end
  local merged = merged_moments(ring, newer, moments)
  local fills = fills_window(limit, newer, merged)

  local last = merged[#merged]
  local since = ring.count > 0 and max(0, last - ring.newest) or 0
  ring.keep_until = max(ring.keep_until + since, last + limit.window + LATEST_REPORT, ring.now + 1)
  ring.newest = max(ring.newest, last)
  local skipped = max(0, #merged - ring.size)
  local stamps = {}
  for number = skipped + 1, #merged do
    stamps[#stamps + 1] = pack('<I8', merged[number])
  end
  local head = (ring.head - newer + ring.size) % ring.size
  local straight = min(#stamps, ring.size - head)
  call('SETRANGE', limit.key, format('%d', HEADER_BYTES + 8 * head), table.concat(stamps, '', 1, straight))
  if straight < #stamps then
    call('SETRANGE', limit.key, format('%d', HEADER_BYTES), table.concat(stamps, '', straight + 1))
  end
  ring.head = (head + #stamps) % ring.size
  ring.count = min(ring.size, ring.count - newer + #stamps)
  ring.pages, ring.live = {}, 0
  ring.live, ring.oldest = later_than(ring, ring.edge)
  limit.used = ring.live
  write_header(ring)
  return READABLE, fills
end

if not KEYS[1] then
  return ''
end
local operation, algorithm, cost, first, second, third, want, epoch, spent, returned, number, values =
  unpack('<BBI8I8I8I8I8I8I8I8I4', plan, position)
local limit = { key = KEYS[1], algorithm = algorithm, cost = 0, used = 0 }
local found, granted, data

if operation == REPLACE then
  local read, new = string.sub(plan, values, values + want - 1), string.sub(plan, values + want, values + want + spent - 1)
  found, data, granted = replace(limit.key, read, new, cost, returned == 1)
elseif algorithm == SLIDING_WINDOW then
  limit.limit, limit.window = first, second
  if operation == REFUND then
    found = refund_window(limit, cost, want)
  elseif operation == CHARGE_DATED then
    local fills
    found, fills = charge_dated(limit, want, values)
    granted = fills and 1 or 0
  else
    found = force_charge_window(limit, cost)
  end
  if found == READABLE then
    local ring = limit.ring
    local rest = max(0, ring.keep_until - ring.now)
    data = pack('<I8I8I8I8I8', limit.used, 0, window_left(ring, second), rest, next_left(limit, ring))
  end
elseif algorithm > SLIDING_WINDOW then
  local is_fixed = algorithm == FIXED_WINDOW
  -- A refund shortens no period: a later policy may have started it.
  limit.limit, limit.window, limit.periods = first, operation == REFUND and MAX or second, third
  found = (is_fixed and load_fixed or load_counters)(limit)
  if found == READABLE then
    if operation ~= REFUND then
      (is_fixed and charge_fixed or charge_counters)(limit, cost)
    elseif is_fixed then
      refund_fixed(limit, (want == 0 or now < want) and cost or 0)
    else
      refund_counters(limit, want == 0 and cost or weighted(cost, max(0, want - now), second))
    end
    data = limit.value or ''
  end
else
  limit.capacity, limit.rate, limit.per = first, second, third
  local value = try('GET', limit.key)
  found = load_account(limit, value)
  if found == READABLE then
    local changed, taken = false, 0
    if operation == REFUND then
      changed = refund_level(limit, cost, want)
    elseif operation ~= LEND then
      taken = force_charge_level(limit, cost)
    else
      changed = apply_report(limit, spent, returned, number, 0)
      if shortfall(limit, limit.account, cost) == 0 or cost == 0 then
        charge_account(limit, cost)
        granted = lend(limit, want, epoch)
        taken = cost + granted
      end
    end
    settle_account(limit, taken, 1, changed or taken > 0, operation == LEND)
    data = value or ''
  end
end

if found ~= READABLE then
  return pack('<I8B', now, found)
end
return pack('<I8BI8B', now, found, granted or 0, #data) .. data
