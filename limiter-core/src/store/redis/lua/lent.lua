-- A level, some of which is lent. The twin of algorithm/lent.rs.
--
-- Stored, 74 bytes: a level of 42 (see level.lua), then what is lent in the current epoch and in the one before (8 each,
--   thousandths), when the current epoch began (8) and how long it lasts (4, microseconds), its number (4).
-- TTL: until keep_until, as for every level.
--
-- A `meter` has capacity, rate and per, and is a funnel or not; an `account` has what is stored, as numbers.

local LENT = '<BBI8I8I8I8I8I8I8I8I4I4'

local function lent_total(account)
  return account.current + account.previous
end

-- What can come back before the epoch ends.
local function room(meter, account)
  if meter.funnel then
    return account.amount
  end
  return max(0, meter.capacity - lent_total(account)) - account.amount
end

-- What has to come back before `cost` fits.
local function missing(meter, account, cost)
  if meter.funnel then
    return max(0, account.amount + cost - max(0, meter.capacity - lent_total(account)))
  end
  return max(0, cost - account.amount)
end

local function left(meter, account)
  if meter.funnel then
    return max(0, meter.capacity - lent_total(account) - account.amount)
  end
  return account.amount
end

-- Gives back so much of what is used and not lent, as time does.
local function recover(meter, account, by, remainder)
  local idle
  if meter.funnel then
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
  if meter.funnel then
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

-- The account as it stands at `now`. Returns the outcome that says why it cannot be read.
local function view_account(meter, value, now)
  local account = { amount = meter.funnel and 0 or meter.capacity, remainder = 0, at = now, keep_until = now,
    current = 0, previous = 0, since = 0, epoch = 0, number = 0 }
  meter.account, meter.stored, meter.ahead, meter.others = account, false, false, false
  if not value then
    return
  end
  local layout, kind, amount, remainder, parts, at, keep_until
  local current, previous, since, epoch, number = 0, 0, 0, 0, 0
  if #value == LEVEL_BYTES then
    layout, kind, amount, remainder, parts, at, keep_until = unpack(LEVEL, value)
  elseif #value == LENT_BYTES then
    layout, kind, amount, remainder, parts, at, keep_until, current, previous, since, epoch, number = unpack(LENT, value)
    if since > at or epoch == 0 or current + previous > MAX then
      return UNKNOWN_LAYOUT
    end
  else
    return UNKNOWN_LAYOUT
  end
  if layout ~= LAYOUT or kind ~= meter.kind or remainder >= parts or at > keep_until or keep_until > EXACT then
    return UNKNOWN_LAYOUT
  end
  if now >= keep_until then
    return
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
end

-- To be called after what was done to an account, of which `taken` was taken. It is stored if that `changed` it, or if it
-- has to be mended. Returns what is left, the time until nothing is used, and its life.
local function settle_account(meter, taken, changed, may_mend, ttl)
  local account = meter.account
  local now, kept = account.at, account.keep_until
  local reset = time_until(meter, account)
  local keep_until = now + reset
  if meter.others or not changed then
    if taken > 0 and meter.others then
      -- What is taken is missing from the other policy too, and begins to come back when the last loan ends.
      local from = kept
      if lent_total(account) > 0 then
        from = max(from, account.since + 2 * account.epoch)
      end
      kept = min(from + time_for(meter.rate, meter.per, taken, 0), now + MAX)
    end
    keep_until = max(keep_until, kept)
  end
  if changed or (may_mend and meter.stored and (meter.ahead or keep_until > account.keep_until)) then
    account.keep_until = keep_until
    local life = ttl(keep_until - now)
    if keep_until <= now then
      call('DEL', meter.key)
    elseif lent_total(account) > 0 then
      call('SET', meter.key, pack(LENT, LAYOUT, meter.kind, account.amount, account.remainder, meter.per, now, keep_until,
        account.current, account.previous, account.since, account.epoch, account.number), 'PX', life)
    else
      call('SET', meter.key, pack(LEVEL, LAYOUT, meter.kind, account.amount, account.remainder, meter.per, now,
        keep_until), 'PX', life)
    end
  end
  return left(meter, account), reset, max(0, account.keep_until - now)
end

-- Charges an account.
local function charge_account(meter, cost)
  local account = meter.account
  account.amount = meter.funnel and account.amount + cost or account.amount - cost
end

-- What a decision does with a level of which something is lent, in place of what it does with others.
local lent = {}

function view_lent(limit, algorithm, value)
  limit.kind, limit.funnel, limit.algorithm = algorithm, algorithm == 2, lent
  -- What a bucket or a funnel goes on to look at.
  limit.amount, limit.recovered = 0, 0
  return view_account(limit, value, limit.now)
end

function lent.wait(limit)
  local account = limit.account
  return missing(limit, account, limit.cost) > 0 and time_until(limit, account, limit.cost) or 0
end

function lent.settle(limit, charge, keep, ttl)
  if charge then
    charge_account(limit, limit.cost)
  end
  return settle_account(limit, charge and limit.cost or 0, charge, keep, ttl)
end
