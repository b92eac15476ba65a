-- Gives back what was used, and lends of buckets and funnels: each limit by itself.
--
-- KEYS: the key of each limit, in order.
-- ARGV[1], binary, little-endian:
--   now (8: microseconds, 0 for the server's time), least TTL in milliseconds (4), number of limits (1); then for each limit:
--   operation (1: 0 refund, 1 lend), algorithm (1), cost (8: what is given back, or what is charged beside the loan), three
--   numbers (8 each: capacity, thousandths and microseconds of the rate, or limit, window and 0); then, of no account to a
--   refund: what is to be lent at most (8), how long an epoch lasts (8), what was spent (8) and what comes back (8) of what
--   was lent in an epoch, and its number (4).
-- Reply, integers: the moment in microseconds; then for each limit: outcome, remaining, retry, reset, expiry as in
--   driver.lua, what was lent, its epoch, and the time after which it counts as spent.

local LEND = 1

local plan = ARGV[1]
local now, least_ttl, count, position = unpack('<I8I4B', plan)
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function ttl(span)
  return max(least_ttl, floor((span + 999) / 1000) + 1)
end

local function refund_level(meter, amount)
  local account = meter.account
  local given = min(amount, room(meter, account))
  recover(meter, account, given, account.remainder)
  return given > 0
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
  account.amount = account.amount + (meter.funnel and spent or returned)
  recover(meter, account, 0, account.remainder)
  return returned + spent > 0
end

-- Lends whole permits, at most half of what is left: some is for those who ask for themselves, and for other holders.
local function lend(meter, want, epoch)
  local account = meter.account
  local amount = floor(min(want, left(meter, account) / 2) / 1000) * 1000
  if amount == 0 then
    return 0, 0, 0
  end
  if lent_total(account) == 0 then
    account.current, account.previous = 0, 0
    account.since, account.epoch, account.number = account.at, epoch, account.at % 4294967296
  end
  if not meter.funnel then
    account.amount = account.amount - amount
  end
  account.current = account.current + amount
  return amount, account.number, account.since + 2 * account.epoch - account.at
end

-- The oldest permits of a window get the moment of the one before them, which has left it.
local function refund_window(limit, amount)
  local failure = sliding_window.view(limit)
  if failure or not limit.stored then
    return failure
  end
  local live = later_than(limit, max(0, limit.ring_now - limit.window))
  local given = min(amount, live)
  if given == 0 then
    return
  end
  local before = live < limit.count and moment(limit, live + 1) or 0
  local first = limit.head - live
  if first < 0 then
    first = first + limit.count
  end
  local newest = given == live and before or limit.newest
  limit.keep_until = limit.keep_until - (limit.newest - newest)
  limit.newest = newest
  if limit.keep_until <= limit.ring_now then
    call('DEL', limit.key)
  else
    local stamps = repeated(pack('<I8', before), given)
    local straight = min(given, limit.count - first)
    call('SETRANGE', limit.key, HEADER_BYTES + 8 * first, string.sub(stamps, 1, 8 * straight))
    if straight < given then
      call('SETRANGE', limit.key, HEADER_BYTES, string.sub(stamps, 8 * straight + 1))
    end
    call('SETRANGE', limit.key, 0, header(limit))
    call('PEXPIRE', limit.key, ttl(limit.keep_until - limit.ring_now))
  end
  return sliding_window.view(limit)
end

local reply = { now }

for i = 1, count do
  local operation, kind, cost, first, second, third, want, epoch, spent, returned, number
  operation, kind, cost, first, second, third, want, epoch, spent, returned, number, position =
    unpack('<BBI8I8I8I8I8I8I8I8I4', plan, position)
  local limit = { key = KEYS[i], now = now, kind = kind, funnel = kind == FUNNEL, cost = 0 }
  limit.capacity, limit.rate, limit.per, limit.limit, limit.window = first, second, third, first, second
  local outcome, remaining, wait, reset, expiry = FITS, 0, 0, 0, 0
  local lent, lent_in, life = 0, 0, 0
  if kind == SLIDING_WINDOW then
    outcome = refund_window(limit, cost) or FITS
    if outcome == FITS then
      remaining, reset, expiry = sliding_window.settle(limit, false, false, ttl)
    end
  else
    local value, failure = read('GET', limit.key)
    outcome = failure or view_account(limit, value, now) or FITS
    if outcome == FITS then
      local changed, taken
      if operation == LEND then
        changed = heed(limit, spent, returned, number)
        if cost > 0 and missing(limit, limit.account, cost) > 0 then
          outcome, wait, taken = DENIES, time_until(limit, limit.account, cost), 0
        else
          charge_account(limit, cost)
          lent, lent_in, life = lend(limit, want, epoch)
          taken = cost + lent
        end
        changed = changed or taken > 0
      else
        taken, changed = 0, refund_level(limit, cost)
      end
      remaining, reset, expiry = settle_account(limit, taken, changed, operation == LEND, ttl)
    end
  end
  for _, number_of_reply in ipairs({ outcome, remaining, wait, reset, expiry, lent, lent_in, life }) do
    reply[#reply + 1] = number_of_reply
  end
end

return reply
