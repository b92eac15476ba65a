-- Takes the decisions of the plan, one after the other.

local decisions
decisions, position = unpack('<I2', plan, position)
-- The pieces of the reply; heads of answers, by what they say; how many keys have been used.
local out, filled, heads, key = { pack('<I8', now) }, 1, {}, 0
local decide_one, decide_all

for _ = 1, decisions do
  local operation, count, times, algorithm, cost, capacity, rate, per, after = unpack('<BBI2BI8I8I8I8', plan, position)
  local name = KEYS[key + 1]
  local granted, told
  local found = READABLE

  -- A charge of one level, by one policy and with numbers of common size, is what most decisions are. It is made here, since
  -- tables and calls of functions take as long as all of its arithmetic. Whatever is unlike that leaves this block, to be
  -- decided by `decide_one`, which would do the same. A single decision gains a quarter by it, many at once a fifth.
  repeat
    if count > 1 or operation ~= CHECK or cost == 0 or algorithm == SLIDING_WINDOW then
      break
    end
    local value = try('GET', name)
    local used, remainder, keep_until = 0, 0, now
    if value then
      if #value ~= LEVEL_BYTES then
        break
      end
      local layout, stored, amount, rest, parts, at, kept = unpack(LEVEL, value)
      local come = (now - at) * rate + rest
      if layout ~= LAYOUT or stored ~= algorithm or amount > MAX or rest >= parts or parts ~= per or at > now
        or at > kept or kept > EXACT or come >= EXACT then
        break
      end
      if now < kept then
        local back = floor(come / per)
        used = (algorithm == TOKEN_BUCKET and capacity - amount or amount) - back
        remainder, keep_until = come - back * per, kept
        if used <= 0 then
          used, remainder = 0, 0
        end
      end
    end
    local fits = max(0, min(times, floor((capacity - used) / cost)))
    local missing = used * per - remainder
    used = used + fits * cost
    local product = used * per
    -- Where it is kept for longer than this policy needs, it is kept for another one.
    if product >= EXACT or (keep_until - now - 1) * rate >= missing then
      break
    end
    local untl = max(keep_until, now + ceil((product - remainder) / rate))
    if fits > 0 or (value and untl > keep_until) then
      local amount = algorithm == TOKEN_BUCKET and capacity - used or used
      local life = format('%d', max(least_ttl, floor((untl - now + 999) / 1000) + 1))
      call('SET', name, pack(LEVEL, LAYOUT, algorithm, amount, remainder, per, now, untl), 'PX', life)
    end
    granted, told = fits, value or ''
  until true

  if not granted then
    if not decide_one then
      decide_one, decide_all = new_deciders(now, least_ttl)
    end
    if count == 1 and operation ~= RESET then
      granted, found, told = decide_one(operation, times, name, algorithm, cost, capacity, rate, per)
    end
  end
  filled = filled + 1
  if granted then
    key, position = key + 1, after
    if found == READABLE then
      local says = granted * 256 + #told
      local head = heads[says]
      if not head then
        head = pack('<I2BB', granted, READABLE, #told)
        heads[says] = head
      end
      out[filled], out[filled + 1] = head, told
      filled = filled + 1
    else
      out[filled] = pack('<I2B', 0, found)
    end
  else
    out[filled], position, key = decide_all(after, key, count, operation, times, algorithm, cost, capacity, rate, per)
  end
end

return table.concat(out)
