-- The funnel, a leaky bucket used as a meter. The twin of algorithm/funnel.rs.
--
-- Parameters: capacity in thousandths; rate as thousandths per microseconds (a reduced fraction).
-- Stored: a level (see level.lua), the amount being what has not drained yet.
-- TTL: until the funnel is empty, which equals absence.

local FUNNEL = 2

local funnel = {}

function funnel.view(limit)
  local failure = view_level(limit, FUNNEL)
  if limit.stored then
    limit.amount = max(0, limit.amount - limit.recovered)
  else
    limit.amount = 0
  end
  if limit.amount == 0 then
    limit.remainder = 0
  end
  return failure
end

function funnel.wait(limit)
  local over = limit.amount + limit.cost - limit.capacity
  return time_for(limit.rate, limit.per, max(0, over), limit.remainder)
end

function funnel.settle(limit, charge, keep, ttl)
  if charge then
    keep_for_others(limit, limit.amount)
    limit.amount = limit.amount + limit.cost
  end
  return max(0, limit.capacity - limit.amount), settle_level(limit, FUNNEL, limit.amount, charge, keep, ttl)
end
