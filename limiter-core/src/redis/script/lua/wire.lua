-- Request and reply of the decision script. The twin of wire.rs.
--
-- A request is a list of decisions. Each decision has a list of limits and a number of repetitions;
-- each repetition charges all limits or none.
--
-- - KEYS: the key of each limit, in order.
-- - ARGV[1] continues with the number of runs (2). A run groups decisions that differ only in their
--   keys. For each run: number of decisions (2), whether all their keys differ (1: 0 or 1),
--   operation (1: 0 check, 1 peek, 2 reset), number of limits (1), repetitions (2); then for each
--   limit: algorithm (1; plus 128 for a block, which is checked and never charged; never the first
--   limit), cost (8), and three numbers (8 each): capacity, thousandths and microseconds of the
--   rate; or limit, window and, for a fixed window, the start of its periods (see
--   counted_windows.lua), else 0.
-- - Reply, a string in binary, little-endian: the moment of the decisions (8: microseconds); then
--   for each decision: number of granted repetitions, which are the first ones (2); state of each
--   limit's key (1 each: 0 readable, 1 a value of another type, 2 an unknown layout, 3 only in a
--   call across slots, if this node does not serve the key); then, unless a key is unreadable or
--   the operation is a reset, for each limit the data for its outcomes, preceded by its length (1).
--   For a level, a counter window and a fixed window: the stored value before the decision, empty
--   if there was none. For a sliding window, numbers of 8 bytes: permits in the window before;
--   microseconds until the cost fits after the grants, until the usage is zero, until the state
--   equals absence, and until one more permit fits.

local CHECK, RESET = 0, 2
local TOKEN_BUCKET, SLIDING_WINDOW, COUNTER_WINDOW, FIXED_WINDOW = 1, 3, 4, 5
-- State of a limit's key.
local READABLE, WRONG_TYPE, UNKNOWN_LAYOUT, ELSEWHERE = 0, 1, 2, 3
-- A stored level; see level.lua.
local LEVEL, LEVEL_BYTES = '<BBI8I8I8I8I8', 42
-- The fields that a charge changes, and their offset.
local MOVING, MOVING_AT = '<I8I8I8I8', '10'
-- Start of a stored window; see sliding_window.lua.
local HEADER, HEADER_BYTES, LAST_OF_HEADER = '<BBI4I4I4I4I7I7I7I7I7', 53, '52'

-- The count of a fixed window; see counted_windows.lua.
local FIXED, FIXED_BYTES = '<BBI8I8I8', 26

local plan = ARGV[1]
