-- Fast path for a charge of several limits; also of one counter window. 3 limits take 6 µs in a
-- batch, and 18 µs on the general path.
--
-- One command reads the values of a run, or of a decision if decisions share keys; a sliding window
-- is read in parts. A first pass computes the grants of all limits and writes nothing; a second
-- pass writes the charged limits. Numbers between the passes are in arrays, one element for each
-- limit, which all decisions reuse: a table for each limit would take longer than its arithmetic.
-- All cases that the passes do not cover leave the first pass and are decided by `decide_all` or
-- `decide_one`, with the same result.

local COUNTERS, COUNTERS_BYTES = '<BBI8I8I8I8I8', 42
local MAX_COUNTED = 4398046511104 -- 2^42
-- Added to the algorithm of a limit that is checked and never charged.
local BLOCK = 128

-- Parameters of the limits of a run.
local algorithms, blocks, costs, capacities, rates, pers = {}, {}, {}, {}, {}, {}
-- State of the limits of a decision as of now: stored value, false if absent; usage; the remainder
-- of a level, or the count of the previous period; keep_until of a level, the end of a fixed
-- window's period (0: none), or the start of a counter window's period; and a time before which a
-- level does not expire (-1: absent), or whether a counter window's key already lives long enough.
local texts, useds, rests, kepts, lasts = {}, {}, {}, {}, {}
-- Current count of a counter window.
local currents = {}
-- Fields of sliding windows, see `load_window`.
local windows, WINDOW_FIELDS = {}, 9
-- Cached heads of replies, and prefixes of data.
local heads, prefixes = {}, {}
local limits, has_window
-- The grain of the expiry of levels, and the lives that have it; see `expiry_grain`.
local grain, shortest, longest = SECOND, 0, BRIEF

-- Reads the limits of a run, given the first one; the others are at `at` of the plan. Returns the
-- position of the next run, whether `decide` covers the limits, and whether one of them is a
-- sliding window.
local function read_limits(count, at, algorithm, cost, capacity, rate, per)
  local is_covered = true
  limits, has_window = count, false
  for i = 1, count do
    if i > 1 then
      algorithm, cost, capacity, rate, per, at = unpack('<BI8I8I8I8', plan, at)
    end
    local is_block = algorithm >= BLOCK
    if is_block then
      algorithm = algorithm - BLOCK
    end
    algorithms[i], blocks[i], costs[i], capacities[i], rates[i], pers[i] = algorithm, is_block, cost, capacity, rate, per
    -- The products of a usage up to the capacity are exact.
    local is_exact = algorithm >= SLIDING_WINDOW or (capacity * per < EXACT and capacity * per / rate < MAX)
    is_covered = is_covered and cost > 0 and is_exact and not (is_block and algorithm == SLIDING_WINDOW)
    has_window = has_window or algorithm == SLIDING_WINDOW
  end
  return at, is_covered, has_window
end

