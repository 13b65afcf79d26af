-- What few calls of decide.lua need: finding a place in a log, clocks that stepped back, give-backs.
--
-- This file goes in front of decide.lua; the two are one script. A closure that captures much costs a
-- tenth of a call. So this one captures nothing, and only the calls that need it make those inside.
--
-- now is the time; the rest are decide.lua's constants of the log, explained there.

-- A receipt, as a bucket of which decide.lua saves what has changed. Its level is the units that it still
-- stands for, its state those and the time of the taking.
local function read_receipt(key, units, lifetime)
  local left, at = 0, nil
  if units == 0 then
    local state = redis.call('GET', key)
    if state then left, at = struct.unpack('>I4I7', state) end
  end
  return { level = left, kept = left, units = units, lifetime = lifetime, at = at }
end

local function make_rare(now, BLOCK, AHEAD, REACH, RECORD, TWO32, TWO48)
  local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
  local floor, min = math.floor, math.min
  local rare = {}

  -- Splits what decide.lua keeps as one string: leaves the open block, and where its records are.
  local function open(log, key)
    if not log.open then
      log.key = key
      local stamp, total = unpack(RECORD, log.records, log.from)
      log.head_stamp = log.last - (log.last - stamp) % TWO48
      log.head_units = (total - log.base) % TWO32
      log.open = sub(log.records, log.from + log.ahead * 10 + 10)
      log.number = floor(log.head / BLOCK) + log.blocks
      log.tail = log.number * BLOCK + #log.open / 10
    end
  end

  local function block(log, number)
    if log.read_number ~= number then
      log.read_number, log.read = number, call('HGET', log.key, number)
    end
    return log.read
  end

  -- Stamp of the record at position p, and units from the head up to it.
  local function record(log, p)
    local number = floor(p / BLOCK)
    local records, offset, shift = log.open, (p - number * BLOCK) * 10 + 1, 0
    if number ~= log.number then
      records = block(log, number)
      offset, shift = offset + 4, unpack('>I4', records)
    end
    local stamp, total = unpack(RECORD, records, offset)
    return log.last - (log.last - stamp) % TWO48, (total + shift - log.base) % TWO32
  end

  -- The records with `less` units taken from each total from the index `from` (0 is the first) on.
  local function lower(records, from, less)
    local parts = { sub(records, 1, from * 10) }
    for offset = from * 10 + 1, #records, 10 do
      local stamp, total = unpack(RECORD, records, offset)
      parts[#parts + 1] = pack(RECORD, stamp, (total - less) % TWO32)
    end
    return table.concat(parts)
  end

  -- Joins it again: the oldest record, up to AHEAD more of its block, and the open block.
  local function close(log)
    local number, records = floor(log.head / BLOCK), log.open
    if number ~= log.number then
      records = block(log, number)
      local shift = unpack('>I4', records)
      records = sub(records, 5)
      if shift > 0 then records = lower(records, 0, -shift) end
    end
    local from = log.head - number * BLOCK
    log.ahead = min(AHEAD, BLOCK - 1 - from, log.tail - 1 - log.head)
    log.records, log.from = sub(records, from * 10 + 1, (from + log.ahead + 1) * 10) .. log.open, 1
    log.blocks, log.open = log.number - number, nil
  end

  -- The first position whose stamp (or units up to it) is at least `value`, as that of the last must be;
  -- with its stamp, units up to it, and units before it. What is sought is mostly near the head.
  local function search(log, by_stamp, value)
    local low, before = log.head, log.head_units
    if (by_stamp and log.head_stamp or before) >= value then return low, log.head_stamp, before, 0 end
    local last, step = log.tail - 1, 1
    local high, stamp, units
    while true do
      high = min(low + step, last)
      stamp, units = record(log, high)
      -- The last is taken whatever it holds: damaged state must not loop for ever.
      if high == last or (by_stamp and stamp or units) >= value then break end
      low, before, step = high, units, step * 2
    end
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      local s, u = record(log, middle)
      if (by_stamp and s or u) >= value then
        high, stamp, units = middle, s, u
      else
        low, before = middle, u
      end
    end
    return high, stamp, units, before
  end

  -- Cuts off the records from position p on; there are some before it.
  local function truncate(log, p)
    local number = floor((p - 1) / BLOCK)
    if number < log.number then
      local records = block(log, number)
      log.open = lower(sub(records, 5), 0, -unpack('>I4', records))
      -- What is beyond the reach stays until the log grows over it, or expires.
      local fields = {}
      for i = number, min(log.number - 1, number + REACH) do fields[#fields + 1] = i end
      call('HDEL', log.key, _G.unpack(fields))
      log.number = number
    end
    log.open = sub(log.open, 1, (p - number * BLOCK) * 10)
    local stamp = unpack(RECORD, log.open, #log.open - 9)
    log.last = log.last - (log.last - stamp) % TWO48
    log.tail = p
  end

  -- The stamp of the record with which so many units from the head on will have gone.
  function rare.room(log, key, units)
    open(log, key)
    local _, stamp = search(log, false, units)
    return stamp
  end

  -- Brings a log up to date where a glance at its head did not do. Its last record still counts.
  function rare.mend(log, key, stamp)
    local late = 0
    open(log, key)
    if log.last > stamp then
      -- The clock stepped back: what is stamped later becomes of now, held for a window at most.
      local p, _, _, before = search(log, true, stamp + 1)
      late = log.kept - before
      log.kept, log.born = before, now + 1
      if p > log.head then truncate(log, p) end
      if before == 0 or log.last + log.a <= now then log.kept = 0 end
    end
    if log.kept > 0 and log.head_stamp + log.a <= now then
      local p, head_stamp, units, before = search(log, true, now - log.a + 1)
      log.lag = log.lag + floor(p / BLOCK) - floor(log.head / BLOCK)
      log.head, log.head_stamp, log.head_units = p, head_stamp, units - before
      log.base, log.kept = (log.base + before) % TWO32, log.kept - before
    end
    -- The key is to live no longer than what is moved to now.
    if late > 0 then log.expires = 0 end
    log.level = log.kept + late
    if log.kept > 0 then close(log) end
  end

  local function log_give_back(log, key, cost, at)
    local stamp = at + (-at) % log.b
    if log.kept == 0 or stamp + log.a <= now or stamp > log.last then return 0 end
    open(log, key)
    local p, found, units, before = search(log, true, stamp)
    local number = floor(p / BLOCK)
    local returned = min(cost, units - before)
    if found ~= stamp or log.number - number > REACH then returned = 0 end
    if returned > 0 then
      local from = p - number * BLOCK
      for i = number, log.number - 1 do
        local records = call('HGET', log.key, i)
        if i == number then
          records = sub(records, 1, 4) .. lower(sub(records, 5), from, returned)
        else
          records = pack('>I4', (unpack('>I4', records) - returned) % TWO32) .. sub(records, 5)
        end
        call('HSET', log.key, i, records)
        from = 0
      end
      log.open, log.read_number = lower(log.open, from, returned), nil
      log.kept = log.kept - returned
      if p == log.head then log.head_units = log.head_units - returned end
      if log.kept > 0 and p == log.tail - 1 and returned == units - before then
        -- The last record always holds units: it is what tells when the log will be empty.
        truncate(log, search(log, false, log.kept) + 1)
      end
    end
    close(log)
    return returned
  end

  -- Returns units to a bucket, of those taken together that are not returned yet (`left`); how many.
  function rare.give_back(bucket, key, cost, at, left)
    if bucket.level == 0 or at < bucket.born or at > now then return 0 end
    local returned
    if bucket.head then
      returned = log_give_back(bucket, key, cost, at)
      bucket.level = bucket.level - returned
    elseif bucket.drain then
      -- What has drained since was as if returned already; a part of a unit is reported as one.
      local undrained = (left or cost) * bucket.unit - (now - at) * bucket.drain
      returned = math.max(0, min(bucket.level, cost * bucket.unit, undrained))
      bucket.level = bucket.level - returned
      returned = math.ceil(returned / bucket.unit)
    else
      returned = at >= now - now % bucket.a and min(cost, bucket.level) or 0
      bucket.level = bucket.level - returned
    end
    bucket.returned = bucket.returned or returned > 0
    return returned
  end

  -- Leaves n receipts from `index` on, if the decision whose reply this is was admitted.
  function rare.leave(buckets, n, index, reply)
    if unpack('>i4', reply) < 0 then return end
    for i = index, index + n - 1 do buckets[i].level = buckets[i].units end
  end

  -- Returns up to `cost` units to n buckets, and takes as many off the receipt; how many, and the next position.
  function rare.redeem(buckets, n, index, cost, request, position)
    local receipt, returned = buckets[index], 0
    local left = receipt.level
    local units = min(cost, left)
    receipt.level = left - units
    for i = 0, n - 1 do
      local bucket = unpack('>I4', request, position + 4 * i)
      if units > 0 then
        returned = math.max(returned, rare.give_back(buckets[bucket], KEYS[bucket], units, receipt.at, left))
      end
    end
    return returned, position + 4 * n
  end

  return rare
end

