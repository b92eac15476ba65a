-- Counts the replicas that share the limits of a namespace. A script of its own.
--
-- During an outage, each replica admits its share of a limit, and the share depends on the number
-- of replicas. Each replica registers for a limited time and again before this time ends.
--
-- - KEYS[1]: the register of replicas.
-- - ARGV[1] continues with the replica's id (8), and the duration of its registration (8:
--   microseconds, 0 to leave).
-- - Reply: the number of replicas, at most MAX_REPLICAS.
-- - Stored: layout (1), then for each replica its id (8) and the end of its registration (8:
--   microseconds).
-- - TTL: until the last registration ends.
--
-- Invariant: once the registrations are examined, a replica that ended is not counted after
-- LONGEST_LIFE, even if the clock stepped back. Tests: redis/heartbeat.rs, tests/local_fallback.rs.

local MAX_REPLICAS = 1024
local LONGEST_LIFE = 30000000
-- A beat examines this number of registrations on average: all of them, or one beat in several
-- examines all. Otherwise the beats of a fleet would cost the square of its size.
local EXAMINED = 64

local id = string.sub(ARGV[1], position, position + 7)
local life = unpack('<I8', ARGV[1], position + 8)

local register = try('GET', KEYS[1])
if type(register) == 'table' then
  return redis.error_reply('WRONGTYPE the register of replicas holds a value of another type')
end
local function expire_after(span)
  return format('%d', max(least_ttl, floor((span + 999) / 1000) + 1))
end

-- Extends the registration of this replica in its place; returns whether there was one.
local function extend_registration()
  local at = string.find(register, id, 2, true)
  -- The bytes of an id can be a part of other registrations.
  while at and (at - 2) % 16 > 0 do
    at = string.find(register, id, at + 1, true)
  end
  if at then
    call('SETRANGE', KEYS[1], format('%d', at + 7), pack('<I8', now + life))
    call('PEXPIRE', KEYS[1], expire_after(life))
  end
  return at
end

local stored = register and string.byte(register) == LAYOUT and floor((#register - 1) / 16) or 0
if life > 0 and stored > EXAMINED and now % floor(stored / EXAMINED) > 0 and extend_registration() then
  return stored
end

local kept, count, last = {}, 0, now
local function retain_replica(replica, untl)
  count = count + 1
  kept[count] = replica .. pack('<I8', untl)
  last = max(last, untl)
end

if life > 0 then
  retain_replica(id, now + life)
end
-- Replaces a register of another layout; the other replicas register again soon.
if register and string.byte(register) == LAYOUT then
  for at = 2, #register - 15, 16 do
    local replica, untl = string.sub(register, at, at + 7), unpack('<I8', register, at + 8)
    if replica ~= id and untl > now and count < MAX_REPLICAS then
      -- Bounds each registration, since a backward step of the clock would prolong it.
      retain_replica(replica, min(untl, now + LONGEST_LIFE))
    end
  end
end

if count == 0 then
  call('DEL', KEYS[1])
else
  call('SET', KEYS[1], pack('B', LAYOUT) .. table.concat(kept), 'PX', expire_after(last - now))
end
return count
