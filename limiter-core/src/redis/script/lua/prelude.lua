-- Start of every script: local names of frequently used functions, and constants.
--
-- Lua numbers are doubles: integers are exact up to 2^53, so all intermediate results stay below.
-- Rounded quotients of such integers are exact too. Numbers are sent to the server as text, since
-- the server would format them with 17 digits, which takes longer.

local call, try = redis.call, redis.pcall
local pack, unpack, format, spread = struct.pack, struct.unpack, string.format, _G.unpack
local floor, ceil, max, min, frexp = math.floor, math.ceil, math.max, math.min, math.frexp

local EXACT = 9007199254740992 -- 2^53
local MAX = 4503599627370496 -- 2^52: the longest span, the largest stored number

local SECOND = 1000000
-- Below this life, the grain of the expiry of a level is a second; see `expiry_grain`.
local BRIEF = 32 * SECOND
-- The layout version of the stored values. Values of another version are rejected.
local LAYOUT = 1

-- Returns the grain of the expiry of a level whose usage ends `life` after its last charge: it
-- expires at a multiple of the grain. From 32 seconds on, it is a power of two in seconds, and more
-- than a thirty-second and at most a sixteenth of the life. Also returns the least life with this
-- grain, and the least life with the next one.
local function expiry_grain(life)
  if life < BRIEF then
    return SECOND, 0, BRIEF
  end
  local _, exponent = frexp(life / BRIEF)
  local grain = SECOND * 2 ^ exponent
  return grain, 16 * grain, 32 * grain
end
