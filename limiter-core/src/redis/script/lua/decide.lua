-- General path of a decision: any number of limits of every algorithm, numbers of every size.
--
-- The fast paths cover frequent cases only. This path loads all limits, computes how often the cost
-- of every limit fits, and then charges each limit for this number of grants.
--
-- Invariants: nothing is charged before all limits are loaded, so an unreadable key leaves all
-- limits unchanged; and the result equals that of the fast paths. Tests: tests/differential.rs.

local loaders = { load_level, load_level, load_ring, load_counters, load_fixed }
local writers = { settle_level, settle_level, settle_ring, settle_counters, settle_fixed }

-- Added to the algorithm of a limit that is checked and never charged.
local BLOCK = 128

-- Loads a limit as of now. Returns the state of its key, and how often its cost fits, at most
-- `times`.
local function load_limit(limit, quota, times)
  local found = loaders[limit.algorithm](limit)
  if limit.cost == 0 or found ~= READABLE then
    return found, times
  end
  local fits = max(0, min(times, floor((quota - limit.used) / limit.cost)))
  if limit.blocks and fits > 0 then
    return found, times
  end
  return found, fits
end

local function settle(limit, granted, times, operation)
  local keep = operation == CHECK and limit.cost > 0
  return writers[limit.algorithm](limit, limit.blocks and 0 or granted, times, keep)
end

local function new_limit(key, algorithm, cost, first, second, third)
  if algorithm == SLIDING_WINDOW then
    return { key = key, algorithm = algorithm, cost = cost, limit = first, window = second, used = 0, ring = false }
  end
  if algorithm > SLIDING_WINDOW then
    return {
      key = key, algorithm = algorithm, cost = cost, limit = first, window = second, periods = third, value = false, used = 0,
      at = now, ends = false, moved = false,
    }
  end
  return {
    key = key, algorithm = algorithm, cost = cost, capacity = first, rate = second, per = third,
    value = false, used = 0, remainder = 0, keep_until = now, ahead = false,
  }
end

-- Decides one limit. Returns the number of grants, the state of the key and the data for the
-- outcomes.
local function decide_one(operation, times, key, algorithm, cost, first, second, third)
  local limit = new_limit(key, algorithm, cost, first, second, third)
  local found, granted = load_limit(limit, first, times)
  if found ~= READABLE then
    return 0, found
  end
  granted = operation == CHECK and granted or 0
  return granted, found, settle(limit, granted, times, operation)
end

-- Decides or resets several limits. The parameters of the first one are given; the others are at
-- `position` of the plan, and their keys follow key number `key`. Returns the reply, and the start
-- of the next decision.
local function decide_all(position, key, count, operation, times, ...)
  local limits, states, granted, readable = {}, {}, times, operation ~= RESET
  local algorithm, cost, first, second, third = ...
  for i = 1, count do
    if i > 1 then
      algorithm, cost, first, second, third, position = unpack('<BI8I8I8I8', plan, position)
    end
    local name, found = KEYS[key + i], READABLE
    if operation == RESET then
      call('DEL', name)
    else
      local blocks = algorithm >= BLOCK
      limits[i] = new_limit(name, blocks and algorithm - BLOCK or algorithm, cost, first, second, third)
      limits[i].blocks = blocks
      found, granted = load_limit(limits[i], first, granted)
      readable = readable and found == READABLE
    end
    states[i] = string.char(found)
  end
  if operation ~= CHECK or not readable then
    granted = 0
  end
  local answer = { pack('<I2', granted), table.concat(states) }
  if readable then
    for i = 1, count do
      local data = settle(limits[i], granted, times, operation)
      answer[i + 2] = string.char(#data) .. data
    end
  end
  return table.concat(answer), position, key + count
end

return decide_one, decide_all
