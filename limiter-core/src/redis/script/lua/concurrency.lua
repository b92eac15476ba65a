-- Stores the concurrency permits of a limit. A script of its own.
--
-- - KEYS[1]: the limit's key. Without a key, the script does nothing and returns an empty string.
-- - ARGV[1] continues with: operation (1: 0 acquire, 1 release, 2 renew, 3 peek, 4 reset, 5
--   extend, 6 return), id of the process (8), number of permits (2); then for each permit: its
--   number in the process (8), cost (2: at least 1), capacity of the limit (4), and lease (4:
--   milliseconds). To acquire, there is one permit; to peek or to reset, none. For a reset, the
--   position to continue at follows: score (8; 0 at first) and number of members of this score
--   to skip (4).
-- - Reply, a string in binary, little-endian: the moment (8: microseconds); state of the key
--   (1: 0 readable, 1 a value of another type, 2 an unknown layout); then, if it is readable,
--   the number of held permits (4), and microseconds until the first and the last of the leases
--   end (8 each; 0 if none is held); then a byte for each permit: for an acquire, 1 if
--   admitted; for a renewal, 1 if the permit was present, 2 if it was absent and fit again, 0
--   if it did not fit; to extend and to return, 1 if the lease had not ended; otherwise 0. For
--   a reset, the position of the next step (8 and 4, as above): 0 when it is finished.
-- - Stored: a sorted set. A permit of cost n is n members: layout (1), id of the process (8),
--   number (8), index among the n (2), and lease (4: milliseconds). The score is the end of the
--   lease (microseconds).
-- - TTL: until the last lease ends.
--
-- A detached permit has 16 random bytes as process and number. It is extended and returned instead
-- of renewed and released: only while its lease has not ended, and only in all its parts, so that a
-- wrong cost changes nothing.
--
-- Invariant: an expired lease counts as absent, and an admission first removes all expired leases.
-- Therefore a lease that is still present can be renewed: its capacity was not given to another
-- permit.

local ENTER, LEAVE, RENEW, RESET = 0, 1, 2, 4 -- 3 is to peek, which does nothing
local EXTEND, RETURN = 5, 6
local READABLE, WRONG_TYPE, UNKNOWN_LAYOUT = 0, 1, 2
local MEMBER_BYTES = 23
-- Upper bound of corrected leases per call; the farthest ones come first.
local MAX_CORRECTED = 64
-- Upper bound of members that one step of a reset examines.
local RESET_STEP = 1024

if not KEYS[1] then
  return ''
end
local key, plan = KEYS[1], ARGV[1]
local operation, process, number = unpack('<Bc8I2', plan, position)
position = position + 11

local function last_lease()
  return try('ZRANGE', key, '0', '0', 'REV', 'WITHSCORES')
end

local last = last_lease()
if last.err then
  if string.find(last.err, 'WRONGTYPE', 1, true) then
    return pack('<I8B', now, WRONG_TYPE)
  end
  return last
end
if last[1] and (#last[1] ~= MEMBER_BYTES or string.byte(last[1]) ~= LAYOUT) then
  return pack('<I8B', now, UNKNOWN_LAYOUT)
end

local permits = {}
for i = 1, number do
  local id, cost, max_permits, lease = unpack('<c8I2I4I4', plan, position)
  position = position + 18
  local members = {}
  for part = 1, cost do
    members[part] = pack('<Bc8c8I2I4', LAYOUT, process, id, part, lease)
  end
  permits[i] = { members = members, cost = cost, max_permits = max_permits, ends = now + lease * 1000 }
end

local function text(moment)
  return format('%d', moment)
end
local function held()
  return call('ZCOUNT', key, '(' .. text(now), '+inf')
end
local function hold(permit)
  local arguments = {}
  for i, member in ipairs(permit.members) do
    arguments[2 * i - 1], arguments[2 * i] = text(permit.ends), member
  end
  call('ZADD', key, spread(arguments))
end

-- After a backward step of the clock, leases of terminated processes would live too long. Bounds
-- each lease to its duration from now.
local longest = permits[1] and permits[1].ends or now
local holds = operation == ENTER or operation == RENEW or operation == EXTEND
if holds and last[2] and tonumber(last[2]) > longest then
  local too_late = call('ZRANGE', key, '+inf', '(' .. text(longest), 'BYSCORE', 'REV', 'LIMIT', '0', text(MAX_CORRECTED), 'WITHSCORES')
  for i = 1, #too_late, 2 do
    local ends = now + unpack('<I4', too_late[i], 20) * 1000
    if tonumber(too_late[i + 1]) > ends then
      call('ZADD', key, text(ends), too_late[i])
    end
  end
end

-- Removes the permits of other processes, from the last end to the first: permits that are renewed
-- or acquired between two steps are behind the current position. Permits of this process are
-- skipped, including those whose reply has not arrived yet.
local next_step = ''
if operation == RESET then
  local score, kept = unpack('<I8I4', plan, position)
  local from = score > 0 and text(score) or '+inf'
  local step = call('ZRANGE', key, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', text(kept), text(RESET_STEP), 'WITHSCORES')
  local others = {}
  for i = 1, #step, 2 do
    local ends = tonumber(step[i + 1])
    if ends ~= score then
      score, kept = ends, 0
    end
    if string.sub(step[i], 2, 9) == process then
      kept = kept + 1
    else
      others[#others + 1] = step[i]
    end
  end
  if others[1] then
    call('ZREM', key, spread(others))
  end
  if #step < 2 * RESET_STEP then
    score, kept = 0, 0
  end
  next_step = pack('<I8I4', score, kept)
end
local flags, changed = {}, false
for i, permit in ipairs(permits) do
  local flag = 0
  if operation == ENTER then
    if held() + permit.cost <= permit.max_permits then
      call('ZREMRANGEBYSCORE', key, '-inf', text(now))
      hold(permit)
      flag, changed = 1, true
    end
  elseif operation == LEAVE then
    call('ZREM', key, spread(permit.members))
  elseif operation == RENEW then
    local there = 0
    for _, member in ipairs(permit.members) do
      there = there + (call('ZSCORE', key, member) and 1 or 0)
    end
    if there == permit.cost then
      flag = 1
    elseif held() + permit.cost - there <= permit.max_permits then
      call('ZREMRANGEBYSCORE', key, '-inf', text(now))
      flag = 2
    end
    if flag > 0 then
      hold(permit)
      changed = true
    end
  elseif operation == EXTEND or operation == RETURN then
    flag = 1
    for _, member in ipairs(permit.members) do
      local ends = call('ZSCORE', key, member)
      if not ends or tonumber(ends) <= now then
        flag = 0
        break
      end
    end
    if flag == 1 and operation == EXTEND then
      hold(permit)
      changed = true
    elseif flag == 1 then
      call('ZREM', key, spread(permit.members))
    end
  end
  flags[i] = string.char(flag)
end
local used, first_end, last_end = held(), 0, 0
if used > 0 and operation ~= LEAVE then
  local first = call('ZRANGE', key, '(' .. text(now), '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  last = last_lease()
  -- An uncorrected lease counts as if it were corrected.
  local function left(found)
    return min(tonumber(found[2]) - now, unpack('<I4', found[1], 20) * 1000)
  end
  first_end, last_end = left(first), left(last)
  if changed then
    -- The TTL also covers uncorrected leases, which may hide a later one.
    local until_last = tonumber(last[2]) - now
    call('PEXPIRE', key, text(max(least_ttl, floor((until_last + 999) / 1000) + 1)))
  end
end
return pack('<I8BI4I8I8', now, READABLE, used, first_end, last_end) .. table.concat(flags) .. next_step
