-- A level, some of which is lent. The twin of algorithm/lent.rs.
--
-- Stored, 74 bytes: a level of 42 (see level.lua), then what is lent in the current epoch and in the one before (8 each,
--   thousandths), when the current epoch began (8) and how long it lasts (4, microseconds), its number (4).
-- TTL: until the end of the second of keep_until, as for every level.
--
-- A `meter` is a limit with its key, algorithm, capacity, rate and per; an `account` has what is stored, as numbers.

local LENT, LENT_BYTES = '<BBI8i8I8I8I8I8I8I8I4I4', 74
-- A level whose amount may be below zero. To whoever reads it unsigned it is then beyond MAX.
local SIGNED_LEVEL = '<BBI8i8I8I8I8'

-- Only a bucket can be in debt: a funnel then holds more than its capacity.
local function is_amount(algorithm, amount)
  return amount <= MAX and amount >= (algorithm == TOKEN_BUCKET and -MAX or 0)
end

local function lent_total(account)
  return account.current + account.previous
end

-- What can come back before the epoch ends.
local function room(meter, account)
  if meter.algorithm ~= TOKEN_BUCKET then
    return account.amount
  end
  return max(0, meter.capacity - lent_total(account)) - account.amount
end

-- What has to come back before `cost` fits.
local function missing(meter, account, cost)
  if meter.algorithm ~= TOKEN_BUCKET then
    return max(0, account.amount + cost - max(0, meter.capacity - lent_total(account)))
  end
  return max(0, cost - account.amount)
end

local function left(meter, account)
  if meter.algorithm ~= TOKEN_BUCKET then
    return max(0, meter.capacity - lent_total(account) - account.amount)
  end
  return max(0, account.amount)
end

-- Gives back so much of what is used and not lent, as time does.
local function recover(meter, account, by, remainder)
  local idle
  if meter.algorithm ~= TOKEN_BUCKET then
    idle = 0
    account.amount = max(0, account.amount - by)
  else
    idle = max(0, meter.capacity - lent_total(account))
    account.amount = min(idle, account.amount + by)
  end
  account.remainder = account.amount == idle and 0 or remainder
end

-- Brings an account forward to a moment within the current epoch.
local function forward(meter, account, to)
  local by, remainder = accrue(meter.rate, meter.per, to - account.at, account.remainder)
  recover(meter, account, by, remainder)
  account.at = to
end

-- Ends the current epoch: what was lent in the one before is spent.
local function turn(meter, account)
  if meter.algorithm ~= TOKEN_BUCKET then
    account.amount = account.amount + account.previous
  end
  account.current, account.previous = 0, account.current
  account.since = account.since + account.epoch
  account.number = (account.number + 1) % 4294967296
end

-- Time until `cost` fits, or, without one, until nothing is used and nothing lent.
local function time_until(meter, account, cost)
  local copy = {}
  for name, number in pairs(account) do
    copy[name] = number
  end
  while true do
    local need = cost and missing(meter, copy, cost) or room(meter, copy) + lent_total(copy)
    if lent_total(copy) == 0 or need <= room(meter, copy) then
      return min(MAX, copy.at - account.at + time_for(meter.rate, meter.per, need, copy.remainder))
    end
    forward(meter, copy, copy.since + copy.epoch)
    turn(meter, copy)
  end
end

-- Reads a value, which may be none, as the account that it is now. Returns how it was found.
local function view_account(meter, value)
  local account = {
    amount = meter.algorithm == TOKEN_BUCKET and meter.capacity or 0, remainder = 0, at = now, keep_until = now,
    current = 0, previous = 0, since = 0, epoch = 0, number = 0,
  }
  meter.account, meter.stored, meter.ahead, meter.others = account, false, false, false
  if not value then
    return READABLE
  end
  local layout, algorithm, amount, remainder, parts, at, keep_until
  local current, previous, since, epoch, number = 0, 0, 0, 0, 0
  if #value == LEVEL_BYTES then
    layout, algorithm, parts, amount, remainder, at, keep_until = unpack(SIGNED_LEVEL, value)
  elseif #value == LENT_BYTES then
    layout, algorithm, parts, amount, remainder, at, keep_until, current, previous, since, epoch, number =
      unpack(LENT, value)
    if since > at or since + epoch < at or epoch == 0 or current > MAX or previous > MAX then
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
  -- Time that ran back moves the whole state back.
  local back = max(0, at - now)
  account.amount, account.remainder, account.at = amount, convert(remainder, parts, meter.per), at - back
  account.keep_until, account.since = keep_until - back, max(0, since - back)
  account.current, account.previous, account.epoch, account.number = current, previous, epoch, number
  meter.stored, meter.ahead = true, back > 0
  while lent_total(account) > 0 and account.since + account.epoch <= now do
    forward(meter, account, account.since + account.epoch)
    turn(meter, account)
  end
  forward(meter, account, now)
  meter.others = account.keep_until > now + time_until(meter, account)
  return READABLE
end

-- To be called after what was done to an account, of which `taken` was taken so many times. It is stored if that `changed`
-- it, or if it has to be mended. Returns the time until nothing is used, and its life.
local function settle_account(meter, taken, times, changed, may_mend)
  local account = meter.account
  local kept = account.keep_until
  local reset = time_until(meter, account)
  local keep_until = kept
  if taken * times > 0 and meter.others then
    -- It is missing from the other policy too, and begins to come back when the last loan ends.
    local from = lent_total(account) > 0 and max(kept, account.since + 2 * account.epoch) or kept
    keep_until = min(from + times * time_for(meter.rate, meter.per, taken, 0), now + MAX)
  end
  keep_until = max(keep_until, now + reset)
  if changed or (may_mend and meter.stored and (meter.ahead or keep_until > kept)) then
    account.keep_until = keep_until
    if keep_until <= now then
      call('DEL', meter.key)
    else
      local value = pack(LEVEL, LAYOUT, meter.algorithm, meter.per, account.amount, account.remainder, now, keep_until)
      if lent_total(account) > 0 then
        value = pack(LENT, LAYOUT, meter.algorithm, meter.per, account.amount, account.remainder, now, keep_until,
          account.current, account.previous, account.since, account.epoch, account.number)
      end
      call('SET', meter.key, value, 'PX', ttl(keep_until))
    end
  end
  return reset, max(0, account.keep_until - now)
end

local function charge_account(meter, cost)
  local account = meter.account
  account.amount = account.amount + (meter.algorithm == TOKEN_BUCKET and -cost or cost)
end

-- What a decision does in place of `view_level` where something is lent.
local function view_lent(limit)
  local found = view_account(limit, limit.value)
  limit.used = limit.capacity - left(limit, limit.account)
  return found
end

-- And in place of `settle_level`.
local function settle_lent(limit, granted)
  charge_account(limit, granted * limit.cost)
  settle_account(limit, limit.cost, granted, granted > 0, true)
end
