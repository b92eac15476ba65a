-- Lists the processes that follow the registry of a namespace. A script of its own.
--
-- Each process registers the revision that it has adopted, for a limited time and again before this
-- time ends. The script computes the difference of the clocks, because the time of the server is
-- known here only.
--
-- - KEYS[1]: the register of subscribers.
-- - ARGV[1] continues with the operation (1: 0 list, 1 register). To register, the subscriber's id
--   (8), the duration of its registration (8: microseconds, 0 to leave), its time (8:
--   microseconds), the revision that it follows (8), the format that it reads (4) and its
--   description follow.
-- - Reply: the stored subscribers without the layout, an empty text for none.
-- - Stored: layout (1), then for each subscriber its id (8), the end of its registration (8:
--   microseconds), the difference of its time from the server's (8: microseconds, signed), its
--   revision (8), its format (4), and its description, preceded by its length (2).
-- - TTL: until the last registration ends.
--
-- Invariant: a process that ended is not listed after LONGEST_LIFE, even if the clock stepped back,
-- once the entries are examined. Tests: tests/registry_redis/subscribers.rs,
-- redis/registry_store/subscribers.rs.

local REGISTER = 1
local MAX_SUBSCRIBERS = 1024
local LONGEST_LIFE = 120000000
-- One in this number of registrations removes the expired entries and those above the maximum.
local EXAMINED_ONE_IN = 32
local ENTRY, HEAD_BYTES = '<I8i8I8I4I2', 38

local register = try('GET', KEYS[1])
if type(register) == 'table' then
  return redis.error_reply('WRONGTYPE the register of subscribers holds a value of another type')
end
-- Replaces a register of another layout; the other subscribers register again soon.
if register and string.byte(register) ~= LAYOUT then
  register = false
end

-- Replaces the entry of a subscriber in its place; returns whether there was one of this length.
-- The other entries are not examined: in a large fleet that takes milliseconds, and all processes
-- register after a publication. The bytes of an id can be a part of another entry, which has no
-- such end and length.
local function replace_entry(entry)
  local id, length = string.sub(entry, 1, 8), string.sub(entry, HEAD_BYTES - 1, HEAD_BYTES)
  local at = register and string.find(register, id, 2, true)
  while at do
    local stop = at + #entry - 1
    if stop <= #register and string.sub(register, at + HEAD_BYTES - 2, at + HEAD_BYTES - 1) == length then
      local untl = unpack('<I8', register, at + 8)
      if untl >= now - LONGEST_LIFE and untl <= now + LONGEST_LIFE then
        call('SETRANGE', KEYS[1], format('%d', at - 1), entry)
        return true
      end
    end
    at = string.find(register, id, at + 1, true)
  end
  return false
end

local kept, count, last = {}, 0, now
local function retain_subscriber(id, untl, rest)
  count = count + 1
  kept[count] = id .. pack('<I8', untl) .. rest
  last = max(last, untl)
end

local registers = string.byte(ARGV[1], position) == REGISTER
local own
if registers then
  own = string.sub(ARGV[1], position + 1, position + 8)
  local life, theirs, revision, reads = unpack('<I8I8I8I4', ARGV[1], position + 9)
  local description = string.sub(ARGV[1], position + 37)
  if life > 0 then
    local time = call('TIME')
    local skew = theirs - (time[1] * SECOND + time[2])
    local rest = pack('<i8I8I4I2', skew, revision, reads, #description)
    retain_subscriber(own, now + min(life, LONGEST_LIFE), rest .. description)
  end
end
local function ttl()
  return max(least_ttl, floor((last - now + 999) / 1000) + 1)
end
if count > 0 and now % EXAMINED_ONE_IN > 0 and replace_entry(kept[1]) then
  call('PEXPIRE', KEYS[1], ttl())
  return ''
end
if register then
  local at = 2
  while at + HEAD_BYTES - 1 <= #register do
    local id = string.sub(register, at, at + 7)
    local untl, _, _, _, length = unpack(ENTRY, register, at + 8)
    local stop = at + HEAD_BYTES + length
    if id ~= own and untl > now and count < MAX_SUBSCRIBERS then
      retain_subscriber(id, min(untl, now + LONGEST_LIFE), string.sub(register, at + 16, stop - 1))
    end
    at = stop
  end
end

local entries = table.concat(kept)
if not registers then
  return entries
end
if count == 0 then
  call('DEL', KEYS[1])
else
  call('SET', KEYS[1], pack('B', LAYOUT) .. entries, 'PX', ttl())
end
return ''
