-- The exact sliding window. The twin of algorithm/sliding_window.rs.
--
-- - Parameters: limit in permits; window in microseconds.
-- - Stored: a header of 53 bytes, then a ring of 8-byte moments in microseconds. Header: layout
--   (1), algorithm (1), size (4: capacity of the ring), head (4: index of the next write), count
--   (4: written moments, at most size), live (4: moments later than edge), then 7 bytes each: skew
--   (added to the clock's time, so that the ring's own time never decreases), newest (the newest
--   moment), keep_until (in the ring's time), oldest (the oldest moment later than edge), edge
--   (start of the last writer's window).
-- - TTL: until the end of the second of keep_until; from then on, the state equals absence (an
--   empty ring).
--
-- A moment of 0 denotes a refunded permit: it lies outside every window, even one that reaches back
-- before the epoch.
--
-- Invariant: expired permits stay expired while the start of the window does not decrease.
-- Therefore `live` and `oldest` give the usage without reading the ring, or after reading only the
-- moments that expired since.

-- Number of moments that one command reads: the call overhead of a command exceeds the cost of
-- reading them.
local PAGE = 16

-- Reads bytes of a ring, counted from 0.
local function bytes(ring, first, last)
  return call('GETRANGE', ring.key, format('%d', first), format('%d', last))
end

-- Returns the nth newest moment, counted from 1; n is at most count.
local function moment(ring, n)
  local index = ring.head - n
  if index < 0 then
    index = index + ring.count
  end
  local place = index % PAGE
  local page = ring.pages[index - place]
  if not page then
    local first = HEADER_BYTES + 8 * (index - place)
    page = bytes(ring, first, first + 8 * PAGE - 1)
    ring.pages[index - place] = page
  end
  return (unpack('<I8', page, 8 * place + 1))
end

-- Returns the number of moments later than `edge`, and the oldest of them. Moments never decrease,
-- so the search starts at the oldest candidate, with growing steps, and ends with a binary search.
local function later_than(ring, edge)
  if ring.count == 0 or ring.newest <= edge then
    return 0, 0
  end
  local not_later, oldest
  if edge >= ring.edge and ring.live > 0 then
    not_later, oldest = ring.live, ring.oldest
  else
    not_later = ring.count
    oldest = moment(ring, not_later)
  end
  if oldest > edge then
    return not_later, oldest
  end
  local later, step = not_later, 1
  while true do
    later = max(1, later - step)
    oldest = later > 1 and moment(ring, later) or ring.newest
    if oldest > edge then
      break
    end
    not_later, step = later, step * 2
  end
  while not_later - later > 1 do
    local middle = floor((later + not_later) / 2)
    local at = moment(ring, middle)
    if at > edge then
      later, oldest = middle, at
    else
      not_later = middle
    end
  end
  return later, oldest
end

-- Loads a ring as of now: its header, and the permits in the window. Returns the state of the key.
local function load_ring(limit)
  local key = limit.key
  local start = try('GETRANGE', key, '0', LAST_OF_HEADER)
  local ring
  if #start == HEADER_BYTES then
    local layout, algorithm, size, head, count, live, skew, newest, keep_until, oldest, edge = unpack(HEADER, start)
    if layout ~= LAYOUT or algorithm ~= SLIDING_WINDOW or count > size or head >= size
      or (count < size and head ~= count) or live > count or oldest > newest or newest > keep_until
      or keep_until >= EXACT or HEADER_BYTES + 8 * count > call('STRLEN', key) then
      return UNKNOWN_LAYOUT
    end
    if now + skew < keep_until then
      local lasts, ahead = keep_until - skew, now + skew < newest
      if ahead then
        skew = newest - now
      end
      ring = {
        key = key, pages = {}, size = size, head = head, count = count, live = live, skew = skew, newest = newest,
        keep_until = keep_until, oldest = oldest, edge = edge, now = now + skew, ahead = ahead, lasts = lasts,
      }
    end
  elseif start ~= '' or call('EXISTS', key) == 1 then
    -- An empty string is a foreign value.
    return failure_of(start, 'GETRANGE', key, '0', LAST_OF_HEADER)
  end
  ring = ring or {
    key = key, pages = false, size = limit.limit, head = 0, count = 0, live = 0, skew = 0, newest = 0,
    keep_until = now, oldest = 0, edge = 0, now = now, ahead = false, lasts = false,
  }
  local edge = max(0, ring.now - limit.window)
  ring.live, ring.oldest = later_than(ring, edge)
  ring.edge, limit.used, limit.ring = edge, ring.live, ring
  -- Verifies that a denial according to the header is a denial according to the ring.
  local nth = limit.limit - limit.cost + 1
  if limit.cost > 0 and nth <= ring.live and moment(ring, nth) <= edge then
    return UNKNOWN_LAYOUT
  end
  return READABLE
end

-- Returns the time until the cost fits, after `given` permits were granted now.
local function wait(limit, ring, given)
  local nth = limit.limit - limit.cost + 1
  if limit.cost == 0 or nth > ring.count + given then
    return 0
  end
  if nth <= given then
    return limit.window
  end
  local at = moment(ring, nth - given)
  return at > 0 and max(0, at + limit.window - ring.now) or 0
end

-- Returns the stored form of the header.
local function header(ring)
  return pack(HEADER, LAYOUT, SLIDING_WINDOW, ring.size, ring.head, ring.count, ring.live, ring.skew, ring.newest,
    ring.keep_until, ring.oldest, ring.edge)
end

-- Number of moments that one command writes, 64 KB.
local FILLED_AT_ONCE = 8192

-- Writes one moment into consecutive slots, which do not wrap. In blocks, since one string of
-- megabytes takes 40 times longer: string.rep copies single bytes. The last block is written first,
-- so that the value grows once.
local function fill_straight(ring, first, slots, at)
  local stamps = string.rep(pack('<I8', at), min(slots, FILLED_AT_ONCE / 8))
  if slots > FILLED_AT_ONCE / 8 then
    stamps = stamps .. stamps .. stamps .. stamps .. stamps .. stamps .. stamps .. stamps
  end
  for begin = slots - 1 - (slots - 1) % FILLED_AT_ONCE, 0, -FILLED_AT_ONCE do
    local length = 8 * min(FILLED_AT_ONCE, slots - begin)
    local block = length < #stamps and string.sub(stamps, 1, length) or stamps
    call('SETRANGE', ring.key, format('%d', HEADER_BYTES + 8 * (first + begin)), block)
  end
end

-- Writes one moment into slots of the ring, from `first` on.
local function fill(ring, first, slots, at)
  local straight = min(slots, ring.size - first)
  fill_straight(ring, first, straight, at)
  if straight < slots then
    fill_straight(ring, 0, slots - straight, at)
  end
end

-- Reorders the moments oldest first and enlarges the ring to `size`.
local function grow(ring, size)
  if ring.count == ring.size and ring.head > 0 then
    local split = HEADER_BYTES + 8 * ring.head
    local newer = bytes(ring, HEADER_BYTES, split - 1)
    local older = bytes(ring, split, HEADER_BYTES + 8 * ring.size - 1)
    call('SETRANGE', ring.key, format('%d', HEADER_BYTES), older)
    call('SETRANGE', ring.key, format('%d', HEADER_BYTES + #older), newer)
  end
  ring.head, ring.size, ring.pages = ring.count, size, {}
end

-- Writes the header and extends the key's life to the ring's.
local function write_header(ring)
  call('SETRANGE', ring.key, '0', header(ring))
  local untl = ring.keep_until - ring.skew
  if ring.ahead or untl - untl % SECOND ~= ring.lasts - ring.lasts % SECOND then
    call('PEXPIRE', ring.key, ttl(untl))
  end
end

-- Grants permits now.
local function charge_ring(limit, ring, permits)
  local key, at = ring.key, ring.now
  if ring.count > 0 then
    -- The longest window that has used the ring extends too: this grant counts in it.
    ring.keep_until = ring.keep_until + at - ring.newest
  end
  ring.newest, ring.keep_until = at, max(ring.keep_until, at + limit.window)
  ring.live, ring.oldest = ring.live + permits, ring.live > 0 and ring.oldest or at
  if ring.pages and limit.limit > ring.size then
    grow(ring, limit.limit)
  end
  local head, size = ring.head, ring.size
  ring.head, ring.count = (head + permits) % size, min(size, ring.count + permits)
  if not ring.pages then
    -- Most costs are small: one command.
    local first = min(permits, FILLED_AT_ONCE / 8)
    call('SET', key, header(ring) .. string.rep(pack('<I8', at), first), 'PX', ttl(ring.keep_until))
    if permits > first then
      fill_straight(ring, first, permits - first, at)
    end
    return
  end
  fill(ring, head, permits, at)
  write_header(ring)
end

-- Returns the time until the newest permit leaves the window.
local function window_left(ring, window)
  return ring.newest > 0 and max(0, ring.newest + window - ring.now) or 0
end

-- Returns the time until one more permit fits, which is when the oldest leaves. If the usage
-- exceeds the limit, all permits have to leave.
local function next_left(limit, ring)
  if ring.live == 0 or ring.live > limit.limit then
    return window_left(ring, limit.window)
  end
  return max(0, ring.oldest + limit.window - ring.now)
end

-- Charges the grants and stores the ring; a denial stores only corrections. Returns the data for
-- the outcomes.
local function settle_ring(limit, granted, times, keep)
  local ring, window, permits = limit.ring, limit.window, granted * limit.cost
  local retry = granted < times and wait(limit, ring, permits) or 0
  local reset = window_left(ring, window)
  if permits > 0 then
    charge_ring(limit, ring, permits)
    reset = window
  elseif keep and ring.pages and (ring.ahead or ring.now + reset > ring.keep_until) then
    ring.keep_until = max(ring.keep_until, ring.now + reset)
    write_header(ring)
  end
  return pack('<I8I8I8I8I8', limit.used, retry, reset, ring.keep_until - ring.now, next_left(limit, ring))
end
