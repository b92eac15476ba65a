-- Windows that store counts: the fixed window and the two-counter window. The twins of
-- algorithm/fixed_window.rs and algorithm/counter_window.rs. A count per period needs constant
-- memory. The client computes the outcomes from the stored value; this script decides the grants
-- and stores the state.
--
-- - Parameters: limit in permits; window in microseconds; for a fixed window, the start of its
--   periods: 0 for the first permit; up to the window, 1 plus a moment at which a period starts;
--   beyond the window, calendar months, and the excess is the offset of local time ahead of UTC
--   plus one day (microseconds).
-- - Stored for a fixed window, 26 bytes: layout (1), algorithm (1), then 8 bytes each: permits of
--   the period; the moment of the last charge; the end of the period.
-- - Stored for a counter window, 42 bytes: layout (1), algorithm (1), then 8 bytes each: permits of
--   the current and of the previous period; start of the current period; its duration; the moment
--   of the last charge.
-- - TTL: until the end of the second in which all permits expire; from then on, the state equals
--   absence.

local COUNTERS, COUNTERS_BYTES = '<BBI8I8I8I8I8', 42
-- Upper bound of the counts and of the window of a counter window.
local MAX_COUNTED = 4398046511104 -- 2^42
local DAY = 86400000000
-- The largest step back of the clock that counts as small, for a window of an hour or more. For a
-- shorter one it is this part of the window, at least a second, since clocks of servers differ.
local SMALL_STEP, STEPS_PER_WINDOW = 60000000, 60

-- Returns the day of the month; day 0 is the day before the epoch.
local function day_of_month(day)
  local of_era = (day + 719467) % 146097
  local year = floor((of_era + floor(of_era / 36524) - floor(of_era / 1460) - floor(of_era / 146096)) / 365)
  local of_year = of_era + floor(year / 100) - 365 * year - floor(year / 4)
  local month = floor((5 * of_year + 2) / 153)
  return of_year - floor((153 * month + 2) / 5) + 1
end

-- Returns the end of a period that starts at a moment or contains it.
local function end_of_period(window, periods, at)
  if periods == 0 then
    return at + window
  end
  if periods <= window then
    return at + window - (at + window - (periods - 1)) % window
  end
  local ahead = periods - window
  local day = floor((at + ahead) / DAY)
  local later = day + 32 - day_of_month(day)
  return (later + 1 - day_of_month(later)) * DAY - ahead
end

-- Loads the count of a period as of now. Returns the state of the key.
local function load_fixed(limit)
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
  -- After a backward step of the clock, the whole state moves back. Aligned periods keep their
  -- place in the calendar.
  local back = limit.periods == 0 and max(0, at - now) or 0
  local latest = now + limit.window
  if limit.periods > 0 and ends > latest then
    -- A calendar period that had begun before a small step back keeps its end.
    local step = max(SECOND, min(SMALL_STEP, floor(limit.window / STEPS_PER_WINDOW)))
    latest = max(latest, end_of_period(limit.window, limit.periods, now + step))
  end
  limit.used, limit.ends = used, min(ends - back, latest)
  limit.at, limit.moved = min(at, now), now < at or limit.ends ~= ends
  return READABLE
end

local function store_fixed(limit)
  local value = pack(FIXED, LAYOUT, FIXED_WINDOW, limit.used, limit.at, limit.ends)
  call('SET', limit.key, value, 'PX', ttl(limit.ends))
end

-- Charges permits unconditionally.
local function charge_fixed(limit, permits)
  limit.ends = limit.ends or end_of_period(limit.window, limit.periods, now)
  limit.used, limit.at = min(limit.used + permits, MAX), now
  store_fixed(limit)
end

-- Charges the grants, or stores corrections. Returns the data for the outcomes.
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

-- Refunds up to `permits` permits of the period.
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

-- Advances the counters to the current period.
local function roll(limit)
  if now - limit.start >= limit.lasts then
    limit.start, limit.previous, limit.current = limit.start + limit.lasts, limit.current, 0
  end
end

-- Returns the weighted count of the previous period.
local function weight(limit)
  if limit.previous == 0 then
    return 0
  end
  local whole, rest = multiply_divide(limit.previous, limit.lasts - (now - limit.start), limit.lasts)
  return rest > 0 and whole + 1 or whole
end

-- Starts a period of the policy's own duration; the current weighted count becomes the previous
-- period.
local function begin_period(limit)
  limit.previous, limit.current, limit.start = min(limit.current + weight(limit), MAX_COUNTED), 0, now
  limit.lasts, limit.at = limit.window, now
end

-- Loads both counters as of now. Returns the state of the key.
local function load_counters(limit)
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
  -- After a backward step of the clock, the whole state moves back.
  limit.current, limit.previous, limit.start = current, previous, max(0, start - max(0, at - now))
  limit.lasts, limit.at, limit.moved = lasts, min(at, now), now < at
  if limit.window < lasts then
    roll(limit)
    begin_period(limit)
    limit.moved = true
  end
  limit.used = 0
  -- The stored form, which a denial writes again if it needs a correction.
  limit.unrolled = { limit.current, limit.previous, limit.start }
  roll(limit)
  limit.used = limit.current + weight(limit)
  return READABLE
end

local function store_counters(limit, current, previous, start)
  local value = pack(COUNTERS, LAYOUT, COUNTER_WINDOW, current, previous, start, limit.lasts, limit.at)
  call('SET', limit.key, value, 'PX', ttl(start + (current > 0 and 2 or 1) * limit.lasts))
end

-- Charges permits unconditionally.
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

-- Returns the part of an amount that still counts, given the time until it expires.
local function weighted(amount, left, window)
  local counts = multiply_divide(amount, min(left, window), window)
  return counts
end

-- Refunds up to `permits` permits that count now, the oldest first: those of the previous period.
local function refund_counters(limit, permits)
  local counts = weight(limit)
  local given = min(permits, limit.used)
  if given == 0 then
    return
  end
  local of_previous = min(given, counts)
  -- The count whose current weight equals the remaining part.
  local kept = multiply_divide(counts - of_previous, limit.lasts, limit.lasts - (now - limit.start))
  limit.previous, limit.current = min(limit.previous, kept), limit.current - (given - of_previous)
  limit.at = now
  if limit.current + limit.previous == 0 then
    call('DEL', limit.key)
  else
    store_counters(limit, limit.current, limit.previous, limit.start)
  end
end
