-- Changes the overrides that all sidecars read: another quota, no limit or a block for single keys of a limit.
--
-- KEYS[1]  a hash. The field ':' is its head, packed big-endian:
--            version I7 | entries I4 | bytes of fields and texts I4 | overrides without an end I4 | latest end I7
--            | version of the last sweep I7
--          Every other field is an entry, `limit:key`, with  version I7 | mark | text. The mark is empty, or ' ' for an
--          override that was restored after a loss, '?' for one that had been removed and is back, '-' for one that was
--          removed: that is remembered for a day, so that whoever has not heard of it does not restore it. Release 0.1.0
--          writes the override's end in place of its version, and a head without the last sweep; it skips entries with
--          the last two marks, since their text is no JSON.
--          Versions increase with each change. They are Redis's clock in microseconds, unless that was set back, so
--          they also differ after the hash was lost. Ends are milliseconds since 1970 by Redis's clock.
-- ARGV[1]  the operation:
--   set      ARGV[3] field, ARGV[4] end (0: none), ARGV[5] text, ARGV[6] most entries, ARGV[7] most bytes
--   remove   ARGV[3] field
--   sweep    ARGV[3] the latest end of these entries, ARGV[4] field, ARGV[5] its version, ...: removes them if that
--            end has passed
--   recover  ARGV[3] the hash's version as the caller has read it, ARGV[4] most entries, ARGV[5] most bytes,
--            ARGV[6] field, ARGV[7] end, ARGV[8] version, ARGV[9] mark and text, ...: sets these entries
-- ARGV[2]  the version that the caller knew before: what is set now is newer.
-- Returns 1 if an override was replaced, removed or recovered, 0 if there was none, -1 if there would be too many
-- entries or bytes, -2 if the hash has another version; then nothing is changed.
-- The hash has no TTL while any override in it has no end. Otherwise it expires a minute after the latest end. It is
-- deleted with its last entry.
local HEAD, VERSION = '>I7I4I4I4I7I7', '>I7'
local MARGIN, REMEMBERED = 60000, 86400000
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local hash, what, field = KEYS[1], ARGV[1], ARGV[3]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local version, count, bytes, endless, latest, swept = 0, 0, 0, 0, 0, 0
local head = call('HGET', hash, ':')
if head then version, count, bytes, endless, latest, swept = unpack(HEAD, head .. ('\0'):rep(7)) end
local new = math.max(version, time[1] * 1000000 + time[2] - 1, tonumber(ARGV[2])) + 1
-- An earlier release has made the last change, and does not remember what it removed.
if head and #head < 33 then swept = new end

-- Adds an entry to the sums, or subtracts it. Inside the strings of a text, quotes are escaped.
local function weigh(name, text, sign)
  count, bytes = count + sign, bytes + sign * (#name + #text)
  if text:sub(1, 1) ~= '-' and not text:find('"until":"', 1, true) then endless = endless + sign end
end

-- The mark and text of an entry, which is subtracted from the sums.
local function forget(name)
  local state = name ~= ':' and call('HGET', hash, name)
  local text = state and state:sub(8)
  if text then weigh(name, text, -1) end
  return text
end

local function put(name, ends, text, number)
  latest = math.max(latest, tonumber(ends))
  call('HSET', hash, name, pack(VERSION, tonumber(number)) .. text)
end

local known, changed = 0, false
if what == 'set' then
  local before = forget(field)
  weigh(field, ARGV[5], 1)
  if count > tonumber(ARGV[6]) or bytes > tonumber(ARGV[7]) then return -1 end
  put(field, ARGV[4], ARGV[5], new)
  changed = true
  if before and before:sub(1, 1) ~= '-' then known = 1 end
elseif what == 'remove' then
  local before = forget(field)
  if before and before:sub(1, 1) ~= '-' then
    local text = '-' .. before:gsub('^[ ?]', '')
    weigh(field, text, 1)
    put(field, now + REMEMBERED, text, new)
    known, changed = 1, true
  end
elseif what == 'sweep' then
  for i = 4, tonumber(field) <= now and #ARGV or 0, 2 do
    local name = ARGV[i]
    local state = name ~= ':' and call('HGET', hash, name)
    if state and unpack(VERSION, state) == tonumber(ARGV[i + 1]) then
      forget(name)
      call('HDEL', hash, name)
      known, changed, swept = 1, true, new
    end
  end
elseif what == 'recover' then
  if version ~= tonumber(field) then return -2 end
  for i = 6, #ARGV, 4 do
    forget(ARGV[i])
    weigh(ARGV[i], ARGV[i + 3], 1)
  end
  if count > tonumber(ARGV[4]) or bytes > tonumber(ARGV[5]) then return -1 end
  for i = 6, #ARGV, 4 do put(ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 2]) end
  known, changed = 1, true
else
  error('sluicegate: unknown change of overrides')
end

if changed then
  if count == 0 then
    call('UNLINK', hash)
    return known
  end
  call('HSET', hash, ':', pack(HEAD, new, count, bytes, endless, latest, swept))
  if endless > 0 then
    call('PERSIST', hash)
  else
    call('PEXPIRE', hash, math.max(latest - now, 0) + MARGIN)
  end
end
return known
