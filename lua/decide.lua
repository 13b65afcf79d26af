-- Decides a batch: every decision over all its buckets at once, in order, exact to the microsecond.
--
-- KEYS     the buckets, then the receipts, each once, all in one slot.
-- ARGV[1]  the request, packed big-endian:
--            not after I7, microseconds of Redis's clock: when it runs later than this, it does nothing
--            for each key       kind I1 | limit I4 | a I7 | b I7
--              kind 1, sliding log and window: a = window, b = precision (1 for a log), microseconds
--              kind 6, sliding window whose units may be spent until the end of their step (a lease): a, b as kind 1
--              kind 2, fixed window:           a = window, microseconds
--              kind 3, token bucket:           limit = burst, a = fine units drained per microsecond,
--                                              b = fine units per unit
--              kind 5, calendar window:        a, b = begin of two windows in a row, then two more I7: the ends of the
--                                              second and of the one after it. Redis's time must be in the first two,
--                                              or it is answered as if it was too late
--              kind 4, receipt:                limit = units, a = lifetime, microseconds; to be read if both are 0;
--                                              b times I7, if other calls have taken the units: one for each bucket
--            for each decision  what I1 | n I2, then n >= 1 takes of  bucket I4 (from 1) | cost I4
--              what 0 takes, what 1 peeks
--              what 2 gives back: one take, and after it  at I7, the time of the taking
--              what 3 writes back what was taken elsewhere: n is of records, the one take has in place of a cost the
--              bucket (0: none) that holds something if this was done before, and then nothing is recorded; after it
--              come the records, oldest first, of  at I7 | units I4
--              what 4 leaves n receipts, the first at bucket, if the decision before it was admitted (or if there is
--              none: then other calls have taken); cost 0
--              what 5 returns up to cost units by the receipt at bucket, and after them come n of  bucket I4; if that
--              is the receipt again, other calls return them, and before the reply come its times, I7 each
--            A batch that gives or writes back does nothing else (but take from the bucket that says it was done),
--            and names each bucket once; one that returns does nothing else, either.
-- ARGV[2]  the time in microseconds, for tests. Production leaves it out: Redis's clock is the one
--          that all sidecars share.
--
-- Replies with a string, for each decision  result i4 | remaining I4 | reset I7 | retry after I7 | now I7,
-- times in microseconds; result is 1 + the index of the take that decided, negative if denied, and 0 if a key
-- of the decision holds what this script did not write: then it has taken nothing.
-- For what gives or writes back or returns, remaining is the units returned (to the bucket that most went to)
-- or recorded.
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

local LOG, FIXED, TOKEN, RECEIPT, CALENDAR, LEASED = 1, 2, 3, 4, 5, 6
local PEEK, GIVE_BACK, RECEIPTS = 1, 2, 4
local TWO32, TWO48 = 4294967296, 281474976710656
-- The largest limit.
local FULL = 2147483647
-- When a key's end is set, it is this many microseconds later than that of its content: Redis expires keys by a
-- separate millisecond clock.
local MARGIN = 1000000

-- The log is a hash. Field `h` holds its head, then the oldest record that counts and up to AHEAD that follow it
-- (copies, so that the records that expire next are at hand), then the open block: the newest records, 1 to BLOCK.
-- A full block moves to a field named by its number; the record at position p is in block floor(p / BLOCK).
-- A record is its stamp (modulo 2^48) and the running total of units including it (modulo 2^32). A closed block's
-- records follow the sum that give-backs have since added to its totals.
-- The head: position of the oldest record | blocks before its block not deleted yet | blocks after its
-- block | total before it | when the log was last empty | when the key expires | copies.
local LOG_HEAD, RECORD = '>I6I4I4I4I7I7I1', '>I6I4'
local BLOCK = 18
local AHEAD = 17
-- Each write deletes at most this many expired blocks, so that no call deletes thousands.
local SHED = 8
-- A give-back or a clock step touches at most this many blocks, so that no call blocks Redis for long.
local REACH = 1024
-- The write-backs of one call rewrite at most this many closed blocks, at about 10 us each.
local DEPTH = 128

-- A token bucket: its level in fine units, as of when, born, when the key expires; and the rate that the level is
-- counted by: fine units per unit, and per microsecond. 39 bytes.
local TOKEN_STATE = '>I7I7I7I7I7I4'
-- What follows if a change of the policy has cut the level: the level without the cut, the rate that it is counted by,
-- and the limit that the other was cut to. 22 bytes.
local UNCUT = '>I7I7I4I4'

