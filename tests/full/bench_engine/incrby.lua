-- The bench's reference for counters: INCRBY, and PEXPIRE at the first increment.
-- KEYS[1]; ARGV: limit, window in milliseconds, cost.
local used = redis.call('INCRBY', KEYS[1], ARGV[3])
if used == tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if used > tonumber(ARGV[1]) then
  return { 0, 0 }
end
return { 1, tonumber(ARGV[1]) - used }
