-- Decides a batch: every decision over all its buckets at once, in order, exact to the microsecond.
--
-- KEYS     the buckets, each once, all in one slot.
-- ARGV[1]  the request, packed big-endian:
--            for each key       kind I1 | limit I4 | a I7 | b I7
--              kind 1, sliding log and window: a = window, b = precision (1 for a log), microseconds
--              kind 2, fixed window:           a = window, microseconds
--              kind 3, token bucket:           limit = burst, a = fine units drained per microsecond,
--                                              b = fine units per unit
--            for each decision  what I1 | n I2, then n takes of  bucket I4 (from 1) | cost I4
--              what 0 takes, what 1 peeks
--              what 2 gives back: one take (n = 1), and after it  at I7, the time of the taking
--            A batch that gives back does nothing else.
-- ARGV[2]  the time in microseconds, for tests. Production leaves it out: Redis's clock is the one
--          that all sidecars share.
--
-- Replies with integers: the time, then for each decision four:
--   1 + the index of the take that decided, negative if denied | remaining | reset us | retry-after us
--   or, for a give-back,  1 | units returned | 0 | 0
--
-- Every bucket is read once, changed in Lua by each decision in turn, and written once, if at all.
-- Whatever its algorithm it has a `level` in fine units (`unit` of them to a unit) under a `cap`.
-- lua/README.md explains the layouts, the bounds, and how to add an algorithm.

local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
local floor, ceil = math.floor, math.ceil
local request, now = ARGV[1], tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local LOG, FIXED, TOKEN = 1, 2, 3
local PEEK, GIVE_BACK = 1, 2
local TWO32, TWO48 = 4294967296, 281474976710656
-- A key outlives what it holds by this much: Redis expires by a millisecond clock of its own reading.
local MARGIN = 1000000

-- The log is a hash. Field `h` holds its head and the open block: the newest records, 1 to 31. A full
-- block moves to a field named by its number; the record at position p is in block floor(p / BLOCK).
-- A record is its stamp (modulo 2^48) and the running total of units with it (modulo 2^32). Before a
-- closed block's records stands what give-backs have since added to its totals.
local LOG_HEAD, RECORD = '>I6I4I3I4I4I4I7I7I7I7', '>I6I4'
local BLOCK = 31
-- Each write deletes at most this many expired blocks: no call pays for thousands.
local SHED = 8
-- A give-back or a step of the clock touches at most this many blocks: a call must not hold Redis.
local REACH = 1024
-- Made only for batches with a log: each closure costs a fiftieth of a call.
local log_search, log_truncate, log_load, log_give_back, log_save