-- slow_path, read_edges, read_receipt, read_token and save_token are in slow_path.lua, which goes before this file.
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
          level, born = count > FULL and count or FULL, now + 1
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
    local bucket
    if state then
      local stored, as_of, since, stored_expires, unit, rate
      local size = #state
      if size == 39 then stored, as_of, since, stored_expires, unit, rate = unpack(TOKEN_STATE, state) end
      if unit == b and rate == a then
        level, born, expires = stored, since, stored_expires
        if as_of > now then
          -- The clock stepped back: drain from the new now on. What was taken before cannot be told by its time from
          -- what is taken until the clock is there again.
          born, expires = as_of + 1, 0
        else
          level = stored - (now - as_of) * a
          if level <= 0 then level, born = 0, now end
          kept = level
        end
      elseif size == 39 or size == 61 then
        bucket = read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT)
      else
        broken = broken or {}
        broken[i] = true
      end
    end
    buckets[i] = bucket or {
      drain = a, unit = b, cap = limit * b, level = level, kept = kept, born = born, expires = expires,
    }
  elseif kind == RECEIPT then
    buckets[i], position = read_receipt(key, limit, a, b, request, position)
  else
    if kind ~= LOG and kind ~= LEASED then error('sluicegate: unknown kind of bucket') end
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
      slow = slow or slow_path(now, GIVE_BACK, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
      if not slow.try(slow.mend, log, key, stamp) then
        broken = broken or {}
        broken[i], log = true, { cap = 0, level = 0, kept = 0 }
      end
    end
    buckets[i] = log
  end
end

if broken then slow = slow or slow_path(now, GIVE_BACK, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48) end
local reply, replies
local ends = #request
while position <= ends do
  local what, takes, index, cost
  local first = position + 3
  what, takes, index, cost, position = unpack('>I1I2I4I4', request, position)
  local result, remaining, reset, retry = 1, 0, 0, 0
  local bucket, tightest, lost
  if what >= GIVE_BACK then
    slow = slow or slow_path(now, GIVE_BACK, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
    if what == RECEIPTS then
      slow.leave(buckets, takes, index, reply)
    elseif what > RECEIPTS then
      result, remaining, position, replies =
        slow.redeem(buckets, broken, takes, index, cost, request, position, replies)
    else
      result, remaining, position = slow.change(what, buckets, broken, request, first)
    end
  elseif broken and slow.touches(broken, request, first, takes) then
    result, position = 0, first + 8 * takes
  else
    -- First check every take; of those without room, the one with the longest wait decides.
    for i = 1, takes do
      if i > 1 then index, cost, position = unpack('>I4I4', request, position) end
      bucket = buckets[index]
      local drain = bucket.drain
      local over = bucket.level + (drain and cost * bucket.unit or cost) - bucket.cap
      if over > 0 and cost > 0 then
        local later = bucket.fresh
        if drain then
          later = (over + (-over) % drain) / drain
        elseif bucket.head and over <= bucket.kept then
          -- Not when the oldest record expires, but when enough have expired; often that is the same.
          local stamp, total = unpack(RECORD, bucket.records, bucket.from)
          if over <= (total - bucket.base) % TWO32 then
            stamp = bucket.last - (bucket.last - stamp) % TWO48
          else
            slow = slow or slow_path(now, GIVE_BACK, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
            stamp = slow.try(slow.room, bucket, KEYS[index], over)
            if not stamp then
              broken = broken or {}
              broken[index], lost, stamp = true, true, 0
            end
          end
          later = stamp + bucket.a - now
        elseif bucket.following and bucket.following + cost > bucket.cap then
          later = later + bucket.a
        end
        if later > retry then
          result, retry, tightest = -i, later, bucket
        elseif later == retry then
          slow = slow or slow_path(now, GIVE_BACK, BLOCK, AHEAD, REACH, DEPTH, RECORD, TWO32, TWO48)
          if slow.tighter(bucket, tightest) then result, tightest = -i, bucket end
        end
      end
    end
    -- Then, if all have room, take from each; the reply describes the tightest.
    local from, to = 1, takes
    if retry > 0 then from, to = -result, -result end
    if lost then result, to = 0, 0 end
    for i = from, to do
      if takes > 1 then index, cost = unpack('>I4I4', request, first + (i - 1) * 8) end
      bucket = buckets[index]
      local level, drain = bucket.level, bucket.drain
      if retry == 0 and cost > 0 and what ~= PEEK then
        level = level + (drain and cost * bucket.unit or cost)
        bucket.level = level
      end
      local left, whole = bucket.cap - level, 0
      if left < 0 then
        left = 0
      elseif drain then
        left = (left - left % bucket.unit) / bucket.unit
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
        remaining, reset = left, whole
        if retry == 0 then result = i end
      end
    end
  end
  reply = pack('>i4I4I7I7I7', result, remaining, reset, retry, now)
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
    if bucket.uncut then
      save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT)
    elseif level == 0 then
      call('UNLINK', key)
    elseif bucket.drain then
      local empty = (level + (-level) % bucket.drain) / bucket.drain
      local expires = bucket.expires
      if expires < now + empty then
        -- Twice as long as needed, so that a filling bucket is not extended at each step.
        local lifetime = 2 * empty + MARGIN
        local state = pack(TOKEN_STATE, level, now, born, now + lifetime, bucket.unit, bucket.drain)
        call('SET', key, state, 'PX', (lifetime + (-lifetime) % 1000) / 1000)
      else
        local state = pack(TOKEN_STATE, level, now, born, expires, bucket.unit, bucket.drain)
        call('SET', key, state, 'KEEPTTL')
      end
    elseif bucket.lifetime then
      local state = pack('>I4', level) .. (bucket.times or pack('>I7', now))
      if bucket.units == 0 then
        call('SET', key, state, 'KEEPTTL')
      else
        call('SET', key, state, 'PX', math.ceil(bucket.lifetime / 1000))
      end
    elseif not bucket.head then
      local state = pack('>I7I4I7', bucket.start, level, born)
      if kept > 0 then
        call('SET', key, state, 'KEEPTTL')
      else
        local lifetime = bucket.fresh + MARGIN
        call('SET', key, state, 'PX', (lifetime + (-lifetime) % 1000) / 1000)
      end
    else
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
    end
  end
end
return replies and table.concat(replies) or reply
