-- The slow path of decide.lua, which few calls need: keys that cannot be read, equal waits, searching a log, clocks
-- that stepped back, give-backs, write-backs.
--
-- This file goes in front of decide.lua; the two are one script. A closure that captures many variables costs a tenth
-- of a call. So slow_path captures nothing, and only calls that need its inner closures create them.
--
-- now is the time; the rest are decide.lua's constants of the log, explained there.

-- A receipt, as a bucket that decide.lua saves if it has changed. Its level is the units that it still stands for; its
-- state is those units and the time when they were taken, or a time for each bucket, of which the request has `count`.
-- And where the request goes on.
local function read_receipt(key, units, lifetime, count, request, position)
  local left, ends, times = 0, position + 7 * count, nil
  if units == 0 then
    local state = redis.pcall('GET', key)
    if state and #state > 4 and #state % 7 == 4 then
      left, times = struct.unpack('>I4', state), string.sub(state, 5)
    end
  elseif count > 0 then
    times = string.sub(request, position, ends - 1)
  end
  return { level = left, kept = left, units = units, lifetime = lifetime, times = times }, ends
end

--@each functions
local function slow_path(now, GIVE_BACK, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
  local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
  local floor, min, max, ceil = math.floor, math.min, math.max, math.ceil
  local slow = {}

  -- Whether a decision, whose takes begin at `position`, touches a bucket that cannot be read.
  function slow.touches(broken, request, position, takes)
    for i = 0, takes - 1 do
      if broken[unpack('>I4', request, position + 8 * i)] then return true end
    end
    return false
  end

  -- Of two buckets that will have room at the same time: whether the first has less remaining, or as much remaining of
  -- a smaller quota.
  function slow.tighter(one, other)
    local a, b = one.unit or 1, other.unit or 1
    local left, least = max(0, one.cap - one.level), max(0, other.cap - other.level)
    left, least = (left - left % a) / a, (least - least % b) / b
    return left < least or left == least and one.cap / a < other.cap / b
  end

  -- The error when a bucket lacks a part, or has one that this script did not write.
  local DAMAGED = {}

  -- Returns what f returns, or nil if f found a damaged bucket.
  function slow.try(f, ...)
    local done, result = pcall(f, ...)
    if done then return result end
    if result ~= DAMAGED then error(result, 0) end
  end

--@each slow
  -- Returns units to a bucket, at most those of the taking that are not returned yet (`left`); returns how many.
  local function give_back(bucket, key, cost, at, left)
    as_stored(bucket)
    if bucket.level == 0 and not bucket.uncut or at < bucket.born or at > now then return 0 end
    local returned
--@chain give_back
    end
    bucket.returned = bucket.returned or returned > 0
    return returned
  end

  function slow.give_back(bucket, key, request, position, _, cost)
    return give_back(bucket, key, cost, unpack('>I7', request, position), cost)
  end

  -- Leaves n receipts from `index` on, if the decision of this reply was admitted, or if other calls have taken.
  function slow.leave(buckets, n, index, reply)
    if reply and unpack('>i4', reply) <= 0 then return end
    for i = index, index + n - 1 do buckets[i].level = buckets[i].units end
  end

  -- Gives up to `cost` units back to n buckets, and subtracts as many from the receipt. Returns result, units, and the
  -- next position in the request; and the rows before this one, or the times that other calls need to give units back.
  function slow.redeem(buckets, broken, n, index, cost, request, position, rows)
    local receipt, returned, result = buckets[index], 0, 1
    local ends = position + 4 * n
    if broken then
      for i = position, ends - 1, 4 do
        if broken[unpack('>I4', request, i)] then return 0, 0, ends, rows end
      end
    end
    local left = receipt.level
    -- The clock stepped back behind the taking: nothing can be returned yet, so the receipt keeps its units.
    local times, time = receipt.times, 1
    if left > 0 and unpack('>I7', times) > now then return 1, 0, ends, rows end
    local units = min(cost, left)
    receipt.level = left - units
    if n > 0 and unpack('>I4', request, position) == index then return 1, units, ends, { times } end
    for i = position, units > 0 and ends - 1 or 0, 4 do
      local bucket = unpack('>I4', request, i)
      local back = slow.try(give_back, buckets[bucket], KEYS[bucket], units, unpack('>I7', times, time), left)
      time = min(time + 7, #times - 6)
      if back then
        returned = max(returned, back)
      else
        -- Do not write this bucket.
        buckets[bucket], result = { level = 0, kept = 0 }, 0
      end
    end
    return result, returned, ends, rows
  end

  -- Records units that were taken elsewhere, whatever the limit; returns how many.
  function slow.write_back(bucket, key, request, position, count)
    local times, units, last = {}, {}, 0
    for _ = 1, count do
      local at, more
      at, more, position = unpack('>I7I4', request, position)
      if not bucket.following then at = min(at, now) end
      if bucket.head then at = at + (-at) % bucket.b end
      -- In order of time, also across senders.
      last = max(last, at)
      if more > 0 and not (bucket.head and last + bucket.a <= now) then
        times[#times + 1], units[#units + 1] = last, more
      end
    end
    local recorded
--@chain write_back
    end
    return recorded
  end

  -- Gives or writes back, as the request says from `first` on. Returns result, units, and the next position in it.
  function slow.change(what, buckets, broken, request, first)
    local count, index, cost, position = unpack('>I2I4I4', request, first - 2)
    local change, ends = slow.give_back, position + 7
    if what ~= GIVE_BACK then
      change, ends = slow.write_back, position + 11 * count
      -- An earlier call, whose answer was lost, has done it. Not `kept`: a step of the clock moves that unit.
      if cost > 0 and buckets[cost].level > 0 then return 1, 0, ends end
    end
    local units = not (broken and broken[index])
      and slow.try(change, buckets[index], KEYS[index], request, position, count, cost)
    if units then return 1, units, ends end
    -- Do not write this bucket.
    buckets[index] = { level = 0, kept = 0 }
    return 0, 0, ends
  end

  return slow
end
