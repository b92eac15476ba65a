-- Usage reports of leases on a level. The twin of `apply_report` in algorithm/leased_level.rs.
--
-- A report states the spent and the returned amount of a grant, and the epoch of the grant. No
-- decision applies a report, so only the scripts of leases include this file.
--
-- Invariant: a report changes nothing if its epoch already counts as used. Tests: tests/leases.rs,
-- tests/holder_leases.rs, tests/differential.rs.

-- Shortens the life of an account after a report: no later end of the lease delays the refill, and
-- returned permits delay it under no policy version.
local function shorten_life(meter, returned)
  local account = meter.account
  local idle_at = now + time_until(meter, account)
  local keep_until = idle_at
  if meter.others then
    keep_until = max(idle_at, account.keep_until - time_for(meter.rate, meter.per, returned, 0))
  end
  account.keep_until, meter.others = keep_until, keep_until > idle_at
end

-- Applies a report of a grant, for which `steady` millionths of the rate were reserved. Returns
-- whether it changed an amount of the account.
local function apply_report(meter, spent, returned, number, steady)
  local account = meter.account
  local ago = (account.number - number) % 4294967296
  local granted = ago == 0 and 'current' or ago == 1 and 'previous'
  if not granted then
    return false
  end
  returned = min(returned, account[granted])
  spent = min(spent, account[granted] - returned)
  account[granted] = account[granted] - returned - spent
  account.amount = account.amount + (meter.algorithm == TOKEN_BUCKET and returned or spent)
  refill(meter, account, 0, account.remainder)
  local rate = granted == 'current' and 'steady' or 'steady_before'
  account[rate] = max(0, account[rate] - steady)
  if returned + spent == 0 then
    return false
  end
  shorten_life(meter, returned)
  return true
end
