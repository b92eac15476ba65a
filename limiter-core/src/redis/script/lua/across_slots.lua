-- Start of the decision script for keys in several slots of a cluster node.
--
-- A node rejects a call that declares keys of several slots. The call therefore declares one key
-- and passes all keys as arguments; the server checks each key when a command uses it.
--
-- - KEYS[1]: one of the keys, by which the call is routed.
-- - ARGV[2] and the following: all keys.
--
-- Invariant: a decision about a key that the node does not serve changes nothing, and its reply has
-- the state 3 (see wire.lua). Tests: tests/cluster_batches.rs.
local KEYS = { unpack(ARGV, 2) }

