-- Changes the overrides that all sidecars read: another quota, no limit or a block for single keys of a limit.
--
-- KEYS[1]  a hash. The field ':' is its head, packed big-endian:
--            version I7 | overrides I4 | bytes of fields and texts I4 | overrides without an end I4 | latest end I7
--          Every other field is an override, `limit:key`, with  end I7 | text  (end 0: none). Ends are milliseconds
--          since 1970 by Redis's clock. The version increases with each change. It is Redis's clock in
--          microseconds, unless that was set back, so it also differs after the hash was deleted and created again.
-- ARGV[1]  the operation:
--   set     ARGV[2] field, ARGV[3] end (0: none), ARGV[4] text, ARGV[5] most overrides, ARGV[6] most bytes
--   remove  ARGV[2] field
--   sweep   ARGV[2], ARGV[3], ...: fields; removes those whose end has passed
-- Returns 1 if an override was replaced or removed, 0 if there was none, -1 if there would be too many overrides or
-- bytes; then nothing is changed.
-- The hash has no TTL while any override in it has no end. Otherwise it expires a minute after the latest end. It is
-- deleted with its last override.
local HEAD, END = '>I7I4I4I4I7', '>I7'
local MARGIN = 60000
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local hash, what, field = KEYS[1], ARGV[1], ARGV[2]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local version, count, bytes, endless, latest = 0, 0, 0, 0, 0
local head = call('HGET', hash, ':')
if head then version, count, bytes, endless, latest = unpack(HEAD, head) end

-- Subtracts an existing override from the sums.
local function forget(name, state)
  local ends = unpack(END, state)
  count, bytes = count - 1, bytes - #name - (#state - 7)
  if ends == 0 then endless = endless - 1 end
end

local known, changed = 0, false
if what == 'set' then
  local ends, text = tonumber(ARGV[3]), ARGV[4]
  local before = call('HGET', hash, field)
  if before then
    known = 1
    forget(field, before)
  end
  count, bytes = count + 1, bytes + #field + #text
  if count > tonumber(ARGV[5]) or bytes > tonumber(ARGV[6]) then return -1 end
  if ends == 0 then endless = endless + 1 elseif ends > latest then latest = ends end
  call('HSET', hash, field, pack(END, ends) .. text)
  changed = true
elseif what == 'remove' or what == 'sweep' then
  for i = 2, #ARGV do
    local name = ARGV[i]
    local state = name ~= ':' and call('HGET', hash, name)
    if state then
      local ends = unpack(END, state)
      if what == 'remove' or ends > 0 and ends <= now then
        known, changed = 1, true
        forget(name, state)
        call('HDEL', hash, name)
      end
    end
  end
else
  error('sluicegate: unknown change of overrides')
end

if changed then
  if count == 0 then
    call('UNLINK', hash)
    return known
  end
  version = math.max(version + 1, time[1] * 1000000 + time[2])
  call('HSET', hash, ':', pack(HEAD, version, count, bytes, endless, latest))
  if endless > 0 then
    call('PERSIST', hash)
  else
    call('PEXPIRE', hash, math.max(latest - now, 0) + MARGIN)
  end
end
return known
