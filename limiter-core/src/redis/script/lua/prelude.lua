-- Start of every script: local names of frequently used functions, and constants.
--
-- Lua numbers are doubles: integers are exact up to 2^53, so all intermediate results stay below.
-- Rounded quotients of such integers are exact too. Numbers are sent to the server as text, since
-- the server would format them with 17 digits, which takes longer.

local call, try = redis.call, redis.pcall
local pack, unpack, format, spread = struct.pack, struct.unpack, string.format, _G.unpack
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local EXACT = 9007199254740992 -- 2^53
local MAX = 4503599627370496 -- 2^52: the longest span, the largest stored number

local SECOND = 1000000
-- The layout version of the stored values. Values of another version are rejected.
local LAYOUT = 1
