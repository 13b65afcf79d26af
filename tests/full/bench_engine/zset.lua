-- The bench's reference for logs: the sorted set that articles teach, with one member per unit of cost and the time as
-- its score. (A counter makes members unique: with the time alone, requests in one microsecond would be one.)
-- KEYS[1]; ARGV: limit, window in microseconds, cost.
local limit, window, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
local used = redis.call('ZCARD', KEYS[1])
if used + cost > limit then
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  return { 0, limit - used, oldest[2] + window - now }
end
for unit = 1, cost do
  redis.call('ZADD', KEYS[1], now, string.format('%.0f:%d', now, used + unit))
end
redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000))
return { 1, limit - used - cost, 0 }
