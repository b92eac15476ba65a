-- The clock of a script: all its steps use one moment.
--
-- The clocks of clients differ, so the server's time decides, unless a test injects a time.
--
-- ARGV[1] starts, in binary, little-endian, with the moment (8: microseconds, 0 for the server's
-- time) and the minimum TTL (4: milliseconds; nonzero only in tests with an injected clock).

local now, least_ttl, position = unpack('<I8I4', ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
