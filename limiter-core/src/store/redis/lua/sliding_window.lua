-- The exact sliding window. The twin of algorithm/sliding_window.rs.
--
-- Parameters: limit in permits; window in microseconds.
-- Stored: a header of 40 bytes, then a ring of 8-byte moments in microseconds.
--   Header: layout (1), algorithm (1), padding (2), size (4: moments that the ring keeps), head (4: where the next moment
--   is written), count (4: moments written, at most size), skew (8: added to the clock's time, so that the ring's own time
--   never runs back), newest (8: the newest moment), keep_until (8: in the ring's time).
-- TTL: until keep_until, from when on the state equals absence (an empty ring).

local SLIDING_WINDOW = 3
local HEADER = '<BBI2I4I4I4I8I8I8'
local HEADER_BYTES = 40
-- Rings up to this size are read whole: one command in place of one for each probe of the bisection.
local WHOLE_BYTES = HEADER_BYTES + 8 * 128

local sliding_window = {}

function sliding_window.view(limit)
  local key, now = limit.key, limit.now
  limit.stored, limit.ahead = false, false
  limit.size, limit.head, limit.count, limit.skew, limit.newest = limit.limit, 0, 0, 0, 0
  limit.ring_now, limit.keep_until = now, now

  local start, failure = read('GETRANGE', key, 0, WHOLE_BYTES - 1)
  if not start then
    return failure
  end
  if start == '' then
    -- No key, or an empty string, which is not ours.
    return call('EXISTS', key) == 1 and UNKNOWN_LAYOUT or nil
  end
  if #start < HEADER_BYTES then
    return UNKNOWN_LAYOUT
  end
  local layout, algorithm, _, size, head, count, skew, newest, keep_until = unpack(HEADER, start)
  if layout ~= LAYOUT or algorithm ~= SLIDING_WINDOW or count > size or head >= size
    or (count < size and head ~= count) or newest > keep_until or keep_until > EXACT then
    return UNKNOWN_LAYOUT
  end
  local bytes = HEADER_BYTES + 8 * count
  if bytes > #start and (#start < WHOLE_BYTES or bytes > call('STRLEN', key)) then
    return UNKNOWN_LAYOUT
  end
  if now + skew >= keep_until then
    return
  end
  limit.stored, limit.start = true, start
  limit.size, limit.head, limit.count, limit.newest, limit.keep_until = size, head, count, newest, keep_until
  limit.ahead = now + skew < newest
  limit.skew = limit.ahead and newest - now or skew
  limit.ring_now = now + limit.skew
end

-- The nth newest moment, counted from 1; n is at most count.
local function moment(limit, n)
  local index = limit.head - n
  if index < 0 then
    index = index + limit.count
  end
  local offset = HEADER_BYTES + 8 * index
  if offset + 8 <= #limit.start then
    return (unpack('<I8', limit.start, offset + 1))
  end
  return (unpack('<I8', call('GETRANGE', limit.key, offset, offset + 7)))
end

-- How many moments are later than `edge`. Moments never decrease, so this bisects.
local function later_than(limit, edge)
  local later, not_later = 0, limit.count + 1
  while not_later - later > 1 do
    local middle = floor((later + not_later) / 2)
    if moment(limit, middle) > edge then
      later = middle
    else
      not_later = middle
    end
  end
  return later
end

function sliding_window.wait(limit)
  local nth = limit.limit - limit.cost + 1
  if nth > limit.count then
    return 0
  end
  local at = moment(limit, nth)
  -- In a window that reaches back before the epoch lies every moment but zero, which stands for a permit given back.
  return at > 0 and max(0, at + limit.window - limit.ring_now) or 0
end

-- The header as it is stored.
local function header(limit)
  return pack(HEADER, LAYOUT, SLIDING_WINDOW, 0, limit.size, limit.head, limit.count, limit.skew, limit.newest,
    limit.keep_until)
end

-- Lays the moments out oldest first, with room for `limit.limit` of them.
local function grow(limit)
  if limit.count == limit.size and limit.head > 0 then
    local split = HEADER_BYTES + 8 * limit.head
    local newer = call('GETRANGE', limit.key, HEADER_BYTES, split - 1)
    local older = call('GETRANGE', limit.key, split, HEADER_BYTES + 8 * limit.size - 1)
    call('SETRANGE', limit.key, HEADER_BYTES, older .. newer)
  end
  limit.head, limit.size = limit.count, limit.limit
end

-- `text`, `times` over. By blocks, since string.rep goes piece by piece.
local function repeated(text, times)
  local blocks, rest = divide(times, 1024)
  if blocks == 0 then
    return string.rep(text, rest)
  end
  return string.rep(string.rep(text, 1024), blocks) .. string.rep(text, rest)
end

local function charge_ring(limit)
  local cost = limit.cost
  local stamps = repeated(pack('<I8', limit.ring_now), cost)
  if limit.count > 0 then
    -- The longest window that has used the ring travels along: what is granted now counts in it too.
    limit.keep_until = limit.keep_until + limit.ring_now - limit.newest
  end
  if limit.stored then
    if limit.limit > limit.size then
      grow(limit)
    end
    local first = min(cost, limit.size - limit.head)
    call('SETRANGE', limit.key, HEADER_BYTES + 8 * limit.head, string.sub(stamps, 1, 8 * first))
    if first < cost then
      call('SETRANGE', limit.key, HEADER_BYTES, string.sub(stamps, 8 * first + 1))
    end
  end
  limit.head = (limit.head + cost) % limit.size
  limit.count = min(limit.size, limit.count + cost)
  limit.newest = limit.ring_now
  return stamps
end

function sliding_window.settle(limit, charge, keep, ttl)
  local used = later_than(limit, max(0, limit.ring_now - limit.window))
  local fresh = not limit.stored
  local stamps
  if charge then
    used = used + limit.cost
    stamps = charge_ring(limit)
  end
  local reset = 0
  if limit.count > 0 and limit.newest > 0 then
    reset = max(0, limit.newest + limit.window - limit.ring_now)
  end
  local keep_until = max(limit.keep_until, limit.ring_now + reset)
  if charge or (keep and limit.stored and (limit.ahead or keep_until > limit.keep_until)) then
    limit.keep_until = keep_until
    local life = ttl(keep_until - limit.ring_now)
    if fresh then
      call('SET', limit.key, header(limit) .. stamps, 'PX', life)
    else
      call('SETRANGE', limit.key, 0, header(limit))
      call('PEXPIRE', limit.key, life)
    end
  end
  return max(0, limit.limit - used), reset, limit.keep_until - limit.ring_now
end
