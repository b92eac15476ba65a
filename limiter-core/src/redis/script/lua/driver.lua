-- Executes the decisions of the plan in order.
--
-- A call contains up to 64 decisions, and the overhead of a command exceeds its execution time. The
-- parameters of a run are therefore read once, and its values by one command if no decision depends
-- on the writes of another. Frequent decisions are made here or by a fast path, the others by
-- decide.lua.
--
-- Invariant: the result of a decision does not depend on its path, nor on the other decisions of
-- the call except by their charges. Tests: tests/differential.rs, tests/dispatcher.rs.

local runs
runs, position = unpack('<I2', plan, position)
-- Parts of the reply; cached heads of replies; number of used keys.
local out, filled, heads, key = { pack('<I8', now) }, 1, {}, 0
-- The grain of the expiry of levels, and the lives that have it; see `expiry_grain`.
local grain, shortest, longest = SECOND, 0, BRIEF
local decide_one, decide_all, load_window, settle_window, read_limits, decide_several

for _ = 1, runs do
  local decisions, differ, operation, count, times, algorithm, cost, capacity, rate, per, after =
    unpack('<I2BBBI2BI8I8I8I8', plan, position)
  local is_plain = count == 1 and operation == CHECK and cost > 0
  local is_window = is_plain and algorithm == SLIDING_WINDOW
  local is_fixed = is_plain and algorithm == FIXED_WINDOW
  is_plain = is_plain and algorithm < SLIDING_WINDOW

  local is_several, has_window, limits_at = operation == CHECK and (count > 1 or algorithm == COUNTER_WINDOW), false, after
  if (is_several or is_window) and not load_window then
    load_window, settle_window = new_window_deciders(now, least_ttl)
  end
  if is_several then
    if not read_limits then
      read_limits, decide_several = new_several_deciders(now, least_ttl, load_window, settle_window)
    end
    after, is_several, has_window = read_limits(count, after, algorithm, cost, capacity, rate, per)
  end

  -- Reads all values with one command if no decision of the run depends on the writes of another:
  -- the call overhead of a command exceeds its execution time.
  local values = (is_plain or is_fixed or is_several) and differ == 1 and decisions > 1
    and call('MGET', spread(KEYS, key + 1, key + decisions * count))

  for number = 1, decisions do
    local name = KEYS[key + 1]
    local granted, data
    local found = READABLE

    -- Fast path for a charge of one level with plain numbers, the most frequent decision. Inlined
    -- without tables and function calls, which take as long as the arithmetic (x - x % 1 rounds x
    -- down, x + -x % 1 rounds up). All other cases leave this block and are decided by
    -- `decide_one`, with the same result.
    repeat
      if not is_plain then
        break
      end
      local value
      if values then
        value = values[number]
      else
        value = try('GET', name)
      end
      local used, remainder, keep_until, lasts = 0, 0, now, -1
      if value then
        if #value ~= LEVEL_BYTES then
          break
        end
        local layout, stored, parts, amount, rest, at, kept = unpack(LEVEL, value)
        local come = (now - at) * rate + rest
        if layout ~= LAYOUT or stored ~= algorithm or amount > MAX or rest >= parts or parts ~= per or at > now
          or at > kept or kept >= EXACT or come >= EXACT then
          break
        end
        local life = kept - at
        if life < shortest or life >= longest then
          grain, shortest, longest = expiry_grain(life)
        end
        lasts = kept - kept % grain + grain
        if now < kept then
          local back = come / per
          back = back - back % 1
          used = (algorithm == TOKEN_BUCKET and capacity - amount or amount) - back
          remainder, keep_until = come - back * per, kept
          if used <= 0 then
            used, remainder = 0, 0
          end
        end
      end
      local fits = (capacity - used) / cost
      fits = fits - fits % 1
      if fits > times then
        fits = times
      elseif fits < 0 then
        fits = 0
      end
      local missing = used * per - remainder
      used = used + fits * cost
      local product = used * per
      -- A longer keep_until belongs to another version of the policy.
      if product >= EXACT or (keep_until - now - 1) * rate >= missing then
        break
      end
      local idle_in = (product - remainder) / rate
      if idle_in > MAX then
        break
      end
      local untl = now + (idle_in + -idle_in % 1)
      if untl < keep_until then
        untl = keep_until
      end
      if fits > 0 or (value and untl > keep_until) then
        local amount = algorithm == TOKEN_BUCKET and capacity - used or used
        local life = untl - now
        if life < shortest or life >= longest then
          grain, shortest, longest = expiry_grain(life)
        end
        local ends = untl - untl % grain + grain
        if ends <= lasts then
          -- The key already lives until then.
          call('SETRANGE', name, MOVING_AT, pack(MOVING, amount, remainder, now, untl))
        else
          life = (ends - now + 999) / 1000
          life = life - life % 1 + 1
          local level = pack(LEVEL, LAYOUT, algorithm, per, amount, remainder, now, untl)
          local ttl = format('%d', life > least_ttl and life or least_ttl)
          if value or not values then
            call('SET', name, level, 'PX', ttl)
          elseif not call('SET', name, level, 'PX', ttl, 'NX') then
            -- A value of another type, which MGET reports as absent.
            break
          end
        end
      end
      granted, data = fits, value or ''
    until true

    if is_window then
      granted, data = settle_window(name, cost, capacity, rate, load_window(name, times, cost, capacity, rate))
    end

    -- Fast path for a charge of one fixed window.
    repeat
      if not is_fixed then
        break
      end
      local value
      if values then
        value = values[number]
      else
        value = try('GET', name)
      end
      local used, ends = 0, 0
      if value then
        if #value ~= FIXED_BYTES then
          break
        end
        local layout, stored, count, at, untl = unpack(FIXED, value)
        -- A later end belongs to a period of another policy version, or the clock stepped back.
        if layout ~= LAYOUT or stored ~= FIXED_WINDOW or count > MAX or at > now or untl > now + rate or at > untl then
          break
        end
        if now < untl then
          used, ends = count, untl
        end
      end
      local fits = (capacity - used) / cost
      fits = fits - fits % 1
      if fits > times then
        fits = times
      elseif fits < 0 then
        fits = 0
      end
      if fits > 0 then
        used = used + fits * cost
        if ends > 0 then
          -- The key already lives until the end of the period.
          call('SETRANGE', name, '2', pack('<I8I8', used, now))
        else
          if per == 0 then
            ends = now + rate
          elseif per <= rate then
            ends = now + rate - (now + rate - (per - 1)) % rate
          else
            break
          end
          local life = (ends - ends % SECOND + SECOND - now + 999) / 1000
          life = life - life % 1 + 1
          local count = pack(FIXED, LAYOUT, FIXED_WINDOW, used, now, ends)
          local ttl = format('%d', life > least_ttl and life or least_ttl)
          if value or not values then
            call('SET', name, count, 'PX', ttl)
          elseif not call('SET', name, count, 'PX', ttl, 'NX') then
            -- A value of another type, which MGET reports as absent.
            break
          end
        end
      end
      granted, data = fits, value or ''
    until true

    local decided
    if is_several then
      local read = values or (not has_window and call('MGET', spread(KEYS, key + 1, key + count)))
      decided = decide_several(read, values and (number - 1) * count or 0, key, times, out, filled)
    end

    if not granted and not decided then
      if not decide_one then
        decide_one, decide_all = new_deciders(now, least_ttl)
      end
      if count == 1 and operation ~= RESET then
        granted, found, data = decide_one(operation, times, name, algorithm, cost, capacity, rate, per)
      end
    end
    filled = decided or filled + 1
    if decided then
      key, position = key + count, after
    elseif granted then
      key, position = key + 1, after
      if found == READABLE then
        local summary = granted * 256 + #data
        local head = heads[summary]
        if not head then
          head = pack('<I2BB', granted, READABLE, #data)
          heads[summary] = head
        end
        out[filled], out[filled + 1] = head, data
        filled = filled + 1
      else
        out[filled] = pack('<I2B', 0, found)
      end
    else
      out[filled], position, key = decide_all(limits_at, key, count, operation, times, algorithm, cost, capacity, rate, per)
    end
  end
end

return table.concat(out)