-- Decides with the values that follow number `at`, which are read if they are not given, and the
-- keys that follow number `key`. Returns the number of parts of the reply, with those that it adds
-- to `out`.
local function decide(values, at, key, times, out, filled)
  local granted, absent = times, false
  for i = 1, limits do
    local algorithm, capacity, rate = algorithms[i], capacities[i], rates[i]
    local used, value, fits = 0
    if values then
      value = values[at + i]
      absent = absent or not value
    elseif algorithm ~= SLIDING_WINDOW then
      value = try('GET', KEYS[key + i])
    end
    texts[i] = value
    if algorithm < SLIDING_WINDOW then
      local per = pers[i]
      local remainder, keep_until, last = 0, now, -1
      if value then
        if #value ~= LEVEL_BYTES then
          return
        end
        local layout, stored, parts, amount, rest, moment, kept = unpack(LEVEL, value)
        local come = (now - moment) * rate + rest
        if layout ~= LAYOUT or stored ~= algorithm or amount > MAX or rest >= parts or parts ~= per or moment > now
          or moment > kept or kept >= EXACT or come >= EXACT then
          return
        end
        local life = kept - moment
        if life < shortest or life >= longest then
          grain, shortest, longest = expiry_grain(life)
        end
        last = kept - kept % grain + grain
        if now < kept then
          local back = come / per
          back = back - back % 1
          used = (algorithm == TOKEN_BUCKET and capacity - amount or amount) - back
          remainder, keep_until = come - back * per, kept
          if used <= 0 then
            used, remainder = 0, 0
          end
          local missing = used * per - remainder
          -- A longer keep_until belongs to another version of the policy.
          if (keep_until - now - 1) * rate >= missing
            or (used > capacity and (used * per >= EXACT or missing > rate * MAX)) then
            return
          end
        end
      end
      rests[i], kepts[i], lasts[i] = remainder, keep_until, last
    elseif algorithm == FIXED_WINDOW then
      local ends = 0
      if value then
        if #value ~= FIXED_BYTES then
          return
        end
        local layout, stored, count, moment, untl = unpack(FIXED, value)
        -- A later end belongs to a period of another policy version, or the clock stepped back.
        if layout ~= LAYOUT or stored ~= FIXED_WINDOW or count > MAX or moment > now or untl > now + rate or moment > untl then
          return
        end
        if now < untl then
          used, ends = count, untl
        end
      end
      if ends == 0 and pers[i] > rate then
        -- Months.
        return
      end
      kepts[i] = ends
    elseif algorithm == SLIDING_WINDOW then
      local place = WINDOW_FIELDS * i
      fits, windows[place], windows[place + 1], windows[place + 2], windows[place + 3], windows[place + 4], windows[place + 5],
        windows[place + 6], windows[place + 7], windows[place + 8] = load_window(KEYS[key + i], times, costs[i], capacity, rate)
      if not fits then
        return
      end
    else
      local current, previous, start, lives = 0, 0, now, false
      if value then
        if #value ~= COUNTERS_BYTES then
          return
        end
        local layout, stored, counted, before, from, length, moment = unpack(COUNTERS, value)
        if layout ~= LAYOUT or stored ~= COUNTER_WINDOW or counted > MAX_COUNTED or before > MAX_COUNTED or length ~= rate
          or rate > MAX_COUNTED or from > moment or moment > now then
          return
        end
        local periods = counted > 0 and 2 or before > 0 and 1 or 0
        if now < from + periods * rate then
          current, previous, start, lives = counted, before, from, counted > 0
          if now - start >= rate then
            start, previous, current, lives = start + rate, current, 0, false
          end
          -- The weighted count of the previous period, rounded up.
          local product = previous * (rate - (now - start))
          if product >= EXACT then
            return
          end
          local weight = product / rate
          used = current + weight + -weight % 1
        end
      end
      rests[i], kepts[i], lasts[i], currents[i] = previous, start, lives, current
    end
    useds[i] = used
    if not fits then
      fits = (capacity - used) / costs[i]
      fits = fits - fits % 1
    end
    if fits < granted and not (blocks[i] and fits > 0) then
      granted = fits > 0 and fits or 0
    end
  end
  if has_window and granted > 0 and granted < times then
    return
  end
  if absent then
    -- MGET reports a value of another type as absent.
    local names, count = {}, 0
    for i = 1, limits do
      if not texts[i] then
        count = count + 1
        names[count] = KEYS[key + i]
      end
    end
    if call('EXISTS', spread(names)) > 0 then
      return
    end
  end

  local summary = granted * 256 + limits
  local head = heads[summary]
  if not head then
    head = pack('<I2', granted) .. string.rep('\0', limits)
    heads[summary] = head
  end
  out[filled + 1], filled = head, filled + 1
  for i = 1, limits do
    local value, algorithm, used, rate, per = texts[i] or '', algorithms[i], useds[i], rates[i], pers[i]
    local charge = blocks[i] and 0 or granted * costs[i]
    used = used + charge
    if algorithm < SLIDING_WINDOW then
      local remainder, keep_until = rests[i], kepts[i]
      local idle_in = (used * per - remainder) / rate
      local untl = now + (idle_in + -idle_in % 1)
      if untl < keep_until then
        untl = keep_until
      end
      if charge > 0 or (value ~= '' and untl > keep_until) then
        local amount = algorithm == TOKEN_BUCKET and capacities[i] - used or used
        local life = untl - now
        if life < shortest or life >= longest then
          grain, shortest, longest = expiry_grain(life)
        end
        local ends = untl - untl % grain + grain
        if ends <= lasts[i] then
          -- The key already lives until then.
          call('SETRANGE', KEYS[key + i], MOVING_AT, pack(MOVING, amount, remainder, now, untl))
        else
          life = (ends - now + 999) / 1000
          life = life - life % 1 + 1
          local level = pack(LEVEL, LAYOUT, algorithm, per, amount, remainder, now, untl)
          call('SET', KEYS[key + i], level, 'PX', format('%d', life > least_ttl and life or least_ttl))
        end
      end
    elseif algorithm == SLIDING_WINDOW then
      local _
      _, value = settle_window(KEYS[key + i], costs[i], capacities[i], rate, granted,
        spread(windows, WINDOW_FIELDS * i, WINDOW_FIELDS * i + WINDOW_FIELDS - 1))
    elseif charge > 0 then
      local ends, text
      if algorithm == FIXED_WINDOW then
        ends = kepts[i]
        if ends > 0 then
          -- The key already lives until the end of the period.
          call('SETRANGE', KEYS[key + i], '2', pack('<I8I8', used, now))
        else
          ends = per == 0 and now + rate or now + rate - (now + rate - (per - 1)) % rate
          text = pack(FIXED, LAYOUT, FIXED_WINDOW, used, now, ends)
        end
      else
        local start = kepts[i]
        local current = currents[i] + charge
        if lasts[i] then
          -- The key already lives until the end of the next period.
          call('SETRANGE', KEYS[key + i], '2', pack('<I8I8I8I8I8', current, rests[i], start, rate, now))
        else
          ends = start + 2 * rate
          text = pack(COUNTERS, LAYOUT, COUNTER_WINDOW, current, rests[i], start, rate, now)
        end
      end
      if text then
        local life = (ends - ends % SECOND + SECOND - now + 999) / 1000
        life = life - life % 1 + 1
        call('SET', KEYS[key + i], text, 'PX', format('%d', life > least_ttl and life or least_ttl))
      end
    end
    local length = #value
    local prefix = prefixes[length]
    if not prefix then
      prefix = string.char(length)
      prefixes[length] = prefix
    end
    out[filled + 1], out[filled + 2] = prefix, value
    filled = filled + 2
  end
  return filled
end

return read_limits, decide
