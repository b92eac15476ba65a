-- Counts who holds permits. A script of its own.
--
-- KEYS[1]: the limit's key. Without one nothing is asked, and nothing answered.
-- ARGV[1] goes on with: operation (1: 0 enter, 1 leave, 2 renew, 3 peek, 4 reset), the process's id (8), number of permits (2);
--   then for each permit: its number in the process (8: below 2^53), its cost (2: at least 1), how much may be held at once (4),
--   and its lease (4: milliseconds). To enter there is one, to peek or to reset none. To reset, there is then where to go on: at
--   which score (8; 0 at first) and after how many members of it (4).
-- Reply, a string in binary, little-endian: the moment (8: microseconds); how the key was found (1: 0 readable, 1 a value of
--   another type, 2 an unknown layout); then, if it is readable, how much is held now (4), and in how many microseconds the
--   first and the last of the leases end (8 each; 0 when nothing is held); then a byte for each permit: to enter, 1 if it was
--   admitted; to renew, 1 if it was still there, 2 if it was not but there was room for it, and 0 if there was none; else 0. To
--   reset, then where to go on (8 and 4, as above): 0 when all is done.
-- Stored: a sorted set. A permit of cost n is n members: layout (1), the process's id (8), its number (8), which of the n it is
--   (2), and its lease (4: milliseconds). The score is the moment (microseconds) at which the lease ends.
-- TTL: until the last lease ends.
--
-- A lease that has ended is as absent, whether or not it is gone. Nobody is admitted before all such are gone. So one that is
-- still there can be renewed: nobody has taken its place.

local ENTER, LEAVE, RENEW, RESET = 0, 1, 2, 4 -- 3 is to peek, which does nothing
local READABLE, WRONG_TYPE, UNKNOWN_LAYOUT = 0, 1, 2
local MEMBER_BYTES = 23
-- So many leases that lie too far ahead are put right by one call, the farthest first.
local PUT_RIGHT = 64
-- So many members are looked at by one call of a reset.
local FORGOTTEN = 1024

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
  local id, cost, most, lease = unpack('<c8I2I4I4', plan, position)
  position = position + 18
  local members = {}
  for part = 1, cost do
    members[part] = pack('<Bc8c8I2I4', LAYOUT, process, id, part, lease)
  end
  permits[i] = { members = members, cost = cost, most = most, ends = now + lease * 1000 }
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

-- A clock that stepped back would keep those alive who died before it did. None ends later than a whole lease from now.
local longest = permits[1] and permits[1].ends or now
if (operation == ENTER or operation == RENEW) and last[2] and tonumber(last[2]) > longest then
  local far = call('ZRANGE', key, '+inf', '(' .. text(longest), 'BYSCORE', 'REV', 'LIMIT', '0', text(PUT_RIGHT), 'WITHSCORES')
  for i = 1, #far, 2 do
    local ends = now + unpack('<I4', far[i], 20) * 1000
    if tonumber(far[i + 1]) > ends then
      call('ZADD', key, text(ends), far[i])
    end
  end
end

-- What other processes hold goes, from the last to end to the first: what is renewed or entered between two calls comes behind
-- what they have looked at. What this process holds stays, whether or not it has heard of it yet; its members are passed over.
local next_step = ''
if operation == RESET then
  local score, kept = unpack('<I8I4', plan, position)
  local from = score > 0 and text(score) or '+inf'
  local step = call('ZRANGE', key, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', text(kept), text(FORGOTTEN), 'WITHSCORES')
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
  if #step < 2 * FORGOTTEN then
    score, kept = 0, 0
  end
  next_step = pack('<I8I4', score, kept)
end
local flags, changed = {}, false
for i, permit in ipairs(permits) do
  local flag = 0
  if operation == ENTER then
    if held() + permit.cost <= permit.most then
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
    elseif held() + permit.cost - there <= permit.most then
      call('ZREMRANGEBYSCORE', key, '-inf', text(now))
      flag = 2
    end
    if flag > 0 then
      hold(permit)
      changed = true
    end
  end
  flags[i] = string.char(flag)
end
local used, first_end, last_end = held(), 0, 0
if used > 0 and operation ~= LEAVE then
  local first = call('ZRANGE', key, '(' .. text(now), '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  last = last_lease()
  -- One that lies too far ahead, and was not put right, counts as if it were.
  local function left(found)
    return min(tonumber(found[2]) - now, unpack('<I4', found[1], 20) * 1000)
  end
  first_end, last_end = left(first), left(last)
  if changed then
    -- Those that are not put right yet may hide one that goes on for longer.
    local until_last = tonumber(last[2]) - now
    call('PEXPIRE', key, text(max(least_ttl, floor((until_last + 999) / 1000) + 1)))
  end
end
return pack('<I8BI4I8I8', now, READABLE, used, first_end, last_end) .. table.concat(flags) .. next_step
