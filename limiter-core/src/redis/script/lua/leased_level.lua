-- A level with leased permits. The twin of algorithm/leased_level.rs.
--
-- Holders use leased permits without a call, and may end without a report. The leased amounts are
-- summed by epoch, so that the state does not depend on the number of holders; the amount of an
-- epoch counts as used when the next epoch ends.
--
-- - Stored, 74 bytes: a level of 42 (see level.lua), then the leased amounts of the current and of
--   the previous epoch (8 each, thousandths), start (8) and duration (4: microseconds) of the
--   current epoch, and its number (4). With steady rates, 86 bytes: also the steady rates of the
--   current and of the previous epoch (4 each: millionths of the rate), and the millionths of a
--   microsecond in which the level is not refilled yet (4).
-- - TTL: as for every level.
--
-- Invariant: the remaining and the leased permits never exceed the capacity. Tests:
-- tests/lease_exactness.rs, tests/differential.rs.
--
-- A `meter` is a limit with key, algorithm, capacity, rate and per; an `account` holds the stored
-- numbers.

local LEASED, LEASED_BYTES = '<BBI8i8I8I8I8I8I8I8I4I4', 74
-- With steady rates, these numbers follow.
local STEADY, STEADY_BYTES = '<I4I4I4', 86
-- The whole rate, in millionths.
local WHOLE_RATE = 1000000
-- A level with a signed amount. Read as unsigned, a negative amount exceeds MAX.
local SIGNED_LEVEL = '<BBI8i8I8I8I8'

-- Only a bucket can be in debt; a funnel then exceeds its capacity.
local function is_amount(algorithm, amount)
  return amount <= MAX and amount >= (algorithm == TOKEN_BUCKET and -MAX or 0)
end

local function leased_total(account)
  return account.current + account.previous
end

-- Returns the amount that can be refilled before the epoch ends.
local function refillable(meter, account)
  if meter.algorithm ~= TOKEN_BUCKET then
    return account.amount
  end
  return max(0, meter.capacity - leased_total(account)) - account.amount
end

-- Returns the amount that must be refilled before `cost` fits.
local function shortfall(meter, account, cost)
  if meter.algorithm ~= TOKEN_BUCKET then
    return max(0, account.amount + cost - max(0, meter.capacity - leased_total(account)))
  end
  return max(0, cost - account.amount)
end

local function remaining(meter, account)
  if meter.algorithm ~= TOKEN_BUCKET then
    return max(0, meter.capacity - leased_total(account) - account.amount)
  end
  return max(0, account.amount)
end

-- Refills `by` thousandths, as the passage of time does; leased permits are not refilled.
local function refill(meter, account, by, remainder)
  local idle
  if meter.algorithm ~= TOKEN_BUCKET then
    idle = 0
    account.amount = max(0, account.amount - by)
  else
    idle = max(0, meter.capacity - leased_total(account))
    account.amount = min(idle, account.amount + by)
  end
  account.remainder = account.amount == idle and 0 or remainder
  if account.amount == idle then
    account.fraction = 0
  end
end

-- Returns the part of the rate that refills the level, in millionths: buckets of holders are
-- refilled at the rest.
local function pace(account)
  return leased_total(account) > 0 and max(0, WHOLE_RATE - account.steady - account.steady_before) or WHOLE_RATE
end

-- Returns the time in which the whole rate would refill an account as the rest of it does in
-- `elapsed`. An epoch is shorter than 2^32, so the product is exact.
local function slowed(account, elapsed)
  local part = pace(account)
  if part == WHOLE_RATE then
    account.fraction = 0
    return elapsed
  end
  local product = elapsed * part + account.fraction
  local time = floor(product / WHOLE_RATE)
  account.fraction = product - time * WHOLE_RATE
  return time
end

-- Returns the least time in which an account is refilled as in `time` at the whole rate; nil if the
-- current epoch ends before.
local function elapsed_for(account, time)
  local part = pace(account)
  if part == WHOLE_RATE or time == 0 then
    return time
  end
  local left = account.since + account.epoch - account.at
  if part > 0 and time <= left then
    local elapsed = ceil((time * WHOLE_RATE - account.fraction) / part)
    return elapsed <= left and elapsed or nil
  end
end

-- Advances an account to a moment within the current epoch.
local function forward(meter, account, to)
  local by, remainder = accrue(meter.rate, meter.per, slowed(account, to - account.at), account.remainder)
  refill(meter, account, by, remainder)
  account.at = to
end

-- Ends the current epoch: leases of the previous epoch count as used.
local function end_epoch(meter, account)
  if meter.algorithm ~= TOKEN_BUCKET then
    account.amount = account.amount + account.previous
  end
  account.current, account.previous = 0, account.current
  account.steady, account.steady_before = 0, account.steady
  account.since = account.since + account.epoch
  account.number = (account.number + 1) % 4294967296
end

