-- A quantity that moves at a rate: the tokens of a bucket, the level of a funnel. The twin of algorithm/level.rs.
--
-- Stored, 42 bytes: layout (1), algorithm (1), then as 8-byte integers: amount in thousandths, remainder and the parts it
--   is counted in, moment in microseconds, keep_until in microseconds.
-- TTL: until keep_until, from when on the state equals absence.

local LEVEL = '<BBI8I8I8I8I8'
local LEVEL_BYTES = 42
-- With what is lent of it (see lent.lua).
local LENT_BYTES = 74
local view_lent

-- Reads a level as of now: the amount as it was stored, what has come back since, the remainder. Returns the outcome that
-- says why it cannot be read.
local function view_level(limit, algorithm)
  local now = limit.now
  limit.stored, limit.ahead, limit.remainder, limit.keep_until = false, false, 0, now
  local value, failure = read('GET', limit.key)
  if not value then
    return failure
  end
  if #value ~= LEVEL_BYTES then
    if #value == LENT_BYTES then
      return view_lent(limit, algorithm, value)
    end
    return UNKNOWN_LAYOUT
  end
  local layout, stored, amount, remainder, parts, at, keep_until = unpack(LEVEL, value)
  if layout ~= LAYOUT or stored ~= algorithm or remainder >= parts or at > keep_until or keep_until > EXACT then
    return UNKNOWN_LAYOUT
  end
  if now >= keep_until then
    return
  end
  limit.stored, limit.amount = true, amount
  remainder = convert(remainder, parts, limit.per)
  limit.recovered, limit.remainder = accrue(limit.rate, limit.per, max(0, now - at), remainder)
  -- Time that ran back moves the whole state back.
  limit.ahead = now < at
  limit.keep_until = keep_until - max(0, at - now)
end

-- To be called before a charge; `used` is what has to come back until nothing is used. Where the level is kept for a larger
-- or slower policy, the charge is missing from that too.
local function keep_for_others(limit, used)
  if limit.keep_until > limit.now + time_for(limit.rate, limit.per, used, limit.remainder) then
    local longer = limit.keep_until + time_for(limit.rate, limit.per, limit.cost, 0)
    limit.keep_until = min(longer, limit.now + MAX)
  end
end

-- Stores the level where it is to be stored; returns the time until nothing of it is used, and its life.
local function settle_level(limit, algorithm, used, charge, keep, ttl)
  local now = limit.now
  local reset = time_for(limit.rate, limit.per, used, limit.remainder)
  local keep_until = max(limit.keep_until, now + reset)
  if charge or (keep and limit.stored and (limit.ahead or keep_until > limit.keep_until)) then
    limit.keep_until = keep_until
    local value = pack(LEVEL, LAYOUT, algorithm, limit.amount, limit.remainder, limit.per, now, keep_until)
    call('SET', limit.key, value, 'PX', ttl(keep_until - now))
  end
  return reset, limit.keep_until - now
end
