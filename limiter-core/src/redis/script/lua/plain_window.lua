-- A charge of one window that is not empty, as most decisions on windows are: without tables, and without the functions for all
-- the rest, which take longer to make than this to run. It returns nothing, and has written nothing, where a charge is unlike
-- that, to be decided by `decide_one`, which would do the same; see sliding_window.lua for what is stored.

-- Moments that are read together.
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
    -- Some have left: they stand together, the oldest first. Up to the end of the ring, if that is near, since what can be
    -- read there need not be looked for by its length.
    local first = head - live
    if first < 0 then
      first = first + count
    end
    local most = count - first
    is_complete = most <= PAGE
    most = min(most, PAGE)
    local begin = HEADER_BYTES + 8 * first
    local page = call('GETRANGE', name, format('%d', begin), format('%d', begin + 8 * most - 1))
    if #page < 8 * most then
      return
    end
    local gone = 0
    repeat
      gone = gone + 1
      if gone == live or gone == most then
        return
      end
      oldest = unpack('<I8', page, 8 * gone + 1)
    until oldest > edge
    live = live - gone
  end
  if not is_complete and HEADER_BYTES + 8 * count > call('STRLEN', name) then
    return
  end

  local granted = max(0, min(times, floor((limit - live) / cost)))
  local permits = granted * cost
  local used, retry, reset = live, 0, window
  if granted < times then
    -- The next fits when the oldest has left.
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
