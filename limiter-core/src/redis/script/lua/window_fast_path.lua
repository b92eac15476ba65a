-- Charges of a sliding window (`window-10k-64`): 6.5 µs in place of 9.8 per decision at 64 per
-- call, and 39,100 instructions in place of 71,200 for the first charge of a window. It reads only
-- one page of moments, if some have expired. It creates no tables or functions, because their
-- creation takes longer than this path.
--
-- Returns and writes nothing in all other cases, which `decide_one` or `decide_all` decides with
-- the same result. See sliding_window.lua for the stored layout.

-- Number of moments that one command reads.
local PAGE = 32

-- Loads a ring as of now, and advances it to the permits in the window. Returns the number of
-- granted repetitions, the ring's time, and fields of the header, with a count of 0 for a new ring.
local function load_window(name, times, cost, limit, window)
  local start = try('GETRANGE', name, '0', LAST_OF_HEADER)
  if #start ~= HEADER_BYTES then
    -- An empty string is a foreign value.
    if start == '' and times * cost <= min(limit, PAGE) and call('EXISTS', name) == 0 then
      return times, now, limit, 0, 0, 0, 0, 0, now, 0
    end
    return
  end
  local layout, algorithm, size, head, count, live, skew, newest, keep_until, oldest, edge_before = unpack(HEADER, start)
  local at = now + skew
  local edge = max(0, at - window)
  if layout ~= LAYOUT or algorithm ~= SLIDING_WINDOW or count > size or head >= size or (count < size and head ~= count)
    or live > count or oldest > newest or newest > keep_until or keep_until >= EXACT then
    return
  end
  if at >= keep_until then
    if times * cost > min(limit, PAGE) or HEADER_BYTES + 8 * count > call('STRLEN', name) then
      return
    end
    return times, now, limit, 0, 0, 0, 0, 0, now, 0
  end
  if newest > at or edge < edge_before or newest <= edge or limit > size then
    return
  end

  local is_complete = false
  if oldest <= edge then
    -- Expired permits are adjacent, the oldest first. Reads up to the end of the ring if it is
    -- near, which also verifies the length of the value.
    local first = head - live
    if first < 0 then
      first = first + count
    end
    local readable = count - first
    is_complete = readable <= PAGE
    readable = min(readable, PAGE)
    local begin = HEADER_BYTES + 8 * first
    local page = call('GETRANGE', name, format('%d', begin), format('%d', begin + 8 * readable - 1))
    if #page < 8 * readable then
      return
    end
    local expired = 0
    repeat
      expired = expired + 1
      if expired == live or expired == readable then
        return
      end
      oldest = unpack('<I8', page, 8 * expired + 1)
    until oldest > edge
    live = live - expired
  end
  if not is_complete and HEADER_BYTES + 8 * count > call('STRLEN', name) then
    return
  end

  local granted = max(0, min(times, floor((limit - live) / cost)))
  if granted < times then
    -- The next permit has to fit when the oldest one leaves.
    if granted > 0 or limit - cost + 1 ~= live then
      return
    end
  elseif head + times * cost > size or times * cost > PAGE then
    return
  end
  if newest + window > keep_until then
    return
  end
  return granted, at, size, head, count, live, skew, newest, keep_until, oldest
end

-- Charges all repetitions or none. Returns their number and the data for the outcomes.
local function settle_window(name, cost, limit, window, granted, at, size, head, count, live, skew, newest, keep_until, oldest)
  if not granted then
    return
  end
  local permits, retry, reset = granted * cost, 0, window
  if permits == 0 then
    -- The cost fits if another limit denies.
    if count == 0 then
      return granted, pack('<I8I8I8I8I8', 0, 0, 0, 0, 0)
    end
    retry = limit - cost + 1 <= live and oldest + window - at or 0
    reset = newest + window - at
  else
    local stamps = pack('<I8', at)
    if permits > 1 then
      stamps = string.rep(stamps, permits)
    end
    if count == 0 then
      local untl = at + window
      local life = floor((untl - untl % SECOND + SECOND - now + 999) / 1000) + 1
      local header = pack(HEADER, LAYOUT, SLIDING_WINDOW, size, permits % size, permits, permits, 0, at, untl, at, max(0, at - window))
      call('SET', name, header .. stamps, 'PX', format('%d', max(least_ttl, life)))
      return granted, pack('<I8I8I8I8I8', 0, 0, window, window, window)
    end
    call('SETRANGE', name, format('%d', HEADER_BYTES + 8 * head), stamps)
    local lasts = keep_until - skew
    keep_until = max(keep_until + at - newest, at + window)
    head = head + permits
    call('SETRANGE', name, '0', pack(HEADER, LAYOUT, SLIDING_WINDOW, size, head == size and 0 or head,
      min(size, count + permits), live + permits, skew, at, keep_until, oldest, at > window and at - window or 0))
    local untl = keep_until - skew
    local second = untl - untl % SECOND
    if second ~= lasts - lasts % SECOND then
      local life = floor((second + SECOND - now + 999) / 1000) + 1
      call('PEXPIRE', name, format('%d', max(least_ttl, life)))
    end
  end
  return granted, pack('<I8I8I8I8I8', live, retry, reset, keep_until - at, oldest + window - at)
end

return load_window, settle_window
