-- The token bucket. The twin of algorithm/token_bucket.rs.
--
-- Parameters: capacity in thousandths; rate as thousandths per microseconds (a reduced fraction).
-- Stored: a level (see level.lua), the amount being the tokens that are left.
-- TTL: until the bucket is full, which equals absence.

local TOKEN_BUCKET = 1

local token_bucket = {}

function token_bucket.view(limit)
  local failure = view_level(limit, TOKEN_BUCKET)
  if limit.stored then
    limit.amount = min(limit.capacity, limit.amount + limit.recovered)
  else
    limit.amount = limit.capacity
  end
  if limit.amount == limit.capacity then
    limit.remainder = 0
  end
  return failure
end

function token_bucket.wait(limit)
  return time_for(limit.rate, limit.per, max(0, limit.cost - limit.amount), limit.remainder)
end

function token_bucket.settle(limit, charge, keep, ttl)
  if charge then
    keep_for_others(limit, limit.capacity - limit.amount)
    limit.amount = limit.amount - limit.cost
  end
  return limit.amount, settle_level(limit, TOKEN_BUCKET, limit.capacity - limit.amount, charge, keep, ttl)
end
