-- Exact arithmetic on numbers of every size, and what else the algorithms share.

-- Milliseconds after which a key goes: at the end of the second in which it may, so that the same holds for most of the moments
-- that follow, and they need not set it again. One more, since the server expires by a clock of whole milliseconds.
local function ttl(moment)
  local life = moment - moment % SECOND + SECOND - now
  return format('%d', max(least_ttl, floor((life + 999) / 1000) + 1))
end

-- a * b / c, rounded down, and the remainder; b < c <= 2^42. By Horner's rule over the digits of a in base 1024, from
-- the first prefix of a whose product is exact as it stands.
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

-- a * b / c, rounded down, and the remainder, for any b. A quotient beyond MAX need not be exact.
local function multiply_divide(a, b, c)
  local whole = floor(b / c)
  local quotient, remainder = scale(a, b - whole * c, c)
  return a * whole + quotient, remainder
end

-- Thousandths that come in `elapsed` microseconds on top of `remainder`, and the remainder that is left.
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

-- The fewest microseconds after which `accrue` gives at least `amount`: (amount * per - remainder) / rate, rounded up.
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

-- A remainder counted in `old` parts to a thousandth, in `new` parts, rounded down.
local function convert(remainder, old, new)
  if old == new then
    return remainder
  end
  local converted = multiply_divide(remainder, new, old)
  return converted
end

-- Says why a reply is not the string that was looked for.
local function failure_of(reply, ...)
  if type(reply) == 'table' then
    if string.sub(reply.err, 1, 9) == 'WRONGTYPE' then
      return WRONG_TYPE
    end
    -- Raised by the server itself: a script of Redis 6.2 cannot raise a table.
    call(...)
  end
  return UNKNOWN_LAYOUT
end
