-- Token bucket and funnel: a quantity that changes at a rate. The twin of algorithm/level.rs.
--
-- The quantity is stored with its moment and brought forward on use. A remainder is stored instead
-- of a rounded quantity, so that frequent decisions lose nothing.
--
-- - Parameters: capacity in thousandths; rate as thousandths per microseconds (a reduced fraction).
-- - Stored, 42 bytes: layout (1), algorithm (1: 1 token bucket, 2 funnel), then as 8-byte integers:
--   parts of a thousandth; and the fields that a charge changes: amount in thousandths (a bucket's
--   tokens, negative in debt; a funnel's level), remainder in parts, moment in microseconds,
--   keep_until in microseconds. With active leases, 32 or 44 bytes more; see leased_level.lua.
-- - TTL: the key expires at the first multiple of a grain after keep_until, or later; from
--   keep_until on, the state equals absence. `expiry_grain` returns the grain for the time from the
--   moment to keep_until. A stored level therefore implies a time before which its key does not
--   expire, and a charge that implies no later time keeps the TTL.
--
-- Invariant: keep_until is not earlier than the refill under the policy of the last charge. A
-- charge that finds a later keep_until, of another policy version, extends it by its own refill
-- time. The value does not contain the rate of that version: if it is slower, its refill may end
-- later. Tests: tests/differential.rs.

-- Loads a level as of now: usage, remainder, keep_until, whether the stored moment is ahead of the
-- clock, and the value itself, false if absent. Returns the state of the key.
local function load_level(limit)
  local value = try('GET', limit.key)
  limit.value = value
  if not value then
    return READABLE
  end
  if #value == LEASED_BYTES or #value == STEADY_BYTES then
    return load_leased(limit)
  end
  if #value ~= LEVEL_BYTES then
    return failure_of(value, 'GET', limit.key)
  end
  local layout, algorithm, parts, amount, remainder, at, keep_until = unpack(SIGNED_LEVEL, value)
  if layout ~= LAYOUT or algorithm ~= limit.algorithm or not is_amount(algorithm, amount) or remainder >= parts or parts > MAX
    or at > keep_until or keep_until >= EXACT then
    return UNKNOWN_LAYOUT
  end
  if now >= keep_until then
    return READABLE
  end
  limit.ahead = now < at
  -- After a backward step of the clock, the whole state moves back.
  limit.keep_until = keep_until - max(0, at - now)
  local back
  back, remainder = accrue(limit.rate, limit.per, max(0, now - at), convert(remainder, parts, limit.per))
  local used = (algorithm == TOKEN_BUCKET and limit.capacity - amount or amount) - back
  if used > 0 then
    limit.used, limit.remainder = used, remainder
  end
  return READABLE
end

-- Charges the grants and stores the level; a denial stores only corrections. Returns the data for
-- the outcomes.
local function settle_level(limit, granted, _, keep)
  if limit.account then
    if keep then
      settle_leased(limit, granted)
    end
    return limit.value
  end
  local rate, per = limit.rate, limit.per
  if keep then
    local keep_until = limit.keep_until
    if granted > 0 and keep_until > now + time_for(rate, per, limit.used, limit.remainder) then
      -- Another version of the policy, larger or slower, keeps the state longer; the charge delays
      -- its refill too.
      keep_until = min(keep_until + granted * time_for(rate, per, limit.cost, 0), now + MAX)
    end
    local used = limit.used + granted * limit.cost
    keep_until = max(keep_until, now + time_for(rate, per, used, limit.remainder))
    if granted > 0 or (limit.value and (limit.ahead or keep_until > limit.keep_until)) then
      local amount = limit.algorithm == TOKEN_BUCKET and limit.capacity - used or used
      local value = pack(LEVEL, LAYOUT, limit.algorithm, per, amount, limit.remainder, now, keep_until)
      call('SET', limit.key, value, 'PX', ttl(keep_until, (expiry_grain(keep_until - now))))
    end
  end
  return limit.value or ''
end
