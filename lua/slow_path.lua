-- The slow path of decide.lua, which few calls need: keys that cannot be read, equal waits, searching a log, clocks
-- that stepped back, settlements.
--
-- This file goes in front of decide.lua; the two are one script. A closure that captures many variables costs a tenth
-- of a call. So slow_path captures nothing, and only calls that need its inner closures create them.
--
-- now is the time; the rest are decide.lua's constants of the log, explained there.

-- A hold, as a bucket that decide.lua saves if it has changed. Its level is 1 and the units that it still stands for, 0
-- if it is not there; its state is those units, when it was left, and what is known of each bucket. `number` is its
-- lifetime, or how many units stay in it or were used.
local function read_hold(key, units, number, what)
  local level, held = 0, nil
  local state = what > 0 and redis.pcall('GET', key)
  if state and #state % 28 == 11 then level, held = struct.unpack('>I4', state) + 1, string.sub(state, 5) end
  return { level = level, kept = level, units = units, number = number, settles = what > 1, held = held }
end

--@each functions
local function slow_path(now, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
  local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
  local floor, min, max, ceil, abs = math.floor, math.min, math.max, math.ceil, math.abs
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
  -- Returns `cost` units to a bucket, of `left` that were taken together and are not returned; how many. `drain` and
  -- `unit` are the rate that they were taken by; nil if it is not known. `settled` units of a receipt are settled with
  -- this, those that were used included; 0 if they are of none.
  local function restore(bucket, key, cost, at, left, drain, unit, settled)
    if bucket.drain then of_tokens().as_stored(bucket) end
    if bucket.level == 0 and not bucket.uncut or at < bucket.born or at > now then return 0 end
    local returned
--@chain restore
    end
    bucket.returned = bucket.returned or returned > 0
    return returned
  end

  -- Adds units that were taken elsewhere, whatever the limit; how many.
  local function add(bucket, key, at_each, units_each)
    local times, units, last = {}, {}, 0
    for i = 1, #at_each do
      local at, more = at_each[i], units_each[i]
      if not bucket.following then at = min(at, now) end
      if bucket.head then at = at + (-at) % bucket.b end
      -- In order of time, also across senders.
      last = max(last, at)
      if more > 0 and not (bucket.head and last + bucket.a <= now) then
        times[#times + 1], units[#units + 1] = last, more
      end
    end
    local recorded
--@chain record
    end
    return recorded
  end

  -- A hold of so many units is left of a token bucket.
  function slow.leave(bucket, units)
    of_tokens().leave(bucket, units)
  end

  -- When units were taken from the bucket of this name, and by which rate, and whether other calls than that which has
  -- left the hold took them; nil if the hold is not of it.
  local function taken(held, name)
    for i = 8, #held, 28 do
      local known, at, drain, unit = unpack('>I7I7I7I7', held, i)
      if known == name then return at > 0 and at or unpack('>I7', held), drain, unit, at > 0 end
    end
  end

  local ADDED, NOTHING = 2, 3

  -- Settles, as the request says from `position` on. Returns result, units, and the next position; and the rows before
  -- this one, or what other calls need to settle a hold.
  function slow.settle(buckets, broken, n, guard, units, request, position, rows)
    local ends, hold, result, most = position + 16 * n, buckets[guard], 1, 0
    local left, held
    if hold and hold.units > 0 then
      -- An earlier call, whose answer was lost, has done it.
      if hold.level > 0 then return NOTHING, 0, ends, rows end
      hold.level, hold.held = hold.units + 1, pack('>I7', now)
    elseif hold then
      left, held = hold.level - 1, hold.held
      local unused = left - hold.number
      if hold.settles then
        if not held then return NOTHING, 0, ends, rows end
        hold.level, units = 0, unused
      else
        units = min(units, unused)
        -- The clock stepped back behind the taking: nothing can be returned yet, so the hold keeps its units.
        if units <= 0 or unpack('>I7', held) > now then return NOTHING, 0, ends, rows end
        hold.level = left > units and left - units + 1 or 0
      end
      if units < 0 then result = ADDED end
      if n == 0 then return result, abs(units), ends, { held } end
    end
    while position < ends do
      local index, at, more
      local times, added = {}, {}
      repeat
        index, at, more, position = unpack('>I4I7i5', request, position)
        times[#times + 1], added[#added + 1] = at, more
      until more < 0 or position >= ends or unpack('>I4', request, position) ~= index
      local bucket, key, done = buckets[index], KEYS[index], nil
      if broken and broken[index] then
        result = 0
      elseif more >= 0 then
        if result > 0 then result = ADDED end
        done = slow.try(add, bucket, key, times, added)
      elseif not left then
        done = slow.try(restore, bucket, key, -more, at, -more, nil, nil, 0)
      else
        local since, drain, unit, elsewhere = taken(held, at)
        local settled = hold.settles and not elsewhere and left or 0
        done = 0
        if since and (units >= 0 or bucket.drain) then
          done = slow.try(restore, bucket, key, max(0, min(-more, units)), since, left, drain, unit, settled)
        end
        if since and units < 0 and done then done = slow.try(add, bucket, key, { now }, { -units }) end
      end
      if done then
        most = max(most, done)
      else
        -- Do not write this bucket.
        buckets[index], result = { level = 0, kept = 0 }, 0
      end
    end
    return result, most, ends, rows
  end

  return slow
end
