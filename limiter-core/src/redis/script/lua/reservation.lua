-- Keeps a detached reservation until it is settled. A script of its own.
--
-- Any node may settle a reservation. A claim returns the charges and marks the record as settled
-- before the caller changes the limits.
--
-- - KEYS[1]: the record.
-- - ARGV[1] continues with: operation (1: 0 store, 1 claim); to store, the lifetime (8:
--   microseconds) and the charges (the rest).
-- - Reply, a string in binary, little-endian: the moment (8: microseconds), the state of the record
--   (1: 0 absent or expired, 1 unsettled, 2 settled, 3 not a record); then, after a claim of an
--   unsettled record, the charges.
-- - Stored: layout (1), state (1: 1 unsettled, 2 settled), the moment of expiry (8: microseconds);
--   then, while the record is unsettled, the charges.
-- - TTL: until it expires.
--
-- Invariant: at most one claim returns the charges. Tests: tests/detached.rs.

local STORE = 0
local ABSENT, UNSETTLED, SETTLED, UNREADABLE = 0, 1, 2, 3
local HEADER = 10

local key, plan = KEYS[1], ARGV[1]
local operation = string.byte(plan, position)

local function put(state, ends, kept)
  local ttl = max(least_ttl, floor((ends - now + 999) / 1000) + 1)
  call('SET', key, pack('<BBI8', LAYOUT, state, ends) .. kept, 'PX', format('%d', ttl))
end

if operation == STORE then
  put(UNSETTLED, now + unpack('<I8', plan, position + 1), string.sub(plan, position + 9))
  return pack('<I8B', now, UNSETTLED)
end
local record = try('GET', key)
if type(record) == 'table' then
  if string.find(record.err, 'WRONGTYPE', 1, true) then
    return pack('<I8B', now, UNREADABLE)
  end
  return record
end
if not record then
  return pack('<I8B', now, ABSENT)
end
if #record < HEADER or string.byte(record) ~= LAYOUT then
  return pack('<I8B', now, UNREADABLE)
end
local _, state, ends = unpack('<BBI8', record)
if ends <= now then
  return pack('<I8B', now, ABSENT)
end
if state == UNSETTLED then
  put(SETTLED, ends, '')
  return pack('<I8B', now, UNSETTLED) .. string.sub(record, HEADER + 1)
end
return pack('<I8B', now, SETTLED)