local function make_log_functions()
  -- Stamp of the record at position p, and units from the head up to it.
  local function record(bucket, p)
    local number = floor(p / BLOCK)
    local block, offset, shift = bucket.open, (p - number * BLOCK) * 10 + 1, 0
    if number ~= bucket.open_number then
      if bucket.read_number ~= number then
        bucket.read_number, bucket.read = number, call('HGET', bucket.key, number)
      end
      block, offset, shift = bucket.read, offset + 4, unpack('>I4', bucket.read)
    end
    local stamp, total = unpack(RECORD, block, offset)
    return bucket.last - (bucket.last - stamp) % TWO48, (total + shift - bucket.base) % TWO32
  end

  -- The first position whose stamp (or units up to it) is at least `value`, as that of the last must be;
  -- with its stamp, units up to it, and units before it. What is sought is mostly near the head.
  function log_search(bucket, by_stamp, value)
    local low, before = bucket.head, (bucket.head_total - bucket.base) % TWO32
    if (by_stamp and bucket.head_stamp or before) >= value then
      return low, bucket.head_stamp, before, 0
    end
    local last, step = bucket.head + bucket.length - 1, 1
    local high, stamp, units
    while true do
      high = low + step
      if high > last then high = last end
      stamp, units = record(bucket, high)
      if (by_stamp and stamp or units) >= value then break end
      low, before, step = high, units, step * 2
    end
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      local s, u = record(bucket, middle)
      if (by_stamp and s or u) >= value then
        high, stamp, units = middle, s, u
      else
        low, before = middle, u
      end
    end
    return high, stamp, units, before
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

  -- Cuts off the records from position p on; there are some before it, holding `units`.
  function log_truncate(bucket, p, units)
    local number = floor((p - 1) / BLOCK)
    if number < bucket.open_number then
      local block = call('HGET', bucket.key, number)
      bucket.open = lower(sub(block, 5), 0, -unpack('>I4', block))
      -- What is beyond the reach stays until the log grows over it, or expires.
      local fields = {}
      for i = number, math.min(bucket.open_number - 1, number + REACH) do
        fields[#fields + 1] = i
      end
      call('HDEL', bucket.key, _G.unpack(fields))
      bucket.open_number = number
    end
    bucket.open = sub(bucket.open, 1, (p - number * BLOCK) * 10)
    local stamp = unpack(RECORD, bucket.open, #bucket.open - 9)
    bucket.last = bucket.last - (bucket.last - stamp) % TWO48
    bucket.total = (bucket.base + units) % TWO32
    bucket.length = p - bucket.head
  end

  function log_load(bucket)
    local window, precision = bucket.a, bucket.b
    local stamp = now + (-now) % precision
    bucket.stamp, bucket.pending, bucket.kept = stamp, 0, 0
    local state = call('HGET', bucket.key, 'h')
    if not state then
      bucket.head, bucket.length, bucket.lag, bucket.expires, bucket.open_number = 0, 0, 0, 0, 0
      return
    end
    local records
    bucket.head, bucket.length, bucket.lag, bucket.base, bucket.total, bucket.head_total,
      bucket.head_stamp, bucket.last, bucket.born, bucket.expires, records = unpack(LOG_HEAD, state)
    bucket.open = sub(state, records)
    bucket.open_number = floor((bucket.head + bucket.length - 1) / BLOCK)
    local kept = (bucket.total - bucket.base) % TWO32

    if bucket.last > stamp then
      -- The clock stepped back: what is stamped later becomes of now, held for a window at most.
      local p, _, _, before = log_search(bucket, true, stamp + 1)
      bucket.pending, bucket.healed, bucket.dirty = kept - before, true, true
      bucket.born, bucket.expires = now + 1, 0
      kept = before
      if p > bucket.head then log_truncate(bucket, p, before) else bucket.length = 0 end
    end

    if kept == 0 or bucket.last + window <= now then
      kept = 0
    elseif bucket.head_stamp + window <= now then
      local p, head_stamp, units, before = log_search(bucket, true, now - window + 1)
      bucket.lag = bucket.lag + floor(p / BLOCK) - floor(bucket.head / BLOCK)
      bucket.length, bucket.head, bucket.head_stamp = bucket.length - (p - bucket.head), p, head_stamp
      bucket.head_total = (bucket.base + units) % TWO32
      bucket.base = (bucket.base + before) % TWO32
      kept = kept - before
    end
    bucket.kept, bucket.level = kept, kept + bucket.pending
  end

  function log_give_back(bucket, cost, at)
    local stamp = at + (-at) % bucket.b
    if bucket.kept == 0 or stamp + bucket.a <= now or stamp > bucket.last then return 0 end
    local p, found, units, before = log_search(bucket, true, stamp)
    local number = floor(p / BLOCK)
    local returned = math.min(cost, units - before)
    if found ~= stamp or returned == 0 or bucket.open_number - number > REACH then return 0 end
    local from = p - number * BLOCK
    for i = number, bucket.open_number - 1 do
      local block = call('HGET', bucket.key, i)
      if i == number then
        block = sub(block, 1, 4) .. lower(sub(block, 5), from, returned)
      else
        block = pack('>I4', (unpack('>I4', block) - returned) % TWO32) .. sub(block, 5)
      end
      call('HSET', bucket.key, i, block)
      from = 0
    end
    bucket.open = lower(bucket.open, from, returned)
    bucket.read_number = nil
    bucket.total = (bucket.total - returned) % TWO32
    if p == bucket.head then bucket.head_total = (bucket.head_total - returned) % TWO32 end
    bucket.kept = bucket.kept - returned
    if bucket.kept > 0 and p == bucket.head + bucket.length - 1 and returned == units - before then
      -- The last record always holds units: it is what tells when the log will be empty.
      log_truncate(bucket, log_search(bucket, false, bucket.kept) + 1, bucket.kept)
    end
    return returned
  end

  function log_save(bucket)
    local key, stamp, pending = bucket.key, bucket.stamp, bucket.pending
    local oldest = floor(bucket.head / BLOCK) - bucket.lag
    if bucket.kept == 0 then
      -- Nothing older counts: begin anew. UNLINK frees any number of blocks in the background.
      if bucket.open_number > oldest then
        call('UNLINK', key)
        bucket.expires = 0
      end
      bucket.head, bucket.length, bucket.lag, bucket.base = 0, 1, 0, 0
      bucket.total, bucket.head_total, bucket.head_stamp, bucket.last = pending, pending, stamp, stamp
      bucket.born = bucket.healed and bucket.born or now
      bucket.open = pack(RECORD, stamp % TWO48, pending)
    elseif pending > 0 then
      bucket.total = (bucket.total + pending) % TWO32
      if bucket.last == stamp then
        bucket.open = sub(bucket.open, 1, -5) .. pack('>I4', bucket.total)
        if bucket.length == 1 then bucket.head_total = bucket.total end
      else
        if #bucket.open == BLOCK * 10 then
          call('HSET', key, bucket.open_number, '\0\0\0\0' .. bucket.open)
          bucket.open = ''
        end
        bucket.open = bucket.open .. pack(RECORD, stamp % TWO48, bucket.total)
        bucket.length, bucket.last = bucket.length + 1, stamp
      end
    end
    if bucket.lag > 0 then
      local fields = {}
      for i = oldest, oldest + math.min(bucket.lag, SHED) - 1 do fields[#fields + 1] = i end
      call('HDEL', key, _G.unpack(fields))
      bucket.lag = bucket.lag - #fields
    end
    local expires = bucket.expires
    local extend = expires < bucket.last + bucket.a
    if extend then expires = bucket.last + bucket.a + ceil(bucket.a / 4) + MARGIN end
    call('HSET', key, 'h', pack(LOG_HEAD, bucket.head, bucket.length, bucket.lag, bucket.base,
      bucket.total, bucket.head_total, bucket.head_stamp, bucket.last, bucket.born, expires) .. bucket.open)
    if extend then call('PEXPIRE', key, ceil((expires - now) / 1000)) end
  end
end

-- Microseconds until `level` fine units, counted from the first to go, have gone.
local function wait(bucket, level)
  local kind = bucket.kind
  if level <= 0 then return 0 end
  if kind == FIXED then return bucket.a - now % bucket.a end
  if kind == TOKEN then return floor((level + bucket.a - 1) / bucket.a) end
  if level > bucket.kept then return bucket.stamp + bucket.a - now end
  if level == bucket.kept then return bucket.last + bucket.a - now end
  local _, stamp = log_search(bucket, false, level)
  return stamp + bucket.a - now
end

local function give_back(bucket, cost, at)
  if bucket.level == 0 or at < bucket.born or at > now then return 0 end
  local returned, units
  if bucket.kind == LOG then
    returned = log_give_back(bucket, cost, at)
    units = returned
  elseif bucket.kind == FIXED then
    returned = at >= now - now % bucket.a and math.min(cost, bucket.level) or 0
    units = returned
  else
    -- What has drained since was as if returned already; a part of a unit is reported as one.
    returned = math.max(0, math.min(bucket.level, cost * bucket.unit - (now - at) * bucket.a))
    units = floor((returned + bucket.unit - 1) / bucket.unit)
  end
  bucket.level = bucket.level - returned
  bucket.dirty = bucket.dirty or returned > 0
  return units
end

local position, buckets = 1, {}
for i = 1, #KEYS do
  local kind, limit, a, b
  kind, limit, a, b, position = unpack('>I1I4I7I7', request, position)
  local bucket = { key = KEYS[i], kind = kind, a = a, b = b, unit = 1, cap = limit, level = 0 }
  if kind == FIXED then
    local state, number = call('GET', KEYS[i]), floor(now / a)
    if state then
      local stored, count, born = unpack('>I7I4I7', state)
      if stored == number then
        bucket.level, bucket.born = count, born
      elseif stored > number then
        -- The clock stepped back over an edge. What this window had admitted is forgotten: it is full.
        bucket.level, bucket.born = math.max(count, limit), now + 1
        bucket.healed, bucket.dirty = true, true
      end
    end
    bucket.kept = bucket.level
  elseif kind == TOKEN then
    local state = call('GET', KEYS[i])
    bucket.unit, bucket.cap, bucket.expires = b, limit * b, 0
    if state then
      local level, as_of, born, expires = unpack('>I7I7I7I7', state)
      if as_of > now then
        -- The clock stepped back: drain from the new now on.
        as_of, born, expires = now, now + 1, 0
        bucket.dirty = true
      end
      bucket.level = math.max(0, level - (now - as_of) * a)
      bucket.born, bucket.expires = born, expires
    end
    bucket.kept = bucket.level
  else
    assert(kind == LOG, 'sluicegate: unknown kind of bucket')
    if not log_load then make_log_functions() end
    log_load(bucket)
  end
  buckets[i] = bucket
end

local reply, n = { now, 0, 0, 0, 0 }, 1
while position <= #request do
  local what, takes, start
  what, takes, start = unpack('>I1I2', request, position)
  position = start
  local said, remaining, reset, retry = 1, 0, 0, 0
  -- First look at every take; of the denying ones the last to have room decides.
  for i = 1, takes do
    local index, cost
    index, cost, position = unpack('>I4I4', request, position)
    local bucket = buckets[index]
    local over = bucket.level + cost * bucket.unit - bucket.cap
    if over > 0 and cost > 0 and what ~= GIVE_BACK then
      local later = wait(bucket, over)
      if later > retry then said, retry = -i, later end
    end
  end
  if what == GIVE_BACK then
    local index, cost, at
    index, cost, at, position = unpack('>I4I4I7', request, start)
    remaining = give_back(buckets[index], cost, at)
  elseif retry > 0 then
    local bucket = buckets[unpack('>I4', request, start - (said + 1) * 8)]
    remaining = math.max(0, floor((bucket.cap - bucket.level) / bucket.unit))
    reset = wait(bucket, bucket.level)
  else
    -- Then, since all have room, take from each; the tightest is what the caller hears of.
    for i = 1, takes do
      local index, cost
      index, cost, start = unpack('>I4I4', request, start)
      local bucket = buckets[index]
      if cost > 0 and what ~= PEEK then
        bucket.level = bucket.level + cost * bucket.unit
        bucket.dirty = true
        if bucket.pending then bucket.pending = bucket.pending + cost end
      end
      local left = math.max(0, floor((bucket.cap - bucket.level) / bucket.unit))
      if i == 1 or left <= remaining then
        local whole = wait(bucket, bucket.level)
        if i == 1 or left < remaining or whole > reset then said, remaining, reset = i, left, whole end
      end
    end
  end
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = said, remaining, reset, retry
  n = n + 4
end
assert(position == #request + 1, 'sluicegate: request cut short')

for i = 1, #buckets do
  local bucket = buckets[i]
  if bucket.dirty then
    local key, kind, level, a = bucket.key, bucket.kind, bucket.level, bucket.a
    if level == 0 then
      call('UNLINK', key)
    elseif kind == LOG then
      log_save(bucket)
    elseif kind == FIXED then
      if bucket.kept == 0 or bucket.healed then
        local state = pack('>I7I4I7', floor(now / a), level, bucket.healed and bucket.born or now)
        call('SET', key, state, 'PX', ceil((a - now % a + MARGIN) / 1000))
      else
        call('SET', key, pack('>I7I4I7', floor(now / a), level, bucket.born), 'KEEPTTL')
      end
    else
      local empty = floor((level + a - 1) / a)
      local born = bucket.kept == 0 and now or bucket.born
      if bucket.expires < now + empty then
        -- Twice as long as needed, so that a filling bucket is not extended at each step.
        local lifetime = 2 * empty + MARGIN
        call('SET', key, pack('>I7I7I7I7', level, now, born, now + lifetime), 'PX', ceil(lifetime / 1000))
      else
        call('SET', key, pack('>I7I7I7I7', level, now, born, bucket.expires), 'KEEPTTL')
      end
    end
  end
end
return reply
