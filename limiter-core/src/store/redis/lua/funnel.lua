-- The funnel, a leaky bucket used as a meter. The twin of algorithm/funnel.rs.
--
-- Parameters: capacity in thousandths; rate as thousandths per microseconds (a reduced fraction).
-- Stored: as a token bucket, with the level (what has not drained yet) in place of the tokens.
-- TTL: until keep_until, from when on the state equals absence (an empty funnel).

local FUNNEL = 2

local funnel = {}

function funnel.view(limit)
  local stored, failure = read_level(limit.key, FUNNEL)
  if failure then
    return failure
  end
  local now = limit.now
  limit.level, limit.remainder, limit.keep_until = 0, 0, now
  limit.stored, limit.ahead = false, false
  if stored and now < stored[5] then
    local at = stored[4]
    local remainder = convert(stored[2], stored[3], limit.per)
    local drained
    drained, remainder = accrue(limit.rate, limit.per, max(0, now - at), remainder)
    limit.level = max(0, stored[1] - drained)
    limit.remainder = limit.level == 0 and 0 or remainder
    limit.keep_until = stored[5] - max(0, at - now)
    limit.ahead = now < at
  end
  limit.stored = stored ~= nil
end

function funnel.wait(limit)
  local over = limit.level + limit.cost - limit.capacity
  if over <= 0 then
    return 0
  end
  return time_for(limit.rate, limit.per, over, limit.remainder)
end

function funnel.settle(limit, charge, keep, ttl)
  if charge then
    limit.level = limit.level + limit.cost
  end
  local reset = time_for(limit.rate, limit.per, limit.level, limit.remainder)
  local keep_until = max(limit.keep_until, limit.now + reset)
  if charge or (keep and limit.stored and (limit.ahead or keep_until > limit.keep_until)) then
    limit.keep_until = keep_until
    write_level(limit.key, FUNNEL, limit, limit.level, ttl)
  end
  return max(0, limit.capacity - limit.level), reset, limit.keep_until - limit.now
end
