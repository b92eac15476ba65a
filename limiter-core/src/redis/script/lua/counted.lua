-- Windows that keep counts: the fixed window and the one of two counters. The twins of algorithm/fixed_window.rs and
-- algorithm/counter_window.rs. What an answer says is computed of the stored value by the algorithm itself; here is decided what
-- fits, and what is stored.
--
-- Parameters: limit in permits; window in microseconds; and of a fixed window where periods begin: 0 with the first permit; up
--   to the window 1 more than a moment at which one begins; beyond the window it is months, and the rest is what local time is
--   ahead of UTC, and a day (microseconds).
-- Stored of a fixed window, 26 bytes: layout (1), algorithm (1), then 8 bytes each: permits of the period; the moment of the
--   last charge; the moment at which the period ends.
-- Stored of a counter window, 42 bytes: layout (1), algorithm (1), then 8 bytes each: permits of the period that runs, and of
--   the one before; the moment at which it began; how long it lasts; the moment of the last charge.
-- TTL: until the end of the second in which nothing counts any more, from when on the state equals absence.

local COUNTERS, COUNTERS_BYTES = '<BBI8I8I8I8I8', 42
-- The largest count, and the longest window, of a counter window.
local MAX_COUNTED = 4398046511104 -- 2^42
local DAY = 86400000000

-- Which day of its month it is; days are counted from the one before the epoch.
local function day_of_month(day)
  local of_era = (day + 719467) % 146097
  local year = floor((of_era + floor(of_era / 36524) - floor(of_era / 1460) - floor(of_era / 146096)) / 365)
  local of_year = of_era + floor(year / 100) - 365 * year - floor(year / 4)
  local month = floor((5 * of_year + 2) / 153)
  return of_year - floor((153 * month + 2) / 5) + 1
end

-- When a period that begins now, or contains this moment, ends.
local function end_of_period(window, periods)
  if periods == 0 then
    return now + window
  end
  if periods <= window then
    return now + window - (now + window - (periods - 1)) % window
  end
  local ahead = periods - window
  local day = floor((now + ahead) / DAY)
  local later = day + 32 - day_of_month(day)
  return (later + 1 - day_of_month(later)) * DAY - ahead
end

-- Reads the count of a period as of now. Returns how it was found.
local function view_fixed(limit)
  local value = try('GET', limit.key)
  limit.value = value
  if not value then
    return READABLE
  end
  if #value ~= FIXED_BYTES then
    return failure_of(value, 'GET', limit.key)
  end
  local layout, algorithm, used, at, ends = unpack(FIXED, value)
  if layout ~= LAYOUT or algorithm ~= FIXED_WINDOW or used > MAX or at > ends or ends >= EXACT then
    return UNKNOWN_LAYOUT
  end
  if now >= ends then
    return READABLE
  end
  -- Time that ran back moves the whole state back. What is aligned stays where it is in the calendar.
  local back = limit.periods == 0 and max(0, at - now) or 0
  limit.used, limit.ends = used, min(ends - back, now + limit.window)
  limit.at, limit.moved = min(at, now), now < at or limit.ends ~= ends
  return READABLE
end

local function store_fixed(limit)
  local value = pack(FIXED, LAYOUT, FIXED_WINDOW, limit.used, limit.at, limit.ends)
  call('SET', limit.key, value, 'PX', ttl(limit.ends))
end

-- Charges so many permits, whether they fit or not.
local function charge_fixed(limit, permits)
  limit.ends = limit.ends or end_of_period(limit.window, limit.periods)
  limit.used, limit.at = min(limit.used + permits, MAX), now
  store_fixed(limit)
end

-- Charges what was granted, or stores what has to be mended. Returns what its outcomes follow from.
local function settle_fixed(limit, granted, _, keep)
  if keep then
    if granted > 0 then
      charge_fixed(limit, granted * limit.cost)
    elseif limit.moved then
      store_fixed(limit)
    end
  end
  return limit.value or ''
end

-- Gives up to so many permits of the period back.
local function refund_fixed(limit, permits)
  local given = min(permits, limit.used)
  if given == 0 then
    return
  end
  limit.used, limit.at = limit.used - given, now
  if limit.used == 0 then
    call('DEL', limit.key)
  else
    store_fixed(limit)
  end
