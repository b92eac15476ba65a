-- Gives back what was used, charges whatever is left, lends of a bucket or a funnel, or puts one value in place of another.
--
-- KEYS[1]: the limit's key. Without one nothing is asked, and nothing answered.
-- ARGV[1] goes on with: operation (1: 0 refund, 1 lend, 2 owe, 3 replace, 4 charge dated), algorithm (1), cost (8: what is given back or owed, or what is
--   charged beside the loan), three numbers (8 each: as wire.lua tells of a limit); then, for a refund, when all would have come
--   back by itself that was used as it was taken (8: microseconds, 0 if that is not known), for a loan what is to be lent at
--   most (8); then, of no account to others than a loan: how long an epoch lasts (8), what was spent (8) and what comes back
--   (8) of what was lent in an epoch, and its number (4). To replace a value, of which nothing is known but what the caller read: the
--   cost is until when the new one is kept (8: microseconds), what is to be lent is the length of the value that was read (8), what was
--   spent that of the new one (8), what comes back 1, or 0 to look at the value only (8); both values follow. None is no bytes.
--   To charge a window with permits of earlier moments, what is to be lent is the number of groups (8), which follow, oldest
--   first: their age (8: microseconds) and the number of permits (4).
-- Reply, a string in binary, little-endian: the moment (8: microseconds); how the limit was found (1, see wire.lua); then, if
--   it is readable, what was lent, or 1 if a value was replaced, or if dated permits filled a window (8), and what the outcome follows from, the length first (1): of a level, a counter window and
--   a fixed window the value as it was stored; of a sliding window the permits in it afterwards, 0, and microseconds until nothing is used any more, and until the state
--   equals absence (8 each).

local REFUND, LEND, REPLACE, CHARGE_DATED = 0, 1, 3, 4
-- No value of ours is longer than a reply's piece.
local LONGEST = 255

local function refund_level(meter, amount, whole_at)
  local account = meter.account
  local given = min(amount, room(meter, account))
  if whole_at > 0 then
    -- What has come back by itself since is not given back once more.
    given = min(given, (accrue(meter.rate, meter.per, max(0, whole_at - now), 0)))
  end
  if given > 0 then
    recover(meter, account, given, account.remainder)
    if not meter.others then
      account.keep_until = now
    end
  end
  return given > 0
end

-- Charges an amount whatever is left, so that no more is used than is exact. Returns how much.
local function owe_level(meter, amount)
  -- What is lent may be spent yet.
  local used = room(meter, meter.account) + lent_total(meter.account)
  local owed = max(0, min(amount, MAX - used))
  charge_account(meter, owed)
  return owed
end

-- Takes a report into account: whether it said anything new.
local function heed(meter, spent, returned, number)
  local account = meter.account
  local ago = (account.number - number) % 4294967296
  local lent = ago == 0 and 'current' or ago == 1 and 'previous'
  if not lent then
    return false
  end
  returned = min(returned, account[lent])
  spent = min(spent, account[lent] - returned)
  account[lent] = account[lent] - returned - spent
  account.amount = account.amount + (meter.algorithm == TOKEN_BUCKET and returned or spent)
  recover(meter, account, 0, account.remainder)
  if returned + spent == 0 then
    return false
  end
  -- What came back is not missing from any policy any more.
  local sooner = max(0, account.keep_until - time_for(meter.rate, meter.per, returned, 0))
  local idle_at = now + time_until(meter, account)
  account.keep_until, meter.others = max(sooner, idle_at), sooner > idle_at
  return true
end

-- Lends whole permits, at most half of what is left: some is for those who ask for themselves, and for other holders.
local function lend(meter, want, epoch)
  local account = meter.account
  local amount = floor(min(want, left(meter, account) / 2) / 1000) * 1000
  if amount == 0 then
    return 0
  end
  if lent_total(account) == 0 then
    account.current, account.previous = 0, 0
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

-- Puts a value where another one was read, unless that has moved. Returns how it was found, what it was, and whether it is replaced.
local function replace(key, read, new, keep_until, wanted)
  local value = try('GET', key)
  if type(value) == 'table' or value and #value > LONGEST then
    return failure_of(value, 'GET', key)
  end
  value = value or ''
  if not wanted or value ~= read then
    return READABLE, value, 0
  end
  if new == '' or keep_until <= now then
    call('DEL', key)
  else
    call('SET', key, new, 'PX', ttl(keep_until))
  end
  return READABLE, value, 1
