-- Assembled from lua/ by tests/engine/assembled.rs: change it there.
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
-- and uncut; or one of which receipts have been left; or one before which the clock has stepped back.
--
-- Its level is what a decision by this rate and limit finds: a full bucket and its debt at most, rounded up, since what
-- another rate or a larger limit has let in must not take hours to drain; or what was not cut, if that has this rate.
-- Looks do not write it, and have to see it drain: by this rate since it was stored, so it is cut before that. Nothing
-- says when a rate has become faster, and what drains by it meanwhile would forgive debts: so by the earlier rate,
-- until the first look, which `adopts` it. `uncut`, in units of `uncut_unit`, is every taking, drained by the fastest
-- rate that has taken since the cut. `held` is what is stored, for those who settle.
local function read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT, GROUP)
  local max, min, huge, pack, sub = math.max, math.min, math.huge, struct.pack, string.sub
  local level, as_of, born, expires, unit, rate, burst = struct.unpack(TOKEN_STATE, state)
  local uncut, uncut_unit, uncut_rate = 0, unit, rate
  local groups, since = nil, nil
  if #state == 61 then
    uncut, uncut_unit, uncut_rate = struct.unpack(UNCUT, state, 44)
  elseif #state > 43 then
    since = struct.unpack('>I7', state, 44)
    local lowest = level - max(0, now - as_of) * rate
    for at = 51, lowest > 0 and #state or 0, 21 do
      local until_then, most, open = struct.unpack(GROUP, state, at)
      groups = groups or {}
      groups[#groups + 1] = { until_then = until_then, most = min(most, lowest), open = open }
    end
  end
  -- The clock stepped back: drain from the new now on. What was taken before cannot be told by its time from what is
  -- taken until the clock is there again.
  if as_of > now then as_of, born, expires = now, as_of + 1, 0 end
  local passed = now - as_of
  local held, held_uncut = max(0, level - passed * rate), max(0, uncut - passed * uncut_rate)
  local found, most, most_unit, most_rate, drained = level, uncut, uncut_unit, uncut_rate, passed
  local is_faster = rescale(a, b, uncut_unit, huge) > uncut_rate
  if is_faster then found, most, drained = held, held_uncut, 0 end
  if rescale(most, uncut_unit, unit, huge) <= found then most, most_unit, most_rate = found, unit, rate end
  local goes_on = unit == b and rate == a and (uncut == 0 or limit <= burst)
  if not goes_on and uncut > 0 and uncut_unit == b and uncut_rate == a then
    found = uncut
  else
    local debt = rescale(max(0, found - burst * unit), unit, b, 4503599627370496)
    if not goes_on then found = rescale(most, most_unit, b, 4503599627370496) end
    found = min(found, limit * b + debt)
  end
  if is_faster then most, most_unit, most_rate = rescale(most, most_unit, b, 4503599627370496), b, a end
  local drains = max(quotient_up(level, rate), quotient_up(uncut, uncut_rate))
  local empty = max(drains - passed, quotient_up(found, a) - drained)
  -- Also for a look, since a faster rate may have set an end before it has drained by this one.
  if empty > 0 and expires < now + empty then
    expires = now + 2 * empty + MARGIN
    state = sub(state, 1, 7) .. pack('>I7I7I7', as_of, born, expires) .. sub(state, 29)
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  end
  found, most = max(0, found - drained * a), max(0, most - drained * most_rate)
  return {
    drain = a, unit = b, cap = limit * b, level = found, kept = found, born = found > 0 and born or now,
    expires = expires, uncut = most, uncut_unit = most_unit, uncut_rate = most_rate, burst = limit,
    adopts = is_faster and held + held_uncut > 0,
    groups = unit == b and rate == a and groups, since = since,
    held = {
      level = held, unit = unit, drain = rate, born = born, emptied = as_of + drains, burst = burst, groups = groups,
      uncut = held_uncut, uncut_unit = uncut_unit, uncut_rate = uncut_rate,
    },
  }
end

-- Writes such a bucket.
local function save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT, GROUP)
  local level, unit, uncut, expires = bucket.level, bucket.unit, bucket.uncut, bucket.expires
  -- A decision has taken whole units. Who settles has changed `uncut` too.
  local groups = bucket.groups
  local units = bucket.held and (level - bucket.kept) / unit or 0
  uncut = math.min(uncut + units * bucket.uncut_unit, 4503599627370496)
  if rescale(uncut, bucket.uncut_unit, unit, math.huge) <= level then uncut = 0 end
  if level == 0 and uncut == 0 then return redis.call('UNLINK', key) end
  local empty = math.max(quotient_up(level, bucket.drain), quotient_up(uncut, bucket.uncut_rate))
  local later = expires < now + empty
  if later then expires = now + 2 * empty + MARGIN end
  local burst = bucket.burst or bucket.cap / unit
  local state = struct.pack(TOKEN_STATE, level, now, bucket.born, expires, unit, bucket.drain, burst)
  if uncut > 0 then
    state = state .. struct.pack(UNCUT, uncut, bucket.uncut_unit, bucket.uncut_rate)
  elseif groups and groups[1] then
    state = state .. struct.pack('>I7', bucket.since)
    for i = 1, #groups do
      state = state .. struct.pack(GROUP, groups[i].until_then, groups[i].most, groups[i].open)
    end
  end
  if later then
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  else
    redis.call('SET', key, state, 'KEEPTTL')
  end
