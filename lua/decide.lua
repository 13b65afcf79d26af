-- Decides a batch: every decision over all its buckets at once, in order, exact to the microsecond. What differs by
-- algorithm stands in algorithms/: at a mark come the sections of that name, `each` of them, as a `chain` of tests, or
-- `else` as more tests of one.
--
-- KEYS     the buckets, then the holds, each once, all in one slot.
-- ARGV[1]  the request, packed big-endian:
--            not after I7, microseconds of Redis's clock: when it runs later than this, it does nothing
--            for each key       kind I1 | limit I4 | a I7 | b I7
--@each contract
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

--@each constants
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
--@chain read
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
--@else room
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
--@else save
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
