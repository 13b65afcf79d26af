-- Sliding logs and windows: the times of admissions. The sections that decide.lua and slow_path.lua call for.

--@contract
--              kind 1, sliding log and window: a = window, b = precision (1 for a log), microseconds
--              kind 6, sliding window whose units may be spent until the end of their step (a lease): a, b as kind 1

--@constants
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

--@read
  if kind == LOG or kind == LEASED then
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

--@room
        if bucket.head and over <= bucket.kept then
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

--@save
    if bucket.head then
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

--@slow
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

--@restore
    if bucket.head then
      returned = log_restore(bucket, key, cost, at)
      bucket.level = bucket.level - returned

--@record
    if bucket.head then
      recorded = log_record(bucket, key, times, units)
      bucket.returned = bucket.returned or recorded > 0
