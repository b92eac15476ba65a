-- Keeps the book of policies of a namespace. A script of its own.
--
-- KEYS[1]: the book.
-- ARGV[1] goes on with the operation (1: 0 read, 1 publish) and a revision (8): to read, the one that is known, of which nothing
--   is told again; to publish, the one that is replaced, 0 for none. To publish, then another one (8) that the new one has to
--   exceed, and the text.
-- Reply: the revision that was found, 0 where there is no book, -1 where it does not say which it has, -2 where that is too
--   high; then, to read, the text as it is stored if its revision is a later one, else an empty one; to publish, the new revision, 0 if another was found than the one
--   to be replaced, -1 if there is none that is higher.
-- Stored: the text, of which the first line is `revision = N`, ended by LF, CR LF or the text (`text.rs` reads it so too). N is the server's time in milliseconds, or one more than the last, so
--   that it is a later one also where the last was lost.
-- TTL: none, since it is no state that ends.

local PUBLISH = 1
-- Higher ones would not be exact.
local MOST = 9007199254740991
local MOST_DIGITS = 16

local function is_error(reply)
  return type(reply) == 'table'
end

local operation, given = unpack('<BI8', ARGV[1], position)
-- As much as such a line may have, up to its LF.
local line = try('GETRANGE', KEYS[1], '0', tostring(MOST_DIGITS + 12))
if is_error(line) then
  return redis.error_reply('WRONGTYPE the book holds a value of another type')
end
local digits = string.match(line, '^revision = (%d+)\r?\n') or string.match(line, '^revision = (%d+)\r?$')
local found = 0
if digits and (#digits > MOST_DIGITS or tonumber(digits) > MOST) then
  found = -2
elseif digits then
  found = tonumber(digits)
end
if found == 0 and line ~= '' then
  found = -1
end

if operation == PUBLISH then
  local least = unpack('<I8', ARGV[1], position + 9)
  if max(found, 0) ~= given then
    return { format('%d', found), '0' }
  end
  local new = max(given + 1, least + 1, floor(now / 1000))
  if new > MOST then
    return { format('%d', found), '-1' }
  end
  new = format('%d', new)
  call('SET', KEYS[1], 'revision = ' .. new .. '\n' .. string.sub(ARGV[1], position + 17))
  -- Who may not do so need not: the others look by themselves.
  try('PUBLISH', KEYS[1], new)
  return { format('%d', found), new }
end
local text = ''
if found > given then
  text = call('GET', KEYS[1]) or ''
end
return { format('%d', found), text }
