-- Usage of all processes of a namespace, by minute. A script of its own.
--
-- Each process adds numbered reports to the hashes of a minute. Counts are summed. The denied keys
-- of a policy are bounded by a space-saving sketch: see usage_counters/denied_keys.rs.
--
-- - KEYS: to read, hashes of minutes; to add, the hash of a minute and that of the minute before.
-- - ARGV[1] continues with the operation (1: 0 read, 1 add counts, 2 add denied keys).
--   - To read: for each key its known version (8, 0 for none).
--   - To add: the TTL (4: milliseconds), the id of the process (8), the number of its report (8),
--     which is higher than that of its report before, and then, until the end:
--     - counts: the length (2) and the text of a field, and its two numbers (6, 6);
--     - denied keys: the length (2) and the name of a policy, the denials of an absent key (8), the
--       number of keys (1), and each key as it is stored.
-- - Reply: to read, for each key the fields and values of its hash; nothing if the version is the
--   known one, or if MAX_CHANGED changed hashes precede it. To add: the number of processes that
--   reported in this minute or in the one before, the higher one; -1 for a hash of another layout.
-- - Stored: a hash with the fields `#layout` (2), `#version` (the number of reports), `#processes`
--   (the number of processes), `@` and the id of a process (its last report, so that a report that
--   is sent again is not counted again), and
--   - counts: the number of a pair of outcomes (one digit), the length of the app (1), the app, the
--     policy: the two counts (6, 6);
--   - denied keys: `#policies` (their number), and `p` and the policy: the largest number of
--     denials of an absent key (8), then for each key its denials (8), their error (8), the times
--     of the first and the last one (8, 8: microseconds), the revision of the registry (8), the
--     origin (1), the lengths of key and app (2, 2), key and app.
-- - TTL: from the first report.
--
-- Invariant: a report that is sent again is counted once. Tests: tests/usage.rs.

local READ, ADD_COUNTS = 0, 1
local USAGE_LAYOUT = 2
local MAX_CHANGED = 4
local MAX_KEYS, MAX_POLICIES = 20, 24
local ENTRY, ENTRY_BYTES = '<I8I8I8I8I8BI2I2', 45

local input = ARGV[1]
local operation, at = string.byte(input, position), position + 1

if operation == READ then
  local hashes, changed = {}, 0
  for index, key in ipairs(KEYS) do
    local known
    known, at = unpack('<I8', input, at)
    hashes[index] = {}
    if changed < MAX_CHANGED then
      local version = try('HGET', key, '#version')
      -- The user of Redis may lack the permission.
      if type(version) == 'table' and version.err then
        return version
      end
      if type(version) == 'string' and tonumber(version) ~= known then
        hashes[index] = call('HGETALL', key)
        changed = changed + 1
      end
    end
  end
  return hashes
end

local function read_keys(text, from, count)
  local keys = {}
  while #keys < count and from <= #text do
    local denials, err, first, last, revision, origin, key_bytes, app_bytes = unpack(ENTRY, text, from)
    local name_at = from + ENTRY_BYTES
    from = name_at + key_bytes + app_bytes
    keys[#keys + 1] = {
      denials = denials, err = err, first = first, last = last, revision = revision, origin = origin,
      lengths = pack('<I2I2', key_bytes, app_bytes), names = string.sub(text, name_at, from - 1),
    }
  end
  return keys, from
end

-- Adds the denials of one process to a sketch.
local function add_key(keys, added)
  local least
  for _, known in ipairs(keys) do
    if known.names == added.names and known.lengths == added.lengths then
      known.denials = known.denials + added.denials
      known.err = known.err + added.err
      known.first = min(known.first, added.first)
      if added.last >= known.last then
        known.last, known.origin, known.revision = added.last, added.origin, added.revision
      end
      return
    end
    if not least or known.denials < least.denials then
      least = known
    end
  end
  if #keys < MAX_KEYS then
    keys[#keys + 1] = added
    return
  end
  added.denials, added.err = added.denials + least.denials, added.err + least.denials
  for name, value in pairs(added) do
    least[name] = value
  end
end

local function write_keys(absent, keys)
  local parts = { pack('<I8', absent) }
  for index, key in ipairs(keys) do
    parts[index + 1] = pack('<I8I8I8I8I8B', key.denials, key.err, key.first, key.last, key.revision, key.origin)
      .. key.lengths .. key.names
  end
  return table.concat(parts)
end

local hash = KEYS[1]
local ttl
ttl, at = unpack('<I4', input, at)
local process = '@' .. string.sub(input, at, at + 7)
local report
report, at = unpack('<I8', input, at + 8)

local head = try('HMGET', hash, '#layout', process, '#processes', '#policies')
if head.err then
  return head
end
if head[1] and tonumber(head[1]) ~= USAGE_LAYOUT then
  return -1
end
local processes, policies = tonumber(head[3] or 0), tonumber(head[4] or 0)
local function fleet()
  return max(processes, tonumber(try('HGET', KEYS[2], '#processes')) or 0)
end
if report <= tonumber(head[2] or 0) then
  return fleet()
end
if not head[2] then
  processes = processes + 1
end

-- One HMGET and one HSET take half the time of HINCRBY for each count.
local function add_counts()
  local fields, one, other, count = {}, {}, {}, 0
  while at <= #input do
    count = count + 1
    fields[count], one[count], other[count], at = unpack('<I2c0I6I6', input, at)
  end
  if count == 0 then
    return
  end
  local stored, pairs_of_counts = call('HMGET', hash, spread(fields)), {}
  for index = 1, count do
    local first, second = one[index], other[index]
    if stored[index] then
      local stored_first, stored_second = unpack('<I6I6', stored[index])
      first, second = first + stored_first, second + stored_second
    end
    pairs_of_counts[2 * index - 1] = fields[index]
    pairs_of_counts[2 * index] = pack('<I6I6', first, second)
  end
  call('HSET', hash, spread(pairs_of_counts))
end

-- Adds the denied keys of one policy.
local function add_denied()
  local policy, absent, count, added
  policy, absent, count, at = unpack('<I2c0I8B', input, at)
  added, at = read_keys(input, at, count)
  local field = 'p' .. policy
  local stored = call('HGET', hash, field)
  local keys = {}
  if stored then
    absent = absent + unpack('<I8', stored)
    keys = read_keys(stored, 9, MAX_KEYS)
  elseif policies < MAX_POLICIES then
    policies = policies + 1
  else
    return
  end
  for _, key in ipairs(added) do
    add_key(keys, key)
  end
  call('HSET', hash, field, write_keys(absent, keys))
end

if operation == ADD_COUNTS then
  add_counts()
else
  while at <= #input do
    add_denied()
  end
end

call('HSET', hash, '#layout', USAGE_LAYOUT, process, format('%d', report), '#processes', processes, '#policies', policies)
call('HINCRBY', hash, '#version', 1)
if not head[1] then
  call('PEXPIRE', hash, max(ttl, least_ttl))
end
return fleet()
