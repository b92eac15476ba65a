-- What the script is asked and what it answers. The twin of wire.rs.
--
-- A list of decisions, each a list of limits, asked so many times in a row: each time all limits are charged, or none.
--
-- KEYS: the key of each limit, in order.
-- ARGV[1] goes on with the number of runs (2), in each of which decisions ask the same of different keys; then for each run:
--   number of decisions (2), whether all of their keys differ (1: 0 or 1), operation (1: 0 check, 1 peek, 2 reset), number of
--   limits (1), times (2); then for each limit:
--   algorithm (1; 128 more for a block, which is asked for like the others and never charged: not the first limit), cost (8), and
--   three numbers (8 each): capacity, thousandths and microseconds of the rate; or limit, window and, of a fixed window, where
--   periods begin (see counted.lua), else 0.
-- Reply, a string in binary, little-endian: the moment of the decisions (8: microseconds); then for each decision: how many
--   of the times were granted, which are the first ones (2); how each limit was found (1 each: 0 readable, 1 a value of another
--   type, 2 an unknown layout); then, unless one of them is not readable or it is a reset, for each limit what its outcomes
--   follow from, the length first (1):
--     of a level, a counter window and a fixed window the value as it was stored, of no bytes if there was none;
--     of a sliding window numbers of 8 bytes: the permits in it before, microseconds until the cost fits after what was granted,
--     until nothing is used any more, until the state equals absence, and until a permit more fits.

local CHECK, RESET = 0, 2
local TOKEN_BUCKET, SLIDING_WINDOW, COUNTER_WINDOW, FIXED_WINDOW = 1, 3, 4, 5
-- How a limit was found.
local READABLE, WRONG_TYPE, UNKNOWN_LAYOUT = 0, 1, 2
-- A stored level; see level.lua.
local LEVEL, LEVEL_BYTES = '<BBI8I8I8I8I8', 42
-- What of it a charge moves, and where that begins.
local MOVING, MOVING_AT = '<I8I8I8I8', '10'
-- What a stored window begins with; see sliding_window.lua.
local HEADER, HEADER_BYTES, LAST_OF_HEADER = '<BBI4I4I4I4I7I7I7I7I7', 53, '52'

-- The count of a fixed window; see counted.lua.
local FIXED, FIXED_BYTES = '<BBI8I8I8', 26

local plan = ARGV[1]