end

-- The oldest permits of a window get the moment of the one before them, which has left it. Returns how the ring was found.
local function refund_window(limit, amount, whole_at)
  local found = view_ring(limit)
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
  local stamps = repeated(pack('<I8', before), given)
  local straight = min(given, ring.count - first)
  call('SETRANGE', limit.key, format('%d', HEADER_BYTES + 8 * first), string.sub(stamps, 1, 8 * straight))
  if straight < given then
    call('SETRANGE', limit.key, format('%d', HEADER_BYTES), string.sub(stamps, 8 * straight + 1))
  end
  write_header(ring)
  return READABLE
end

-- Gives permits now, whatever is left: the ring remembers the newest. Returns how the ring was found.
local function owe_window(limit, amount)
  local found = view_ring(limit)
  local ring, permits = limit.ring, min(amount, limit.limit)
  if found ~= READABLE or permits == 0 then
    return found
  end
  local beyond = ring.live + permits - max(ring.size, limit.limit)
  if beyond > 0 then
    -- The oldest make room.
    ring.live = ring.live - beyond
    ring.oldest = ring.live > 0 and moment(ring, ring.live) or 0
  end
  charge_ring(limit, ring, permits)
  limit.used = ring.live
  return READABLE
end

-- The moments of a report, oldest first, in the ring's time.
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

-- The newest moments of a ring, of which there are `newer`, and other moments, in order.
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

-- Whether as many permits as the limit lie within one window that ends with one of `merged`, which replace the newest `newer`.
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

-- Charges a window with permits of earlier moments, whatever is left. Other replicas may have reported later ones, so these are
-- written again after them. Returns how the ring was found, and whether the permits filled a window.
local function charge_dated(limit, groups, place)
  local found = view_ring(limit)
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
  ring.keep_until = max(ring.keep_until + since, last + limit.window, ring.now + 1)
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
local found, lent, told

if operation == REPLACE then
  local read, new = string.sub(plan, values, values + want - 1), string.sub(plan, values + want, values + want + spent - 1)
  found, told, lent = replace(limit.key, read, new, cost, returned == 1)
elseif algorithm == SLIDING_WINDOW then
  limit.limit, limit.window = first, second
  if operation == REFUND then
    found = refund_window(limit, cost, want)
  elseif operation == CHARGE_DATED then
    local fills
    found, fills = charge_dated(limit, want, values)
    lent = fills and 1 or 0
  else
    found = owe_window(limit, cost)
  end
  if found == READABLE then
    local ring = limit.ring
    local rest = max(0, ring.keep_until - ring.now)
    told = pack('<I8I8I8I8I8', limit.used, 0, window_left(ring, second), rest, next_left(limit, ring))
  end
elseif algorithm > SLIDING_WINDOW then
  local is_fixed = algorithm == FIXED_WINDOW
  limit.limit, limit.window, limit.periods = first, second, third
  found = (is_fixed and view_fixed or view_counters)(limit)
  if found == READABLE then
    if operation ~= REFUND then
      (is_fixed and charge_fixed or charge_counters)(limit, cost)
    elseif is_fixed then
      refund_fixed(limit, (want == 0 or now < want) and cost or 0)
    else
      refund_counters(limit, want == 0 and cost or still_counts(cost, max(0, want - now), second))
    end
    told = limit.value or ''
  end
else
  limit.capacity, limit.rate, limit.per = first, second, third
  local value = try('GET', limit.key)
  found = view_account(limit, value)
  if found == READABLE then
    local changed, taken = false, 0
    if operation == REFUND then
      changed = refund_level(limit, cost, want)
    elseif operation ~= LEND then
      taken = owe_level(limit, cost)
    else
      changed = heed(limit, spent, returned, number)
      if missing(limit, limit.account, cost) == 0 or cost == 0 then
        charge_account(limit, cost)
        lent = lend(limit, want, epoch)
        taken = cost + lent
      end
    end
    settle_account(limit, taken, 1, changed or taken > 0, operation == LEND)
    told = value or ''
  end
end

if found ~= READABLE then
  return pack('<I8B', now, found)
end
return pack('<I8BI8B', now, found, lent or 0, #told) .. told
