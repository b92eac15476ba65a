-- Decides a list of decisions, each a list of limits: within a decision all limits are charged, or none.
--
-- KEYS: the key of each limit, in order.
-- ARGV[1], binary, little-endian:
--   now (8: microseconds, 0 for the server's time), least TTL in milliseconds (4: 0, but for tests whose clock is not the
--   server's), number of decisions (2); then for each decision: operation (1: 0 check, 1 peek, 2 reset), number of limits
--   (1); then for each limit: algorithm (1), cost (8), and three numbers (8 each): capacity, thousandths and microseconds of
--   the rate, or limit, window and 0.
-- Reply, integers: the moment of the decisions in microseconds; then for each limit: outcome (0 fits, 1 denies, 2 wrong
--   type at the key, 3 unknown layout at the key), remaining, retry, reset, expiry (microseconds from now).

local ALGORITHMS = { token_bucket, funnel, sliding_window }
local CHECK, PEEK, RESET = 0, 1, 2

local plan = ARGV[1]
local now, least_ttl, decisions, position = unpack('<I8I4I2', plan)
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Milliseconds after which a key may go: the span, rounded up; one more, since the server expires by a clock of whole
-- milliseconds.
local function ttl(span)
  return max(least_ttl, floor((span + 999) / 1000) + 1)
end

local reply, filled, next_key = { now }, 1, 1

local function answer(outcome, remaining, retry, reset, expiry)
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = outcome, remaining, retry
  reply[filled + 4], reply[filled + 5] = reset, expiry
  filled = filled + 5
end

for _ = 1, decisions do
  local operation, count
  operation, count, position = unpack('<BB', plan, position)
  local limits, waits, readable, admitted = {}, {}, true, true
  for i = 1, count do
    local algorithm, cost, first, second, third
    algorithm, cost, first, second, third, position = unpack('<BI8I8I8I8', plan, position)
    local limit = { key = KEYS[next_key], now = now, cost = cost, algorithm = ALGORITHMS[algorithm] }
    limit.capacity, limit.rate, limit.per = first, second, third
    limit.limit, limit.window = first, second
    next_key = next_key + 1
    limits[i] = limit
    if operation ~= RESET then
      limit.failure = limit.algorithm.view(limit)
      if limit.failure then
        readable = false
      else
        waits[i] = cost == 0 and 0 or limit.algorithm.wait(limit)
        admitted = admitted and waits[i] == 0
      end
    end
  end

  for i = 1, count do
    local limit = limits[i]
    if operation == RESET then
      call('DEL', limit.key)
      answer(FITS, 0, 0, 0, 0)
    elseif not readable then
      answer(limit.failure or FITS, 0, 0, 0, 0)
    else
      local keep = operation == CHECK and limit.cost > 0
      local remaining, reset, expiry = limit.algorithm.settle(limit, keep and admitted, keep, ttl)
      answer(waits[i] == 0 and FITS or DENIES, remaining, waits[i], reset, expiry)
    end
  end
end

return reply