end

-- Makes of counters those of the period that runs now.
local function roll(limit)
  if now - limit.start >= limit.lasts then
    limit.start, limit.previous, limit.current = limit.start + limit.lasts, limit.current, 0
  end
end

-- What counts of the period before.
local function weight(limit)
  if limit.previous == 0 then
    return 0
  end
  local whole, rest = multiply_divide(limit.previous, limit.lasts - (now - limit.start), limit.lasts)
  return rest > 0 and whole + 1 or whole
end

-- Begins a period of the policy's own length, before which was given what counts now.
local function begin_period(limit)
  limit.previous, limit.current, limit.start = min(limit.current + weight(limit), MAX_COUNTED), 0, now
  limit.lasts, limit.at = limit.window, now
end

-- Reads both counters as of now. Returns how they were found.
local function view_counters(limit)
  local value = try('GET', limit.key)
  limit.value = value
  limit.current, limit.previous, limit.start, limit.lasts, limit.at = 0, 0, now, limit.window, now
  if not value then
    return READABLE
  end
  if #value ~= COUNTERS_BYTES then
    return failure_of(value, 'GET', limit.key)
  end
  local layout, algorithm, current, previous, start, lasts, at = unpack(COUNTERS, value)
  if layout ~= LAYOUT or algorithm ~= COUNTER_WINDOW or current > MAX_COUNTED or previous > MAX_COUNTED
    or lasts > MAX_COUNTED or lasts == 0 or start > at or at > MAX then
    return UNKNOWN_LAYOUT
  end
  local periods = current > 0 and 2 or previous > 0 and 1 or 0
  if now >= start + periods * lasts then
    return READABLE
  end
  -- Time that ran back moves the whole state back.
  limit.current, limit.previous, limit.start = current, previous, max(0, start - max(0, at - now))
  limit.lasts, limit.at, limit.moved = lasts, min(at, now), now < at
  if limit.window < lasts then
    roll(limit)
    begin_period(limit)
    limit.moved = true
  end
  limit.used = 0
  -- As it was stored, a denial stores it again where it has to be mended.
  limit.unrolled = { limit.current, limit.previous, limit.start }
  roll(limit)
  limit.used = limit.current + weight(limit)
  return READABLE
end

local function store_counters(limit, current, previous, start)
  local value = pack(COUNTERS, LAYOUT, COUNTER_WINDOW, current, previous, start, limit.lasts, limit.at)
  call('SET', limit.key, value, 'PX', ttl(start + (current > 0 and 2 or 1) * limit.lasts))
end

-- Charges so many permits, whether they fit or not.
local function charge_counters(limit, permits)
  if limit.current == 0 and limit.lasts ~= limit.window then
    begin_period(limit)
  end
  limit.current, limit.at = min(limit.current + permits, MAX_COUNTED), now
  store_counters(limit, limit.current, limit.previous, limit.start)
end

local function settle_counters(limit, granted, _, keep)
  if keep then
    if granted > 0 then
      charge_counters(limit, granted * limit.cost)
    elseif limit.moved then
      store_counters(limit, spread(limit.unrolled))
    end
  end
  return limit.value or ''
end

-- How much of an amount still counts where nothing of it will in so much time.
local function still_counts(amount, left, window)
  local counts = multiply_divide(amount, min(left, window), window)
  return counts
end

-- Gives up to so many permits back of what counts now, the oldest first: those of the period before.
local function refund_counters(limit, permits)
  local counts = weight(limit)
  local given = min(permits, limit.used)
  if given == 0 then
    return
  end
  local of_previous = min(given, counts)
  -- As many as count for what is left of their weight.
  local kept = multiply_divide(counts - of_previous, limit.lasts, limit.lasts - (now - limit.start))
  limit.previous, limit.current = min(limit.previous, kept), limit.current - (given - of_previous)
  limit.at = now
  if limit.current + limit.previous == 0 then
    call('DEL', limit.key)
  else
    store_counters(limit, limit.current, limit.previous, limit.start)
  end
end
