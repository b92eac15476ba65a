-- The token bucket. The twin of algorithm/token_bucket.rs.
--
-- Parameters: capacity in thousandths; rate as thousandths per microseconds (a reduced fraction).
-- Stored, 42 bytes: layout (1), algorithm (1), then as 8-byte integers: tokens in thousandths, remainder and the parts it
--   is counted in, moment in microseconds, keep_until in microseconds.
-- TTL: until keep_until, from when on the state equals absence (a full bucket).

local TOKEN_BUCKET = 1
local LEVEL = '<BBI8I8I8I8I8'
local LEVEL_BYTES = 42

-- The five numbers of a stored bucket or funnel; nil where there is none or where it cannot be read.
local function read_level(key, algorithm)
  local value, failure = read('GET', key)
  if not value then
    return nil, failure
  end
  if #value ~= LEVEL_BYTES then
    return nil, UNKNOWN_LAYOUT
  end
  local layout, stored, amount, remainder, parts, at, keep_until = unpack(LEVEL, value)
  if layout ~= LAYOUT or stored ~= algorithm or parts == 0 or at > keep_until or keep_until > EXACT then
    return nil, UNKNOWN_LAYOUT
  end
  return { amount, remainder, parts, at, keep_until }
end

local function write_level(key, algorithm, limit, amount, ttl)
  local value = pack(LEVEL, LAYOUT, algorithm, amount, limit.remainder, limit.per, limit.now, limit.keep_until)
  call('SET', key, value, 'PX', ttl(limit.keep_until - limit.now))
end

local token_bucket = {}

function token_bucket.view(limit)
  local stored, failure = read_level(limit.key, TOKEN_BUCKET)
  if failure then
    return failure
  end
  local now = limit.now
  limit.tokens, limit.remainder, limit.keep_until = limit.capacity, 0, now
  limit.stored, limit.ahead = false, false
  if stored and now < stored[5] then
    local at = stored[4]
    local remainder = convert(stored[2], stored[3], limit.per)
    local gained
    gained, remainder = accrue(limit.rate, limit.per, max(0, now - at), remainder)
    limit.tokens = min(limit.capacity, stored[1] + gained)
    limit.remainder = limit.tokens == limit.capacity and 0 or remainder
    limit.keep_until = stored[5] - max(0, at - now)
    limit.ahead = now < at
  end
  limit.stored = stored ~= nil
end

function token_bucket.wait(limit)
  if limit.tokens >= limit.cost then
    return 0
  end
  return time_for(limit.rate, limit.per, limit.cost - limit.tokens, limit.remainder)
end

function token_bucket.settle(limit, charge, keep, ttl)
  if charge then
    limit.tokens = limit.tokens - limit.cost
  end
  local reset = time_for(limit.rate, limit.per, limit.capacity - limit.tokens, limit.remainder)
  local keep_until = max(limit.keep_until, limit.now + reset)
  if charge or (keep and limit.stored and (limit.ahead or keep_until > limit.keep_until)) then
    limit.keep_until = keep_until
    write_level(limit.key, TOKEN_BUCKET, limit, limit.tokens, ttl)
  end
  return limit.tokens, reset, limit.keep_until - limit.now
end
