-- Registers the calling sidecar, and replies with its rank among the live sidecars and their number. Each sidecar calls
-- this every second. If none calls any more, both keys expire.
--
-- KEYS[1]  sidecars by name, all with one score, so that ranks are stable while nobody joins or leaves
-- KEYS[2]  the same sidecars, by when they expire (milliseconds of Redis's clock)
-- ARGV[1]  the caller's name
-- ARGV[2]  how long it stays registered, milliseconds
-- ARGV[3]  '1' if it leaves
-- Replies: its rank from 0, the number of sidecars.
local names, ends = KEYS[1], KEYS[2]
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
local rank = 0
if ARGV[3] ~= '1' then
  redis.call('ZADD', names, 0, ARGV[1])
  redis.call('ZADD', ends, latest, ARGV[1])
  redis.call('PEXPIRE', names, ARGV[2])
  redis.call('PEXPIRE', ends, ARGV[2])
  rank = redis.call('ZRANK', names, ARGV[1])
end
return { rank, redis.call('ZCARD', names) }
