-- What every script begins with: names for what is used often.
--
-- Lua numbers are doubles: every integer up to 2^53 is exact, so every intermediate stays below that. Divisions of such
-- integers are exact too once rounded. Numbers go to the server as text, since it would print them with 17 digits, which
-- takes longer.

local call, try = redis.call, redis.pcall
local pack, unpack, format, spread = struct.pack, struct.unpack, string.format, _G.unpack
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local EXACT = 9007199254740992 -- 2^53
local MAX = 4503599627370496 -- 2^52: the longest span, the largest stored number

local SECOND = 1000000
-- The layout of the stored values. Another one is never read as if it were this.
local LAYOUT = 1
