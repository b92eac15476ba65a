-- Exact integer arithmetic on numbers of every size, and shared helpers of the algorithms.
--
-- Numbers are integers up to 2^52 and their products exceed 2^53, above which doubles round. A
-- product below 2^53 is divided directly, a larger one digit by digit.
--
-- Invariant: each result up to MAX equals that of the Rust step. Tests: tests/differential.rs.

-- Returns the TTL in milliseconds. A key expires at the first multiple of the grain (default: one
-- second) after `moment`, so that later charges within the grain keep the TTL. One millisecond is
-- added, since the server's expiry clock has whole milliseconds.
local function ttl(moment, grain)
  grain = grain or SECOND
  local life = moment - moment % grain + grain - now
  return format('%d', max(least_ttl, floor((life + 999) / 1000) + 1))
end

-- Returns a * b / c, rounded down, and the remainder; b < c <= 2^42. Horner's rule over the digits
-- of a in base 1024, from the first prefix of a with an exact product.
local function scale(a, b, c)
  local product = a * b
  if product < EXACT then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
  end
  local prefix = floor(a / 1024)
  local quotient, remainder = scale(prefix, b, c)
  local rest = remainder * 1024 + (a - prefix * 1024) * b
  local carry = floor(rest / c)
  return quotient * 1024 + carry, rest - carry * c
end

-- Returns a * b / c, rounded down, and the remainder, for any b. Quotients beyond MAX may be
-- inexact.
local function multiply_divide(a, b, c)
  local whole = floor(b / c)
  local quotient, remainder = scale(a, b - whole * c, c)
  return a * whole + quotient, remainder
end

-- Returns the thousandths that accrue in `elapsed` microseconds on top of `remainder`, and the new
-- remainder.
local function accrue(rate, per, elapsed, remainder)
  local product = elapsed * rate + remainder
  local amount, rest
  if product < EXACT then
    amount = floor(product / per)
    rest = product - amount * per
  else
    amount, rest = multiply_divide(elapsed, rate, per)
    rest = rest + remainder
    if rest >= per then
      amount, rest = amount + 1, rest - per
    end
  end
  if amount > MAX then
    return MAX, 0
  end
  return amount, rest
end

-- Returns the minimum number of microseconds in which `accrue` yields at least `amount`: (amount *
-- per - remainder) / rate, rounded up.
local function time_for(rate, per, amount, remainder)
  if amount <= 0 then
    return 0
  end
  local product = amount * per
  if product < EXACT then
    return max(0, min(ceil((product - remainder) / rate), MAX))
  end
  local time, rest = multiply_divide(amount, per, rate)
  local less = floor(remainder / rate)
  time = time - less
  if rest > remainder - less * rate then
    time = time + 1
  end
  return max(0, min(time, MAX))
end

-- Converts a remainder from `old` to `new` parts of a thousandth, rounded down.
local function convert(remainder, old, new)
  if old == new then
    return remainder
  end
  local converted = multiply_divide(remainder, new, old)
  return converted
end

-- Returns the state of a key whose value is not the expected string.
local function failure_of(reply, ...)
  if type(reply) == 'table' then
    if string.sub(reply.err, 1, 9) == 'WRONGTYPE' then
      return WRONG_TYPE
    end
    if ARGV[2] then
      -- A call across slots. The caller repeats the decision in a call for the slot of its key.
      return ELSEWHERE
    end
    -- Raised by the server itself: a script of Redis 6.2 cannot raise a table.
    call(...)
  end
  return UNKNOWN_LAYOUT
end
