-- Stores the policy registry of a namespace. A script of its own.
--
-- Several programs may publish at the same time. A publisher names the revision that it has read,
-- and the script replaces only this revision and announces the new one.
--
-- - KEYS[1]: the key of the registry.
-- - ARGV[1] continues with the revision to replace (8), 0 for none, another revision (8) that the
--   new one has to exceed, and the text.
-- - Reply: the stored revision, 0 without a registry, -1 for a text without a revision, -2 for a
--   revision beyond the range; then the new revision, 0 if the stored revision is not the one to
--   replace, -1 if no higher revision exists.
-- - Stored: the text. Its first line is `revision = N`, ended by LF, CR LF or the end of the text
--   (`text.rs` parses it in the same way). N is the server's time in milliseconds or the previous
--   revision plus 1, so that it increases even after a loss of data.
-- - TTL: none.
--
-- Invariant: a text replaces only the revision that its publisher has read, and its own revision is
-- higher.

-- Upper bound of exact integers.
local MAX_REVISION = 9007199254740991
local MAX_DIGITS = 16

local function is_error(reply)
  return type(reply) == 'table'
end

local given, least = unpack('<I8I8', ARGV[1], position)
-- The maximum length of the first line, up to its LF.
local line = try('GETRANGE', KEYS[1], '0', tostring(MAX_DIGITS + 12))
if is_error(line) then
  return redis.error_reply('WRONGTYPE the registry key holds a value of another type')
end
local digits = string.match(line, '^revision = (%d+)\r?\n') or string.match(line, '^revision = (%d+)\r?$')
local found = 0
if digits and (#digits > MAX_DIGITS or tonumber(digits) > MAX_REVISION) then
  found = -2
elseif digits then
  found = tonumber(digits)
end
if found == 0 and line ~= '' then
  found = -1
end

if max(found, 0) ~= given then
  return { format('%d', found), '0' }
end
local new = max(given + 1, least + 1, floor(now / 1000))
if new > MAX_REVISION then
  return { format('%d', found), '-1' }
end
new = format('%d', new)
call('SET', KEYS[1], 'revision = ' .. new .. '\n' .. string.sub(ARGV[1], position + 16))
-- Without the permission to publish, subscribers find the change by polling.
try('PUBLISH', KEYS[1], new)
return { format('%d', found), new }
