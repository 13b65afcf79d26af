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

-- Begin and end of the calendar window that holds now, the length of the one after it, and where the request goes on.
-- If the request has no window that holds now, returns only where it goes on.
local function read_edges(now, first, second, request, position)
  local third, fourth, ends = struct.unpack('>I7I7', request, position)
  if now < first or now >= third then return nil, nil, nil, ends end
  if now < second then return first, second, third - second, ends end
  return second, third, fourth - third, ends
end

-- A level in fine units of which `unit` are a unit, in those of which `other` are one: rounded up, at most `most`.
-- Long division, since the product of the two may have 90 bits: 7 bits of `other` at a time, of which there are 49.
local function rescale(level, unit, other, most)
  if unit == 0 then return most end
  local rest = level % unit
  local scaled, quotient, remainder, digit = (level - rest) / unit * other, 0, 0, 4398046511104
  while digit >= 1 do
    local low = other % digit
    remainder = remainder * 128 + rest * ((other - low) / digit)
    other, digit = low, digit / 128
    local left = remainder % unit
    quotient, remainder = quotient * 128 + (remainder - left) / unit, left
  end
  scaled = scaled + quotient + (remainder > 0 and 1 or 0)
  return scaled < most and scaled or most
end

-- A quotient rounded up, exactly.
local function quotient_up(a, b)
  return (a + (-a) % b) / b
end

-- Reads a token bucket that another rate has counted, or that is stored twice: as a change of the policy has cut it,
-- and uncut.
--
-- Its level is what a decision by this rate and limit finds: as stored, if it goes on with what was cut, or if its
-- rate is that of what was not; otherwise rounded up, and a full bucket at most. What another rate has let in must not
-- take hours to drain by this one. It is cut before it drains, so that looks, which do not write it, see it drain.
-- `uncut`, in units of `uncut_unit`, is every taking, drained by the fastest rate that has taken since the cut: so a
-- larger policy finds what a smaller one has cut. `held` is what is stored, for those who give or write back.
local function read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT)
  local max, huge, pack, sub = math.max, math.huge, struct.pack, string.sub
  local level, as_of, born, expires, unit, rate = struct.unpack(TOKEN_STATE, state)
  local uncut, uncut_unit, uncut_rate, cut_to = 0, unit, rate, limit
  if #state > 39 then uncut, uncut_unit, uncut_rate, cut_to = struct.unpack(UNCUT, state, 40) end
  -- The clock stepped back: drain from the new now on.
  if as_of > now then as_of, born, expires = now, as_of + 1, 0 end
  local passed = now - as_of
  local most, most_unit, most_rate = level, unit, rate
  if rescale(uncut, uncut_unit, unit, huge) > level then
    most, most_unit, most_rate = uncut, uncut_unit, uncut_rate
  end
  local found, found_cut_to
  if unit == b and rate == a and limit <= cut_to then
    found, found_cut_to = level, cut_to
  elseif uncut > 0 and uncut_unit == b and uncut_rate == a then
    found, found_cut_to = uncut, limit
  else
    found, found_cut_to = rescale(most, most_unit, b, limit * b), limit
  end
  if rescale(a, b, most_unit, huge) > most_rate then
    most, most_unit, most_rate = rescale(most, most_unit, b, 4503599627370496), b, a
  end
  local drains = max(quotient_up(level, rate), quotient_up(uncut, uncut_rate))
  local empty = max(drains, quotient_up(found, a)) - passed
  -- Also for a look, since a faster rate may have set an end before it has drained by this one.
  if empty > 0 and expires < now + empty then
    expires = now + 2 * empty + MARGIN
    state = sub(state, 1, 7) .. pack('>I7I7I7', as_of, born, expires) .. sub(state, 29)
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  end
  found = max(0, found - passed * a)
  return {
    drain = a, unit = b, cap = limit * b, level = found, kept = found, born = found > 0 and born or now,
    expires = expires, uncut = max(0, most - passed * most_rate), uncut_unit = most_unit, uncut_rate = most_rate,
    cut_to = found_cut_to,
    held = {
      level = max(0, level - passed * rate), unit = unit, drain = rate, born = born, emptied = as_of + drains,
      uncut = max(0, uncut - passed * uncut_rate), uncut_unit = uncut_unit, uncut_rate = uncut_rate, cut_to = cut_to,
    },
  }
