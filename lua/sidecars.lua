-- Registers the calling sidecar, and replies with its rank among the live sidecars and their number, and with the head
-- of the overrides. Each sidecar calls this about every 0.7 s, and once a minute for its limits and its key prefix,
-- which have lists of their own. If none calls any more, the keys expire.
--
-- KEYS[1]  sidecars by name, all with score 0, so that ranks are stable while nobody joins or leaves; and the name '',
--          whose score says when the list began (milliseconds of Redis's clock): one that has lost an entry, because
--          Redis evicted a key or came back empty, begins anew
-- KEYS[2]  the same sidecars, by when they expire (milliseconds of Redis's clock)
-- KEYS[3]  the hash of the overrides; left out on a Cluster, where it is in another slot
-- ARGV[1]  the caller's name
-- ARGV[2]  how long it stays registered, milliseconds
-- ARGV[3]  '1' if it leaves
-- Replies: its rank from 0, the number of sidecars, the age of the list in milliseconds, and the head of the overrides
-- or nil.
local names, ends, overrides = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- At most 100 at a time: more do not expire in one interval, and if they do, the next calls remove the rest.
local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 100)
if ARGV[3] == '1' then gone[#gone + 1] = ARGV[1] end
if #gone > 0 then
  redis.call('ZREM', names, unpack(gone))
  redis.call('ZREM', ends, unpack(gone))
end
-- The clock stepped back: nobody who registers by it expires later than this. Not removed, since they may be alive.
local latest = now + ARGV[2]
for _, name in ipairs(redis.call('ZRANGEBYSCORE', ends, '(' .. latest, '+inf', 'LIMIT', 0, 100)) do
  redis.call('ZADD', ends, latest, name)
end
-- Of the commands that users have permitted, this one tells a score.
local mark = redis.call('ZRANGEBYSCORE', names, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local began = tonumber(mark[2])
if redis.call('ZCARD', ends) ~= redis.call('ZCARD', names) - (began and 1 or 0) then
  redis.call('UNLINK', names, ends)
  began = nil
end
local rank = 0
if ARGV[3] == '1' then
  if redis.call('ZCARD', ends) == 0 then redis.call('UNLINK', names) end
else
  if not began or began > now then
    began = now
    redis.call('ZADD', names, began, '')
  end
  redis.call('ZADD', names, 0, ARGV[1])
  redis.call('ZADD', ends, latest, ARGV[1])
  if redis.pcall('PEXPIRE', names, ARGV[2]) ~= 1 then
    -- It is refused, and new lists would never expire.
    redis.call('UNLINK', names, ends)
  end
  redis.call('PEXPIRE', names, ARGV[2])
  redis.call('PEXPIRE', ends, ARGV[2])
  rank = redis.call('ZRANK', names, ARGV[1])
end
local head = overrides and redis.call('HGET', overrides, ':')
return { rank, redis.call('ZCARD', ends), began and now - began or 0, head or false }
