-- Counts the replicas that share the limits of a namespace. A script of its own.
--
-- KEYS[1]: the register.
-- ARGV[1], binary, little-endian: now (8: microseconds, 0 for the server's time), least TTL in milliseconds (4), the
--   replica's id (8), how long it counts from now on (8: microseconds, 0 when it leaves).
-- Reply: the number of replicas, at most MAX_REPLICAS.
-- Stored: layout (1), then for each replica its id (8) and the moment until which it counts (8: microseconds).
-- TTL: until the last of them counts no more.

local MAX_REPLICAS = 1024
local LONGEST_LIFE = 60000000

local now, least_ttl, position = unpack('<I8I4', ARGV[1])
local id = string.sub(ARGV[1], position, position + 7)
local life = unpack('<I8', ARGV[1], position + 8)
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local register, failure = read('GET', KEYS[1])
if failure then
  return redis.error_reply('WRONGTYPE the register of replicas holds a value of another type')
end
local kept, count, last = {}, 0, now
local function keep(replica, untl)
  count = count + 1
  kept[count] = replica .. pack('<I8', untl)
  last = max(last, untl)
end

if life > 0 then
  keep(id, now + life)
end
-- A register of another layout is begun anew: the others beat again soon.
if register and string.byte(register) == LAYOUT then
  for at = 2, #register - 15, 16 do
    local replica, untl = string.sub(register, at, at + 7), unpack('<I8', register, at + 8)
    -- None counts for much longer than the others: a clock that stepped back leaves none behind.
    if replica ~= id and untl > now and untl <= now + LONGEST_LIFE and count < MAX_REPLICAS then
      keep(replica, untl)
    end
  end
end

if count == 0 then
  call('DEL', KEYS[1])
else
  local ttl = max(least_ttl, floor((last - now + 999) / 1000) + 1)
  call('SET', KEYS[1], pack('B', LAYOUT) .. table.concat(kept), 'PX', ttl)
end
return count
