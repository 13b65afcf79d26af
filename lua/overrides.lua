-- Changes the overrides that all sidecars read: another quota, no limit or a block for single keys of a limit. The
-- caller has read them and says what they are to become; if they have changed since, nothing is done.
--
-- KEYS[1]  a hash. The field ':' is its head, packed big-endian:
--            version I7 | entries I4 | bytes of fields and texts I4 | entries without an end I4 | latest end I7
--            | version of the last change that dropped entries I7
--          Every other field is an entry, `limit:key`, with  version I7 | mark | text. The mark is empty, or ' ' for an
--          override that was restored after a loss, '?' for one that had been removed and is back, '-' for one that was
--          removed: that is remembered, so that whoever has not heard of it does not restore it.
--          Versions increase with each change. They are Redis's clock in microseconds, unless that was set back, so
--          they also differ after the hash was lost. Ends are milliseconds since 1970 by Redis's clock.
-- ARGV     version that the caller has read (0: no hash), version that the new one must exceed, latest end of the
--          overrides that are dropped, four sums of the head, last number of the head (0: this change drops entries),
--          and for each entry that changes its field, its version (0: that of this change), and mark and text ('': it
--          is dropped)
-- Returns the new version, or 0 if the version is another one or an override to be dropped has not ended: then nothing
-- is changed.
-- The hash has no TTL while any override in it has no end. Otherwise it expires a minute after the latest end, and no
-- sooner than a day after the last change, for which removals are remembered. It is deleted with its last entry.
local MARGIN, REMEMBERED = 60000, 86400000
local call, pack = redis.call, struct.pack
local hash = KEYS[1]
local read, after, dropped, count, bytes, endless, latest, swept = unpack(ARGV, 1, 8)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local head = call('HGET', hash, ':')
local version = head and struct.unpack('>I7', head) or 0
if version ~= tonumber(read) or tonumber(dropped) > now then return 0 end
version = math.max(version, time[1] * 1000000 + time[2] - 1, tonumber(after)) + 1
if count == '0' then
  call('UNLINK', hash)
  return version
end
for i = 9, #ARGV, 3 do
  local field, of, text = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if text == '' then
    call('HDEL', hash, field)
  else
    call('HSET', hash, field, pack('>I7', of > 0 and of or version) .. text)
  end
end
swept = tonumber(swept) > 0 and swept or version
call('HSET', hash, ':', pack('>I7I4I4I4I7I7', version, count, bytes, endless, latest, swept))
if endless ~= '0' then
  call('PERSIST', hash)
else
  call('PEXPIRE', hash, math.max(latest - now, REMEMBERED) + MARGIN)
end
return version
