-- The lease of a named holder on a level. A script of its own.
--
-- A holder uses leased permits without a call and reports its usage with the next renewal. The
-- report may be sent again after a lost reply. Each renewal therefore increases the epoch of the
-- record and names the epoch that it renews.
--
-- - KEYS[1]: the limit's key, KEYS[2]: the record of the holder. Without a key, the script does
--   nothing and returns an empty string.
-- - ARGV[1] continues with: operation (1: 0 read, 1 renew), algorithm (1), three numbers (8 each:
--   parameters of the limit as in wire.lua), the epoch of the record to renew (8: 0: none), the
--   spent amount (8: thousandths), the steady rate from now on (8: millionths of the rate), the
--   held and wanted amounts (8 each: thousandths), the lifetime of the lease (8: microseconds);
--   then the data of the holder.
-- - Stored in the record: layout (1: 2), epoch of the record (8), leased amount (8: thousandths),
--   end (8: microseconds), number of the level's epoch (4), steady rate (4); then the data. TTL:
--   until the end of the second of its end.
-- - Reply, a string in binary, little-endian: the moment (8: microseconds); state of the key (1,
--   see wire.lua); then, if it is readable, whether the record was renewed (1), and the record
--   after the call: epoch (8: 0 without a record), leased amount (8), end (8); then the data.
--
-- Invariants: a record of another epoch is not renewed, so a repeated report is counted once; and
-- the remaining and the leased permits never exceed the capacity. Tests: tests/holder_leases.rs.

local RECORD_LAYOUT, RECORD, RECORD_BYTES = 2, '<BI8I8I8I4I4', 33
-- The part of the remaining permits that stays for other calls: one of this number.
local UNLEASED = 8

if not KEYS[1] then
  return ''
end
local operation, algorithm, capacity, rate, per, expected, spent, steady, held, wanted, lifetime, values =
  unpack('<BBI8I8I8I8I8I8I8I8I8', plan, position)
local limit = { key = KEYS[1], algorithm = algorithm, capacity = capacity, rate = rate, per = per }

local epoch, leased, ends_at, number, recorded_steady, data = 0, 0, 0, 0, 0, ''
local stored = try('GET', KEYS[2])
if type(stored) == 'table' then
  return pack('<I8B', now, failure_of(stored, 'GET', KEYS[2]))
end
if stored then
  if #stored < RECORD_BYTES or string.byte(stored) ~= RECORD_LAYOUT then
    return pack('<I8B', now, UNKNOWN_LAYOUT)
  end
  local _
  _, epoch, leased, ends_at, number, recorded_steady = unpack(RECORD, stored)
  data = string.sub(stored, RECORD_BYTES + 1)
  if ends_at <= now then
    epoch, leased, ends_at, recorded_steady, data = 0, 0, 0, 0, ''
  end
end
local renewed = 0

if operation == 1 and epoch == expected then
  local value = try('GET', limit.key)
  local found = load_account(limit, value)
  if found ~= READABLE then
    return pack('<I8B', now, found)
  end
  local account = limit.account

  local function chargeable()
    return max(0, MAX - max(0, refillable(limit, account)) - leased_total(account))
  end

  -- The spent part of the lease counts as used, and the rest returns.
  local reported = min(spent, leased)
  local changed = apply_report(limit, reported, leased - reported, number, recorded_steady)
  local charged = min(spent - reported, chargeable())
  charge_account(limit, charged)

  local rest = max(0, remaining(limit, account) - held)
  local leasable = rest - floor(rest / (UNLEASED * 1000)) * 1000
  local amount = min(held + min(max(0, wanted - held), leasable), chargeable())
  if amount > 0 then
    if leased_total(account) == 0 then
      account.current, account.previous, account.steady, account.steady_before, account.fraction = 0, 0, 0, 0, 0
      account.since, account.epoch, account.number = account.at, lifetime, account.at % 4294967296
    end
    account.epoch = max(account.epoch, lifetime)
    if algorithm == TOKEN_BUCKET then
      account.amount = account.amount - amount
    end
    account.current = account.current + amount
    account.steady = min(account.steady + steady, 4294967295)
  end
  settle_account(limit, charged + amount, 1, changed or charged > 0 or amount > 0, true)

  epoch, renewed = max(epoch + 1, epoch == 0 and now or 0), 1
  leased, ends_at, number, data = amount, now + lifetime, amount > 0 and account.number or 0, string.sub(plan, values)
  recorded_steady = amount > 0 and steady or 0
  local record = pack(RECORD, RECORD_LAYOUT, epoch, leased, ends_at, number, recorded_steady)
  call('SET', KEYS[2], record .. data, 'PX', ttl(ends_at))
end

return pack('<I8BBI8I8I8', now, READABLE, renewed, epoch, leased, ends_at) .. data
