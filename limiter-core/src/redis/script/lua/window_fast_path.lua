-- Fast path for a charge of one nonempty sliding window, the most frequent decision on windows:
-- without tables and without the functions of the general path: creating them takes longer than
-- this whole function. Returns and writes nothing in all other cases, which `decide_one` decides
-- with the same result. See sliding_window.lua for the stored layout.

-- Number of moments that one command reads.
local PAGE = 32

return function(name, times, cost, limit, window)
  local start = try('GETRANGE', name, '0', LAST_OF_HEADER)
  if #start ~= HEADER_BYTES then
    return
  end
  local layout, algorithm, size, head, count, live, skew, newest, keep_until, oldest, edge_before = unpack(HEADER, start)
  local at = now + skew
  local edge = max(0, at - window)
  if layout ~= LAYOUT or algorithm ~= SLIDING_WINDOW or count > size or head >= size or (count < size and head ~= count)
    or live > count or oldest > newest or newest > at or at >= keep_until or keep_until >= EXACT
    or edge < edge_before or newest <= edge or limit > size then
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
  local permits = granted * cost
  local used, retry, reset = live, 0, window
  if granted < times then
    -- The next permit fits when the oldest one leaves.
    if permits > 0 or limit - cost + 1 ~= live then
      return
    end
    retry, reset = oldest + window - at, newest + window - at
    if at + reset > keep_until then
      return
    end
  else
    if head + permits > size or permits > PAGE then
      return
    end
    local stamps = pack('<I8', at)
    if permits > 1 then
      stamps = string.rep(stamps, permits)
    end
    call('SETRANGE', name, format('%d', HEADER_BYTES + 8 * head), stamps)
    local lasts = keep_until - skew
    keep_until = max(keep_until + at - newest, at + window)
    head = head + permits
    call('SETRANGE', name, '0', pack(HEADER, LAYOUT, SLIDING_WINDOW, size, head == size and 0 or head,
      min(size, count + permits), live + permits, skew, at, keep_until, oldest, edge))
    local untl = keep_until - skew
    local second = untl - untl % SECOND
    if second ~= lasts - lasts % SECOND then
      local life = floor((second + SECOND - now + 999) / 1000) + 1
      call('PEXPIRE', name, format('%d', max(least_ttl, life)))
    end
  end
  return granted, pack('<I8I8I8I8I8', used, retry, reset, keep_until - at, oldest + window - at)
end