-- Returns the time until `cost` fits; without a cost, until nothing is used or leased.
local function time_until(meter, account, cost)
  local copy = {}
  for name, number in pairs(account) do
    copy[name] = number
  end
  while true do
    local need = cost and shortfall(meter, copy, cost) or refillable(meter, copy) + leased_total(copy)
    local time = time_for(meter.rate, meter.per, need, copy.remainder)
    if leased_total(copy) > 0 then
      time = need <= refillable(meter, copy) and elapsed_for(copy, time)
    end
    if time then
      return min(MAX, copy.at - account.at + time)
    end
    forward(meter, copy, copy.since + copy.epoch)
    end_epoch(meter, copy)
  end
end

-- Loads a value, possibly absent, as an account as of now. Returns the state of the key.
local function load_account(meter, value)
  local account = {
    amount = meter.algorithm == TOKEN_BUCKET and meter.capacity or 0, remainder = 0, at = now, keep_until = now,
    current = 0, previous = 0, since = 0, epoch = 0, number = 0, steady = 0, steady_before = 0, fraction = 0,
  }
  meter.account, meter.stored, meter.ahead, meter.others = account, false, false, false
  if not value then
    return READABLE
  end
  local layout, algorithm, amount, remainder, parts, at, keep_until
  local current, previous, since, epoch, number, steady, steady_before, fraction = 0, 0, 0, 0, 0, 0, 0, 0
  if #value == LEVEL_BYTES then
    layout, algorithm, parts, amount, remainder, at, keep_until = unpack(SIGNED_LEVEL, value)
  elseif #value == LEASED_BYTES or #value == STEADY_BYTES then
    layout, algorithm, parts, amount, remainder, at, keep_until, current, previous, since, epoch, number =
      unpack(LEASED, value)
    if #value == STEADY_BYTES then
      steady, steady_before, fraction = unpack(STEADY, value, LEASED_BYTES + 1)
    end
    if since > at or since + epoch < at or epoch == 0 or current > MAX or previous > MAX
      or fraction >= WHOLE_RATE then
      return UNKNOWN_LAYOUT
    end
  else
    return failure_of(value, 'GET', meter.key)
  end
  if layout ~= LAYOUT or algorithm ~= meter.algorithm or not is_amount(algorithm, amount) or remainder >= parts or parts > MAX
    or at > keep_until or keep_until >= EXACT then
    return UNKNOWN_LAYOUT
  end
  if now >= keep_until then
    return READABLE
  end
  -- After a backward step of the clock, the whole state moves back.
  local back = max(0, at - now)
  account.amount, account.remainder, account.at = amount, convert(remainder, parts, meter.per), at - back
  account.keep_until, account.since = keep_until - back, max(0, since - back)
  account.current, account.previous, account.epoch, account.number = current, previous, epoch, number
  account.steady, account.steady_before, account.fraction = steady, steady_before, fraction
  meter.stored, meter.ahead = true, back > 0
  while leased_total(account) > 0 and account.since + account.epoch <= now do
    forward(meter, account, account.since + account.epoch)
    end_epoch(meter, account)
  end
  forward(meter, account, now)
  meter.others = account.keep_until > now + time_until(meter, account)
  return READABLE
end

-- Stores an account after `times` charges of `taken` each, if `changed` or if the stored state
-- needs a correction. Returns the time until the usage is zero, and the remaining life.
local function settle_account(meter, taken, times, changed, may_repair)
  local account = meter.account
  local kept = account.keep_until
  local reset = time_until(meter, account)
  local keep_until = kept
  if taken * times > 0 and meter.others then
    -- The charge delays the refill under the other policy version too, which starts when the last
    -- lease ends.
    local from = leased_total(account) > 0 and max(kept, account.since + 2 * account.epoch) or kept
    keep_until = min(from + times * time_for(meter.rate, meter.per, taken, 0), now + MAX)
  end
  keep_until = max(keep_until, now + reset)
  if changed or (may_repair and meter.stored and (meter.ahead or keep_until > kept)) then
    account.keep_until = keep_until
    if keep_until <= now then
      call('DEL', meter.key)
    else
      local value = pack(LEVEL, LAYOUT, meter.algorithm, meter.per, account.amount, account.remainder, now, keep_until)
      if leased_total(account) > 0 then
        value = pack(LEASED, LAYOUT, meter.algorithm, meter.per, account.amount, account.remainder, now, keep_until,
          account.current, account.previous, account.since, account.epoch, account.number)
        if account.steady + account.steady_before > 0 then
          value = value .. pack(STEADY, account.steady, account.steady_before, account.fraction)
        end
      end
      call('SET', meter.key, value, 'PX', ttl(keep_until, (expiry_grain(keep_until - now))))
    end
  end
  return reset, max(0, account.keep_until - now)
end

local function charge_account(meter, cost)
  local account = meter.account
  account.amount = account.amount + (meter.algorithm == TOKEN_BUCKET and -cost or cost)
end

-- Replaces the load of `load_level` for a level with leases.
local function load_leased(limit)
  local found = load_account(limit, limit.value)
  limit.used = limit.capacity - remaining(limit, limit.account)
  return found
end

-- Replaces the store of `settle_level` for a level with leases.
local function settle_leased(limit, granted)
  charge_account(limit, granted * limit.cost)
  settle_account(limit, limit.cost, granted, granted > 0, true)
end
