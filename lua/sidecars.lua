-- Which of how many sidecars the caller is: it says that it is here, and is told its place among those that said so
-- lately. All of it goes by itself when nobody calls any more.
--
-- KEYS[1]  sidecars by name, all with one score: a place is stable while nobody comes or goes
-- KEYS[2]  the same sidecars, by when they are to be forgotten (milliseconds of Redis's clock)
-- ARGV[1]  the caller's name
-- ARGV[2]  for how long it is remembered, milliseconds
-- ARGV[3]  '1' if it leaves
-- Answers: its rank from 0, how many there are, Redis's clock in microseconds.
local names, ends = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A few at a time: so many do not leave in one interval, and if they do, the next calls forget the rest.
local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 100)
if ARGV[3] == '1' then gone[#gone + 1] = ARGV[1] end
if #gone > 0 then
  redis.call('ZREM', names, unpack(gone))
  redis.call('ZREM', ends, unpack(gone))
end
local rank = 0
if ARGV[3] ~= '1' then
  redis.call('ZADD', names, 0, ARGV[1])
  redis.call('ZADD', ends, now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', names, ARGV[2])
  redis.call('PEXPIRE', ends, ARGV[2])
  rank = redis.call('ZRANK', names, ARGV[1])
end
return { rank, redis.call('ZCARD', names), time[1] * 1000000 + time[2] }