end

-- Writes such a bucket.
local function save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT)
  local level, unit, uncut, expires = bucket.level, bucket.unit, bucket.uncut, bucket.expires
  -- A decision has taken whole units. Who gives or writes back has changed `uncut` too.
  local units = bucket.held and (level - bucket.kept) / unit or 0
  uncut = math.min(uncut + units * bucket.uncut_unit, 4503599627370496)
  if rescale(uncut, bucket.uncut_unit, unit, math.huge) <= level then uncut = 0 end
  if level == 0 and uncut == 0 then return redis.call('UNLINK', key) end
  local empty = math.max(quotient_up(level, bucket.drain), quotient_up(uncut, bucket.uncut_rate))
  local later = expires < now + empty
  if later then expires = now + 2 * empty + MARGIN end
  local state = struct.pack(TOKEN_STATE, level, now, bucket.born, expires, unit, bucket.drain)
  if uncut > 0 then
    state = state .. struct.pack(UNCUT, uncut, bucket.uncut_unit, bucket.uncut_rate, bucket.cut_to)
  end
  if later then
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  else
    redis.call('SET', key, state, 'KEEPTTL')
  end
end

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

  -- Splits the string in which decide.lua keeps a log: separates the open block, and notes where its records are.
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

  -- The error when a log lacks a block, or has one that this script did not write.
  local DAMAGED = {}

  -- Returns what f returns, or nil if f found a damaged log.
  function slow.try(f, ...)
    local done, result = pcall(f, ...)
    if done then return result end
    if result ~= DAMAGED then error(result, 0) end
  end

  local function block(log, number)
    if log.read_number ~= number then
      log.read_number, log.read = number, call('HGET', log.key, number)
      if not log.read or #log.read ~= 4 + 10 * BLOCK then error(DAMAGED) end
    end
    return log.read
  end

  -- The stamp of the record at position p, and the units from the head up to it.
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

  -- The records, with `less` subtracted from each total from the index `from` (0 is the first) on.
  local function lower(records, from, less)
    local parts = { sub(records, 1, from * 10) }
    for offset = from * 10 + 1, #records, 10 do
      local stamp, total = unpack(RECORD, records, offset)
      parts[#parts + 1] = pack(RECORD, stamp, (total - less) % TWO32)
    end
    return table.concat(parts)
  end

  -- Joins the log again: the oldest record, up to AHEAD more of its block, and the open block.
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

  -- The first position whose stamp (or units up to it) is at least `value`, which must hold for the last position; with
  -- its stamp, the units up to it, and the units before it. The result is mostly near the head.
  local function search(log, by_stamp, value)
    local low, before = log.head, log.head_units
    if (by_stamp and log.head_stamp or before) >= value then return low, log.head_stamp, before, 0 end
    local last, step = log.tail - 1, 1
    local high, stamp, units
    while true do
      high = min(low + step, last)
      stamp, units = record(log, high)
      -- Accept the last position whatever it holds, so that damaged state cannot loop for ever.
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
      -- Blocks beyond REACH stay until the log overwrites them, or expires.
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

  -- The stamp of the record at which this many units from the head on will have expired.
  function slow.room(log, key, units)
    open(log, key)
    local _, stamp = search(log, false, units)
    return stamp
  end

  -- Brings a log up to date where its head alone does not suffice. Its last record still counts.
  function slow.mend(log, key, stamp)
    local late = 0
    open(log, key)
    if log.last > stamp then
      -- The clock stepped back: records with later stamps get the stamp of now, so they are held for one window at
      -- most.
      local p, _, _, before = search(log, true, stamp + 1)
      late = log.kept - before
      log.kept, log.born = before, log.last + 1
      if p > log.head then truncate(log, p) end
      if before == 0 or log.last + log.a <= now then log.kept = 0 end
    end
    if log.kept > 0 and log.head_stamp + log.a <= now then
      local p, head_stamp, units, before = search(log, true, now - log.a + 1)
      log.lag = log.lag + floor(p / BLOCK) - floor(log.head / BLOCK)
      log.head, log.head_stamp, log.head_units = p, head_stamp, units - before
      log.base, log.kept = (log.base + before) % TWO32, log.kept - before
    end
    -- The key must not outlive the records that were moved to now.
    if late > 0 then log.expires = 0 end
    log.level = log.kept + late
    if log.kept > 0 then close(log) end
    return true
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
        local records = block(log, i)
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
        -- The last record always holds units: its stamp determines when the log will be empty.
        truncate(log, search(log, false, log.kept) + 1)
      end
    end
    close(log)
    return returned
  end

  -- Whoever gives or writes back has no say in the policy: a token bucket is changed as it is stored, unless it holds
  -- nothing.
  local function as_stored(bucket)
    local held = bucket.held
    if not held then return end
    bucket.held, bucket.born, bucket.emptied = nil, held.born, held.emptied
    bucket.level, bucket.kept = held.level, held.level
    if held.level == 0 and held.uncut == 0 then
      bucket.uncut = nil
    else
      bucket.unit, bucket.drain = held.unit, held.drain
      bucket.uncut, bucket.uncut_unit, bucket.uncut_rate = held.uncut, held.uncut_unit, held.uncut_rate
      bucket.cut_to = held.cut_to
    end
  end

  -- Fine units to return of `cost` units, of `left` that were taken together and are not returned: what has drained
  -- since counts as returned.
  local function undrained(level, unit, rate, cost, left, passed)
    return max(0, min(level, cost * unit, left * unit - passed * rate))
  end

  -- Returns units to a bucket, at most those of the taking that are not returned yet (`left`); returns how many.
  local function give_back(bucket, key, cost, at, left)
    as_stored(bucket)
    if bucket.level == 0 and not bucket.uncut or at < bucket.born or at > now then return 0 end
    local returned
    if bucket.head then
      returned = log_give_back(bucket, key, cost, at)
      bucket.level = bucket.level - returned
    elseif bucket.drain then
      local uncut = bucket.uncut
      if uncut then
        uncut = undrained(uncut, bucket.uncut_unit, bucket.uncut_rate, cost, left, now - at)
        bucket.uncut, bucket.returned = bucket.uncut - uncut, bucket.returned or uncut > 0
      end
      returned = undrained(bucket.level, bucket.unit, bucket.drain, cost, left, now - at)
      bucket.level = bucket.level - returned
      -- A part of a unit is reported as one.
      returned = ceil(returned / bucket.unit)
    else
      returned = at >= bucket.start and min(cost, bucket.level) or 0
      bucket.level = bucket.level - returned
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

  local depth = DEPTH

  -- Inserts records into a log, each at its stamp; returns the units recorded.
  local function log_write_back(log, key, stamps, units)
    if #stamps == 0 or log.level == TWO32 - 1 then return 0 end
    if log.level == 0 then log.born = now end
    local room, late, recorded = TWO32 - 1 - log.level, log.level - log.kept, 0
    for k = 1, #stamps do
      units[k] = min(units[k], room)
      room, recorded = room - units[k], recorded + units[k]
    end
    if late > 0 then
      -- The clock stepped back: the records that get the stamp of now.
      stamps[#stamps + 1], units[#units + 1] = now + log.fresh - log.a, late
    end
    if log.kept == 0 then
      -- Nothing older counts: start again, as decide.lua does.
      if log.lag + log.blocks > 0 then
        call('UNLINK', key)
        log.expires = 0
      end
      log.key, log.open, log.number, log.tail, log.last = key, '', 0, 0, 0
      log.head, log.lag, log.base = 0, 0, 0
    else
      open(log, key)
    end
    -- Rewrites the records from position p on, with the new ones among them.
    local p, before, too_deep = log.tail, log.kept, false
    if log.kept > 0 and stamps[1] <= log.last then
      local _
      p, _, _, before = search(log, true, stamps[1])
      local number = floor(p / BLOCK)
      if log.number - number > depth then
        too_deep, number = true, log.number - depth
        p = number * BLOCK
        _, before = record(log, p - 1)
      end
      depth = depth - log.number + number
    end
    local level, old, old_units = before, {}, {}
    for position = p, log.tail - 1 do
      local stamp, up_to = record(log, position)
      old[#old + 1], old_units[#old_units + 1], level = stamp, up_to - level, up_to
    end
    if p < log.tail then
      local number, records = floor(p / BLOCK), log.open
      if number ~= log.number then
        records = block(log, number)
        records = lower(sub(records, 5), 0, -unpack('>I4', records))
      end
      log.open, log.number = sub(records, 1, (p - number * BLOCK) * 10), number
    end
    -- What belongs deeper is added to the oldest record that is rewritten: held longer, so the limit is never exceeded.
    for k = 1, #stamps do
      if too_deep and stamps[k] < old[1] then stamps[k] = old[1] end
    end
    local total, i, k = log.base + before, 1, 1
    while old[i] or stamps[k] do
      local stamp = min(old[i] or stamps[k], stamps[k] or old[i])
      local more, known = 0, old[i] == stamp
      if known then more, i = old_units[i], i + 1 end
      while stamps[k] == stamp do
        level, more, k = level + units[k], more + units[k], k + 1
      end
      if more > 0 or known then
        if #log.open == BLOCK * 10 then
          call('HSET', key, log.number, '\0\0\0\0' .. log.open)
          log.open, log.number = '', log.number + 1
        end
        total, log.last = (total + more) % TWO32, stamp
        log.open = log.open .. pack(RECORD, stamp % TWO48, total)
      end
    end
    log.tail = log.number * BLOCK + #log.open / 10
    log.kept, log.level, log.read_number = level, level, nil
    close(log)
    return recorded
  end

  -- Records for a token bucket, without what has drained since each was taken: while the bucket held something, it
  -- drained that; only while it was empty could the new units have drained instead.
  local function token_write_back(bucket, key, times, units)
    as_stored(bucket)
    local drain, unit, level, recorded = bucket.drain, bucket.unit, bucket.level, 0
    local most = min(TWO32 * 1048576, (TWO32 - 1) * unit)
    local emptied = bucket.emptied or 0
    local state = level == 0 and not bucket.emptied and call('GET', key)
    if state then
      local stored, as_of = unpack('>I7I7', state)
      emptied = stored > 0 and as_of + quotient_up(stored, drain) or 0
    end
    for i = 1, #times do
      local at, gain = times[i], min(units[i], (most - most % unit) / unit) * unit
      if level == 0 then
        local from = max(at, emptied)
        emptied = from + (gain + (-gain) % drain) / drain
        gain = gain - max(0, now - from) * drain
        if gain > 0 then bucket.born = at end
      elseif at < bucket.born and bucket.born <= now then
        gain = gain - (bucket.born - at) * drain
        if gain > 0 then bucket.born = at end
      end
      gain = max(0, min(gain, most - level))
      level, recorded = level + gain, recorded + ceil(gain / unit)
    end
    bucket.level = level
    if recorded > 0 and (bucket.uncut or 0) > 0 then
      bucket.uncut = min(bucket.uncut + recorded * bucket.uncut_unit, TWO32 * 1048576)
      bucket.returned = true
    end
    return recorded
  end

  local function fixed_write_back(bucket, key, times, units)
    local recorded, level, from, to = 0, bucket.level, bucket.start, now + bucket.fresh
    -- If the clock stepped back over an edge, what is kept is the count of the window that follows.
    if bucket.following then level, from, to = bucket.following, bucket.last, bucket.last + bucket.a end
    for i = 1, #times do
      if times[i] >= from and times[i] < to then
        recorded = recorded + min(units[i], TWO32 - 1 - level - recorded)
      end
    end
    if not bucket.following then
      bucket.level = level + recorded
    elseif recorded > 0 then
      local start, _, born = unpack('>I7I4I7', call('GET', key))
      call('SET', key, pack('>I7I4I7', start, level + recorded, born), 'KEEPTTL')
    end
    return recorded
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
    local write = bucket.head and log_write_back or bucket.drain and token_write_back or fixed_write_back
    local recorded = write(bucket, key, times, units)
    bucket.returned = bucket.returned or bucket.head and recorded > 0
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