end

-- Stores slots that were taken, if the decision of this reply was admitted (5); or frees them (6); or renews them (7),
-- whatever the limit: if they had ended, they are in use nevertheless. Returns the result (of what is stored, the
-- decision's), how many were added or freed, how many others had ended by themselves and are removed with this, and the
-- next position.
local function change_slots(what, bucket, key, now, units, request, position, reply)
  local id, ended, following = string.sub(request, position, position + 23), 0, position + 24
  local decided, list = reply and struct.unpack('>i4', reply), {}
  if decided and decided <= 0 then return decided, 0, 0, following end
  for n = 1, units do
    if what ~= 6 then list[#list + 1] = now + bucket.a end
    list[#list + 1] = id .. string.char(n)
  end
  if decided then
    ended = redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  else
    local ends = redis.call('ZSCORE', key, list[#list])
    local live = ends and tonumber(ends) > now
    -- Those that have ended go, too: a step of the clock back would put them in use again.
    if what == 6 then units = -redis.call('ZREM', key, unpack(list)) elseif live then units = 0 end
    if what == 6 and not live then return 3, 0, 0, following end
    bucket.level = bucket.level + units
  end
  bucket.kept = bucket.kept + units
  if what == 6 then return 1, -units, 0, following end
  redis.call('ZADD', key, unpack(list))
  -- Longer than the last of them, so that the next taking can tell that nobody has freed it.
  redis.call('PEXPIRE', key, math.ceil(2 * bucket.a / 1000))
  return decided or 2, units, ended, following
end

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

  -- What settles token buckets; apart, since each closure adds to every call that needs this file.
  local tokens
  local function of_tokens()
    local known = tokens or {}
    if tokens then return known end
    tokens = known

    -- Whoever settles has no say in the policy: a token bucket is changed as it is stored, unless it holds
    -- nothing.
    function known.as_stored(bucket)
      local held = bucket.held
      if not held then
        bucket.burst = bucket.burst or bucket.stored_burst
        return
      end
      bucket.held, bucket.born, bucket.emptied = nil, held.born, held.emptied
      bucket.level, bucket.kept, bucket.groups = held.level, held.level, held.groups
      if held.level == 0 and held.uncut == 0 then
        bucket.uncut = nil
      else
        bucket.unit, bucket.drain = held.unit, held.drain
        bucket.uncut, bucket.uncut_unit, bucket.uncut_rate = held.uncut, held.uncut_unit, held.uncut_rate
        bucket.burst = held.burst
      end
    end

    -- Fine units to return of `cost` units, of `left` that were taken together and are not returned: what has drained
    -- since, by the rate in force or by the one that they were taken by, counts as returned.
    function known.undrained(level, unit, rate, cost, left, passed, first_rate, first_unit)
      local drained = passed * rate
      if (first_unit or 0) > 0 then
        local at_first = min(passed * first_rate, left * first_unit)
        drained = max(drained, rescale(at_first, first_unit, unit, 4503599627370496))
      end
      return max(0, min(level, cost * unit, left * unit - drained))
    end

    -- Records for a token bucket, without what has drained since each was taken: while the bucket held something, it
    -- drained that; only while it was empty could the new units have drained instead.
    function known.record(bucket, key, times, units)
      known.as_stored(bucket)
      local drain, unit, level, recorded = bucket.drain, bucket.unit, bucket.level, 0
      local most = min(TWO32 * 1048576, (TWO32 - 1) * unit)
      local emptied = bucket.emptied or 0
      if level == 0 and (bucket.uncut or 0) == 0 then bucket.burst = nil end
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

    -- Groups of receipts, where those that return no more than the one before are joined with it.
    local function join_equal(groups)
      local kept = {}
      for i = 1, #groups do
        local group = groups[i]
        -- Joining may have lowered one below several before it.
        while kept[1] and kept[#kept].most >= group.most do
          group.open = min(group.open + table.remove(kept).open, 4503599627370496)
        end
        kept[#kept + 1] = group
      end
      return kept
    end

    -- How much less group `i` and those before it return at most than all that is open in it and that those return; and
    -- what those return.
    local function missing(groups, i)
      local group, before = groups[i], i > 1 and groups[i - 1].most or 0
      return max(0, min(before + group.open, 4503599627370496) - group.most), before
    end

    -- Joins group `i` with the next, or the one where the least part of what is open is lost. What bounds the first of
    -- them alone is left out where it follows from what bounds the one before it, which is lowered until it does; or
    -- both have the first one's.
    local function join_groups(groups, i)
      local least = math.huge
      for at = i or 1, i or #groups - 1 do
        local lost, before = missing(groups, at)
        local of = groups[at - 1]
        if lost > before then
          of, lost = groups[at + 1], groups[at + 1].most - groups[at].most
        elseif lost > 0 then
          lost = lost + missing(groups, at - 1)
        end
        lost = lost > 0 and lost / max(1, of.open) or 0
        if lost < least then i, least = at, lost end
      end
      local lost, before = missing(groups, i)
      local group, following = table.remove(groups, i), groups[i]
      following.open = min(following.open + group.open, 4503599627370496)
      if lost > before then
        following.most = group.most
      elseif i > 1 then
        groups[i - 1].most = before - lost
      end
    end

    -- A receipt of units that were taken just now from a bucket.
    function known.leave(bucket, units)
      local unit, groups = bucket.unit, join_equal(bucket.groups or {})
      local last = #groups
      if last == 0 then bucket.since = now end
      groups[last + 1] = { until_then = now, most = bucket.level, open = units * unit }
      if last > 0 and groups[last].until_then == now then
        join_groups(groups, last)
      elseif last == 8 then
        join_groups(groups)
      end
      bucket.groups = join_equal(groups)
      if not bucket.uncut then
        bucket.uncut, bucket.uncut_unit, bucket.uncut_rate = 0, unit, bucket.drain
      end
    end

    -- Of units that were taken at `at`, those that come back of `fine`, `settled` of which are settled with this;
    -- `otherwise` those that come back if they are in no group.
    function known.give(bucket, at, fine, settled, otherwise)
      local groups, i = join_equal(bucket.groups), 1
      bucket.groups, bucket.returned = groups, true
      while groups[i] and groups[i].until_then < at do i = i + 1 end
      local group = groups[i]
      if not group then return otherwise end
      local returned = min(otherwise, group.most)
      if settled > 0 and at >= bucket.since then
        returned = min(fine, group.most)
        if group.open < 4503599627370496 then group.open = max(0, group.open - settled) end
      end
      for j = i, #groups do
        groups[j].most = groups[j].most - returned
      end
      bucket.groups = returned < bucket.level and join_equal(groups) or nil
      return returned
    end

    return known
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

  local function log_restore(log, key, cost, at)
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

  local depth = DEPTH

  -- Inserts records into a log, each at its stamp; returns the units recorded.
  local function log_record(log, key, stamps, units)
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

  -- Returns `cost` units to a bucket, of `left` that were taken together and are not returned; how many. `drain` and
  -- `unit` are the rate that they were taken by; nil if it is not known. `settled` units of a receipt are settled with
  -- this, those that were used included; 0 if they are of none.
  local function restore(bucket, key, cost, at, left, drain, unit, settled)
    if bucket.drain then of_tokens().as_stored(bucket) end
    if bucket.level == 0 and not bucket.uncut or at < bucket.born or at > now then return 0 end
    local returned
    if bucket.start then
      returned = at >= bucket.start and min(cost, bucket.level) or 0
      bucket.level = bucket.level - returned
    elseif bucket.drain then
      local uncut = bucket.uncut
      if uncut then
        local by_unit, by_rate = bucket.uncut_unit, bucket.uncut_rate
        uncut = of_tokens().undrained(uncut, by_unit, by_rate, cost, left, now - at, drain, unit)
        bucket.uncut, bucket.returned = bucket.uncut - uncut, bucket.returned or uncut > 0
      end
      local own = bucket.unit
      returned = of_tokens().undrained(bucket.level, own, bucket.drain, cost, left, now - at, drain, unit)
      if bucket.groups and bucket.groups[1] then
        returned = of_tokens().give(bucket, at, cost * own, settled * own, returned)
      end
      bucket.level = bucket.level - returned
      -- A part of a unit is reported as one.
      returned = ceil(returned / bucket.unit)
    elseif bucket.head then
      returned = log_restore(bucket, key, cost, at)
      bucket.level = bucket.level - returned
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
    if bucket.start then
      recorded = 0
      local level, from, to = bucket.level, bucket.start, now + bucket.fresh
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
    elseif bucket.drain then
      recorded = of_tokens().record(bucket, key, times, units)
    elseif bucket.head then
      recorded = log_record(bucket, key, times, units)
      bucket.returned = bucket.returned or recorded > 0
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
-- Decides a batch: every decision over all its buckets at once, in order, exact to the microsecond. What differs by
-- algorithm stands in algorithms/: at a mark come the sections of that name, `each` of them, as a `chain` of tests, or
-- `else` as more tests of one.
--
-- KEYS     the buckets, then the holds, each once, all in one slot.
-- ARGV[1]  the request, packed big-endian:
--            not after I7, microseconds of Redis's clock: when it runs later than this, it does nothing
--            for each key       kind I1 | limit I4 | a I7 | b I7
--              kind 2, fixed window:           a = window, microseconds
--              kind 5, calendar window:        a, b = begin of two windows in a row, then two more I7: the ends of the
--                                              second and of the one after it. Redis's time must be in the first two,
--                                              or it is answered as if it was too late

--              kind 3, token bucket:           limit = burst, a = fine units drained per microsecond,
--                                              b = fine units per unit

--              kind 1, sliding log and window: a = window, b = precision (1 for a log), microseconds
--              kind 6, sliding window whose units may be spent until the end of their step (a lease): a, b as kind 1

--              kind 7, concurrency:            a = microseconds that a slot lasts after it was taken or renewed

--              kind 4, hold:                   b = 0 to leave it: limit = units, a = lifetime, microseconds
--                                              b = 1 to spend it: limit = 0, a = units that stay in it; or to leave it
--                                              as a mark unless it is there: limit = 1, a = lifetime
--                                              b = 2 to settle it: limit = 0, a = units that were used
--            for each step      what I1 | n I2 | index I4 (from 1) | units I4
--              what 0 takes, what 1 peeks, what 2 asks (takes, and a cost of 0 needs room for 1): n >= 1 takes of
--              bucket I4 | cost I4; index and units are the first.
--              what 3 settles: and then n of  bucket I4 | at I7 | units i5. Those below 0 come back to the bucket, the
--              others were taken elsewhere and are added; what is added to one bucket follows each other, oldest first.
--              index is the guard. If it is 0, there is none. If it is a hold to spend, up to `units` are taken off
--              it; no more come back, and `at` is the bucket's name in the hold. If it is one to settle, it ends, and
--              what was not used comes back likewise, or what was used beyond it is added as of now. If n is 0, the
--              hold's state but its units precedes the reply, for other calls to settle. If it is a mark, this leaves
--              it, and does nothing if it was there before.
--              what 4 leaves a hold, index, if the decision before it was admitted (or if there is none: then other
--              calls have taken): and then n buckets of  index I4 (of a receipt, to tell a token bucket of it; or 0) |
--              name I7 | taken at I7 (0: now) | two I7, by which rate it
--              drains: fine units per microsecond, and per unit (0: it does not drain).
--              what 5 stores slots of the bucket index, as many as units, if the decision before it was admitted; what
--              6 frees them, what 7 renews them: and then their id, 24 bytes.
-- ARGV[2]  the time in microseconds, for tests. Production leaves it out: Redis's clock is the one
--          that all sidecars share.
--
-- Replies with a string, for each step  result i4 | remaining i5 | reset I7 | retry after I7 | now I7,
-- times in microseconds; remaining is below 0 if more are held than the limit has. Result is 1 + the index of the take
-- that decided, negative if denied, and 0 if a key of the step holds what this script did not write: then it has taken
-- nothing, and settled the other buckets.
-- For what settles, result is 1 if units came back, 2 if some were added and 3 if the guard let nothing pass; remaining
-- is the most units of a bucket (without any, those of the hold). For slots, remaining is how many were added or freed,
-- and retry after how many had ended by themselves.
-- If it is too late, the reply is  now I7  alone.
--
-- Every bucket is read once, changed in Lua by each decision in turn, and written once, if at all.
-- Whatever its algorithm it has a `level` in fine units (`unit` of them to a unit) under a `cap`.
-- lua/README.md explains the layouts, the bounds, the cost of things, and how to add an algorithm.

local call, read = redis.call, redis.pcall
local pack, unpack = struct.pack, struct.unpack
local request, now = ARGV[1], ARGV[2]
if now then
  now = tonumber(now)
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local not_after, kind, limit, a, b, position = unpack('>I7I1I4I7I7', request)
if now > not_after then return pack('>I7', now) end

local HOLD = 4
local PEEK, ASK, SETTLE, LEAVE, STORE = 1, 2, 3, 4, 5
local TWO32, TWO48 = 4294967296, 281474976710656
-- More than any limit, and the most units that are counted.
local FULL = TWO32 - 1
-- When a key's end is set, it is this many microseconds later than that of its content: Redis expires keys by a
-- separate millisecond clock.
local MARGIN = 1000000

local FIXED, CALENDAR = 2, 5

local TOKEN = 3
-- A token bucket: its level in fine units, as of when, born, when the key expires; the rate that the level is counted
-- by, fine units per unit, and per microsecond; and the limit of what has taken, over which it is a debt. 43 bytes.
local TOKEN_STATE = '>I7I7I7I7I7I4I4'
-- What follows if a change of the policy has cut the level: the level without the cut, and the rate that it is counted
-- by. 18 bytes.
local UNCUT = '>I7I7I4'
-- Or, if it has not, what follows once receipts have been left: since when, and up to 8 groups of them (returns.rs in
-- sidecar/engine/src/algorithm explains them): the time of the last taking, the most that it and those before return,
-- and what is not settled. 7 bytes, and 21 for each group.
local GROUP = '>I7I7I7'

local LOG, LEASED = 1, 6
-- The log is a hash. Field `h` holds its head, then the oldest record that counts and up to AHEAD that follow it
-- (copies, so that the records that expire next are at hand), then the open block: the newest records, 1 to BLOCK.
-- A full block moves to a field named by its number; the record at position p is in block floor(p / BLOCK).
-- A record is its stamp (modulo 2^48) and the running total of units including it (modulo 2^32). A closed block's
-- records follow the sum that has to be subtracted from its totals, since units came back.
-- The head: position of the oldest record | blocks before its block not deleted yet | blocks after its
-- block | total before it | when the log was last empty | when the key expires | copies.
local LOG_HEAD, RECORD = '>I6I4I4I4I7I7I1', '>I6I4'
local BLOCK = 18
local AHEAD = 17
-- Each write deletes at most this many expired blocks, so that no call deletes thousands.
local SHED = 8
-- What comes back or a clock step touches at most this many blocks, so that no call blocks Redis for long.
local REACH = 1024
-- What one call adds rewrites at most this many closed blocks, at about 10 us each.
local DEPTH = 128

-- A sorted set: a member for each slot, with the time of its end. Its name is the id of those that were taken together,
-- and its number among them.
local SLOTS = 7

-- Functions that are not defined here are in slow_path.lua, which goes before this file.
local slow
-- Indices of keys that cannot be read, if there are any.
local broken

-- Reads every bucket. Tables name all their fields at once, because a table that grows costs more.
-- kept is the level as read, 0 if nothing of the stored state is kept; fresh is how long units taken now will be held
-- (a token bucket has a drain instead).
local buckets = {}
for i = 1, #KEYS do
  local key = KEYS[i]
  if i > 1 then kind, limit, a, b, position = unpack('>I1I4I7I7', request, position) end
  if kind == FIXED or kind == CALENDAR then
    local edge = now - now % a
    local ends = edge + a
    if kind == CALENDAR then
      edge, ends, a, position = read_edges(now, a, b, request, position)
      if not edge then
        -- Nothing is written yet but later ends of token buckets' keys, which do no harm, unless a log has been mended:
        -- then only who asks for this one gets no answer.
        if not slow then return pack('>I7', now) end
        broken = broken or {}
        broken[i], edge, ends = true, now, now
      end
    end
    local state = ends > now and read('GET', key)
    local level, kept, born, following = 0, 0, now
    if state then
      if #state == 18 then
        local start, count, since = unpack('>I7I4I7', state)
        if start == edge then
          level, kept, born = count, count, since
        elseif start > edge and start < ends then
          -- By whoever wrote it this window began later: the zone's rules changed with another version.
          edge, level, kept, born = start, count, count, since
        elseif start > edge then
          -- The clock stepped back into an earlier window, whose count is lost: it is full for any limit.
          level, born = FULL, now + 1
          if start == ends then
            -- Back by one window: the following window keeps its count, and this one is not written.
            kept, following = level, count
          end
        end
      else
        broken = broken or {}
        broken[i] = true
      end
    end
    -- a is the length of the window that follows.
    local bucket = {
      a = a, cap = limit, level = level, kept = kept, fresh = ends - now, born = born, start = edge,
    }
    if following then bucket.following, bucket.last = following, ends end
    buckets[i] = bucket
  elseif kind == TOKEN then
    local state, level, kept, born, expires = read('GET', key), 0, 0, now, 0
    local bucket, burst
    if state then
      local stored, as_of, since, stored_expires, unit, rate
      local size = #state
      if size == 43 then stored, as_of, since, stored_expires, unit, rate, burst = unpack(TOKEN_STATE, state) end
      if unit == b and rate == a and limit >= burst and as_of <= now then
        level, born, expires = stored - (now - as_of) * a, since, stored_expires
        if level <= 0 then level, born, burst = 0, now, nil end
        kept = level
      elseif size == 43 or size == 61 or size > 50 and size % 21 == 8 then
        bucket = read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT, GROUP)
      else
        broken = broken or {}
        broken[i] = true
      end
    end
    buckets[i] = bucket or {
      drain = a, unit = b, cap = limit * b, level = level, kept = kept, born = born, expires = expires,
      stored_burst = burst,
    }
  elseif kind == LOG or kind == LEASED then
    local stamp, kept = now + (-now) % b, 0
    local head, lag, blocks, base, born, expires, ahead, from = 0, 0, 0, 0, now, 0, 0, 1
    local head_stamp, last = 0, 0
    local records = read('HGET', key, 'h')
    local size = records and #records
    -- A head of 33 bytes and records of 10: the oldest, its copies, and one in the open block at least.
    if size and size >= 53 and size % 10 == 3 then
      head, lag, blocks, base, born, expires, ahead, from = unpack(LOG_HEAD, records)
    end
    if size and (from == 1 or size < 53 + 10 * ahead) then
      broken = broken or {}
      broken[i] = true
    elseif size then
      local newest, total = unpack(RECORD, records, size - 9)
      last = expires - (expires - newest) % TWO48
      if last + a > now then
        local head_total
        head_stamp, head_total = unpack(RECORD, records, from)
        head_stamp = last - (last - head_stamp) % TWO48
        local horizon = now - a
        while head_stamp <= horizon and ahead > 0 do
          base, head, ahead, from = head_total, head + 1, ahead - 1, from + 10
          head_stamp, head_total = unpack(RECORD, records, from)
          head_stamp = last - (last - head_stamp) % TWO48
        end
        kept = (total - base) % TWO32
        -- The clock stepped back: units of a lease may still be spent until the end of their step. So the end of the
        -- next step is believed as a stamp, later ones become that, and so does what is taken now.
        if kind == LEASED and last > stamp then stamp = stamp + b end
      end
    end
    local log = {
      a = a, b = b, cap = limit, level = kept, kept = kept, fresh = stamp + a - now,
      born = kept > 0 and born or now, head = head, lag = lag, blocks = blocks, base = base, last = last,
      expires = expires, ahead = ahead, from = from, records = records,
    }
    if kept > 0 and (last > stamp or head_stamp + a <= now) then
      slow = slow or slow_path(now, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
      if not slow.try(slow.mend, log, key, stamp) then
        broken = broken or {}
        broken[i], log = true, { cap = 0, level = 0, kept = 0 }
      end
    end
    buckets[i] = log
  elseif kind == SLOTS then
    local level = read('ZCOUNT', key, now + 1, '+inf')
    if type(level) ~= 'number' then
      broken = broken or {}
      broken[i], level = true, 0
    elseif level > 0 then
      -- The clock stepped back: those that end later than any slot could are renewed now.
      local ends = now + a
      if tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) > ends then
        for _, slot in ipairs(call('ZRANGEBYSCORE', key, ends + 1, '+inf')) do call('ZADD', key, ends, slot) end
      end
    end
    -- When one will be free is not known. So a limit that has a time decides a denial.
    buckets[i] = { a = a, cap = limit, level = level, kept = level, fresh = 1, born = 0 }
  elseif kind == HOLD then
    buckets[i] = read_hold(key, limit, a, b)
  else
    error('sluicegate: unknown kind of bucket')
  end
end

if broken then slow = slow or slow_path(now, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48) end
local reply, replies
local ends = #request
while position <= ends do
  local what, takes, index, cost
  local first = position + 3
  what, takes, index, cost, position = unpack('>I1I2I4I4', request, position)
  local result, remaining, reset, retry, debt = 1, 0, 0, 0, 0
  local bucket, tightest, lost
  if what > LEAVE then
    bucket = buckets[index]
    if broken and broken[index] then
      result, position = 0, position + 24
    else
      result, remaining, retry, position =
        change_slots(what, bucket, KEYS[index], now, cost, request, position, what == STORE and reply)
    end
  elseif what == LEAVE then
    -- A hold of so many buckets, if the decision of this reply was admitted, or if other calls have taken.
    bucket, first, position = buckets[index], position, position + 32 * takes
    result = reply and unpack('>i4', reply) or 1
    if result > 0 then
      local held = { pack('>I7', now) }
      for at = first, position - 1, 32 do
        held[#held + 1] = string.sub(request, at + 4, at + 31)
        local taken = buckets[unpack('>I4', request, at)]
        if taken and taken.drain then
          slow = slow or slow_path(now, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
          slow.leave(taken, bucket.units)
        end
      end
      bucket.level, bucket.held = bucket.units + 1, table.concat(held)
    end
  elseif what == SETTLE then
    slow = slow or slow_path(now, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
    result, remaining, position, replies =
      slow.settle(buckets, broken, takes, index, cost, request, position, replies)
  elseif broken and slow.touches(broken, request, first, takes) then
    result, position = 0, first + 8 * takes
  else
    -- First check every take; of those without room, the one with the longest wait decides.
    for i = 1, takes do
      if i > 1 then index, cost, position = unpack('>I4I4', request, position) end
      bucket = buckets[index]
      if what == ASK and cost == 0 then cost = 1 end
      if bucket.adopts then bucket.returned = true end
      local drain = bucket.drain
      local over = bucket.level + (drain and cost * bucket.unit or cost) - bucket.cap
      if over > 0 and cost > 0 then
        local later = bucket.fresh
        if drain then
          later = (over + (-over) % drain) / drain
        elseif bucket.following and bucket.following + cost > bucket.cap then
          later = later + bucket.a
        elseif bucket.head and over <= bucket.kept then
          -- Not when the oldest record expires, but when enough have expired; often that is the same.
          local stamp, total = unpack(RECORD, bucket.records, bucket.from)
          if over <= (total - bucket.base) % TWO32 then
            stamp = bucket.last - (bucket.last - stamp) % TWO48
          else
            slow = slow or slow_path(now, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
            stamp = slow.try(slow.room, bucket, KEYS[index], over)
            if not stamp then
              broken = broken or {}
              broken[index], lost, stamp = true, true, 0
            end
          end
          later = stamp + bucket.a - now
        end
        if later > retry then
          result, retry, tightest = -i, later, bucket
        elseif later == retry then
          slow = slow or slow_path(now, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
          if slow.tighter(bucket, tightest) then result, tightest = -i, bucket end
        end
      end
    end
    -- Then, if all have room, take from each; the reply describes the tightest.
    local from, to = 1, takes
    if retry > 0 then from, to = -result, -result end
    if lost then result, to = 0, 0 end
    for i = from, to do
      if takes > 1 or what == ASK then index, cost = unpack('>I4I4', request, first + (i - 1) * 8) end
      bucket = buckets[index]
      local level, drain = bucket.level, bucket.drain
      if retry == 0 and cost > 0 and what ~= PEEK then
        level = level + (drain and cost * bucket.unit or cost)
        bucket.level = level
      elseif what == ASK and retry == 0 and bucket.held then
        -- What is charged later counts by the rate that has admitted this.
        local held = bucket.held
        local differs = held.drain ~= drain or held.unit ~= bucket.unit
        bucket.returned = bucket.returned or differs and held.level + held.uncut > 0
      end
      local left, whole, over = bucket.cap - level, 0, 0
      if drain then left = (left - left % bucket.unit) / bucket.unit end
      if left < 0 then
        -- Of the most that is counted, as of a window whose count is lost, it is not known by how much.
        if drain or level < FULL then over = left end
        left = 0
      end
      if level > 0 then
        if drain then
          whole = (level + (-level) % drain) / drain
        else
          -- What is kept expires with its last entry; what was taken now expires later.
          local last = level == bucket.kept and bucket.last
          whole = last and last + bucket.a - now or bucket.fresh
        end
      end
      if i == from or left < remaining or left == remaining and whole > reset then
        remaining, reset, debt = left, whole, over
        if retry == 0 then result = i end
      end
    end
  end
  reply = pack('>i4i5I7I7I7', result, remaining + debt, reset, retry, now)
  if replies or position <= ends then
    replies = replies or {}
    replies[#replies + 1] = reply
  end
end
if position ~= ends + 1 then error('sluicegate: request cut short') end

for i = 1, #buckets do
  local bucket = buckets[i]
  local level, kept = bucket.level, bucket.kept
  if level ~= kept or bucket.returned then
    local key, born = KEYS[i], bucket.born
    if level == 0 and not bucket.uncut then
      call('UNLINK', key)
    elseif bucket.start then
      local state = pack('>I7I4I7', bucket.start, level, born)
      if kept > 0 then
        call('SET', key, state, 'KEEPTTL')
      else
        local lifetime = bucket.fresh + MARGIN
        call('SET', key, state, 'PX', (lifetime + (-lifetime) % 1000) / 1000)
      end
    elseif bucket.uncut then
      save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT, GROUP)
    elseif bucket.drain then
      local empty = (level + (-level) % bucket.drain) / bucket.drain
      local expires, burst = bucket.expires, bucket.burst or bucket.cap / bucket.unit
      if expires < now + empty then
        -- Twice as long as needed, so that a filling bucket is not extended at each step.
        local lifetime = 2 * empty + MARGIN
        local state = pack(TOKEN_STATE, level, now, born, now + lifetime, bucket.unit, bucket.drain, burst)
        call('SET', key, state, 'PX', (lifetime + (-lifetime) % 1000) / 1000)
      else
        local state = pack(TOKEN_STATE, level, now, born, expires, bucket.unit, bucket.drain, burst)
        call('SET', key, state, 'KEEPTTL')
      end
    elseif bucket.head then
      local sub, window, records, from, record = string.sub, bucket.a, bucket.records, bucket.from, ''
      local head, lag, blocks, base = bucket.head, bucket.lag, bucket.blocks, bucket.base
      local expires, ahead, stamp, last = bucket.expires, bucket.ahead, bucket.fresh + now - window, bucket.last
      if kept == 0 then
        -- Nothing older counts: start again. UNLINK frees any number of blocks in the background.
        if lag + blocks > 0 then
          call('UNLINK', key)
          expires = 0
        end
        head, lag, blocks, base, ahead, last = 0, 0, 0, 0, 0, stamp
        -- The oldest record's copy, and the open block.
        record = pack(RECORD, stamp % TWO48, level)
        records, from = record, 1
      elseif level > kept then
        record = pack(RECORD, stamp % TWO48, (base + level) % TWO32)
        local open = from + 10 + ahead * 10
        local length = (#records - open + 1) / 10
        if last == stamp then
          -- Replaces the last record, and drops its copy if the copies reach that far. The oldest record's copy stays.
          records, from = sub(records, from, -11), 1
          local copies = blocks * BLOCK + length - 1 - head % BLOCK
          if copies == 0 then
            records = record .. sub(records, 11)
          elseif ahead >= copies then
            records, ahead = sub(records, 1, copies * 10) .. sub(records, ahead * 10 + 11), copies - 1
          end
        elseif length == BLOCK then
          call('HSET', key, blocks + (head - head % BLOCK) / BLOCK, '\0\0\0\0' .. sub(records, open))
          records, from, blocks = sub(records, from, open - 1), 1, blocks + 1
        end
        last = stamp
      end
      if lag > 0 then
        local oldest, fields = (head - head % BLOCK) / BLOCK - lag, {}
        for number = oldest, oldest + (lag < SHED and lag or SHED) - 1 do fields[#fields + 1] = number end
        call('HDEL', key, _G.unpack(fields))
        lag = lag - #fields
      end
      local extend = expires < last + window
      if extend then expires = last + window + math.ceil(window / 4) + MARGIN end
      call('HSET', key, 'h',
        pack(LOG_HEAD, head, lag, blocks, base, born, expires, ahead) .. sub(records, from) .. record)
      if extend and read('PEXPIRE', key, math.ceil((expires - now) / 1000)) ~= 1 then
        -- It is refused, and a new key would never expire. It comes after a write that needs memory, since after one
        -- that needs none Redis allows all others even when it is full.
        if kept == 0 or bucket.expires == 0 then call('UNLINK', key) end
        call('PEXPIRE', key, 1)
      end
    else
      local state = pack('>I4', level - 1) .. bucket.held
      if kept > 0 then
        call('SET', key, state, 'KEEPTTL')
      else
        call('SET', key, state, 'PX', math.ceil(bucket.number / 1000))
      end
    end
  end
end
return replies and table.concat(replies) or reply
