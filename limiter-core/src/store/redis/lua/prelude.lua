-- Exact arithmetic and access to state, for every algorithm.
--
-- Lua numbers are doubles: every integer up to 2^53 is exact, so every intermediate stays below that. Divisions of such
-- integers are exact too once rounded down.

local call, try = redis.call, redis.pcall
local pack, unpack = struct.pack, struct.unpack
local floor, max, min = math.floor, math.max, math.min

local EXACT = 9007199254740992 -- 2^53
local MAX = 4503599627370496 -- 2^52: the longest span, the largest stored number

-- The layout of the stored values. Another one is never read as if it were this.
local LAYOUT = 1

-- The outcome of a limit.
local FITS, DENIES, WRONG_TYPE, UNKNOWN_LAYOUT = 0, 1, 2, 3

local function divide(a, b)
  local quotient = floor(a / b)
  return quotient, a - quotient * b
end

-- a * b / c, rounded down, and the remainder; b < c <= 2^42. By Horner's rule over the digits of a in base 1024, from
-- the first prefix of a whose product is exact as it stands.
local function scale(a, b, c)
  local product = a * b
  if product < EXACT then
    return divide(product, c)
  end
  local prefix, digit = divide(a, 1024)
  local quotient, remainder = scale(prefix, b, c)
  local carry
  carry, remainder = divide(remainder * 1024 + digit * b, c)
  return quotient * 1024 + carry, remainder
end

-- a * b / c, rounded down, and the remainder, for any b. A quotient beyond MAX need not be exact.
local function multiply_divide(a, b, c)
  local whole, rest = divide(b, c)
  local quotient, remainder = scale(a, rest, c)
  return a * whole + quotient, remainder
end

-- Thousandths that come in `elapsed` microseconds on top of `remainder`, and the remainder that is left.
local function accrue(rate, per, elapsed, remainder)
  local amount, rest = multiply_divide(elapsed, rate, per)
  rest = rest + remainder
  if rest >= per then
    amount, rest = amount + 1, rest - per
  end
  if amount > MAX then
    return MAX, 0
  end
  return amount, rest
end

-- The fewest microseconds after which `accrue` gives at least `amount`: (amount * per - remainder) / rate, rounded up.
local function time_for(rate, per, amount, remainder)
  if amount == 0 then
    return 0
  end
  local time, rest = multiply_divide(amount, per, rate)
  local less, less_rest = divide(remainder, rate)
  time = time - less
  if rest > less_rest then
    time = time + 1
  end
  return max(0, min(time, MAX))
end

-- A remainder counted in `old` parts to a thousandth, in `new` parts, rounded down.
local function convert(remainder, old, new)
  if old == new then
    return remainder
  end
  local converted = multiply_divide(remainder, new, old)
  return converted
end

-- The stored string, false where there is none, or nil and the outcome that says why it cannot be read.
local function read(command, ...)
  local value = try(command, ...)
  if type(value) == 'table' and value.err then
    if string.sub(value.err, 1, 9) == 'WRONGTYPE' then
      return nil, WRONG_TYPE
    end
    -- Raised by the server itself: a script of Redis 6.2 cannot raise a table.
    return call(command, ...)
  end
  return value
end
