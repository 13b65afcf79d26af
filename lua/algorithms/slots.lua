-- Concurrency: slots that are in use at once. The sections that decide.lua calls for.

--@contract
--              kind 7, concurrency:            a = microseconds that a slot lasts after it was taken or renewed

--@constants
-- A sorted set: a member for each slot, with the time of its end. Its name is the id of those that were taken together,
-- and its number among them.
local SLOTS = 7

--@read
  if kind == SLOTS then
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

--@functions
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
