-- The moment of all that a script does.
--
-- ARGV[1] begins, in binary, little-endian, with the moment (8: microseconds, 0 for the server's time) and the least TTL
-- (4: milliseconds; 0, but for tests whose clock is not the server's).

local now, least_ttl, position = unpack('<I8I4', ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
