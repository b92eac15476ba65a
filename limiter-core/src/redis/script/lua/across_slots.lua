-- Start of the decision script for keys in several slots of a cluster node. KEYS[1] is one of them,
-- by which the call is routed. ARGV[2] and the following name all keys.
local KEYS = { unpack(ARGV, 2) }

