-- Fixed and calendar windows: a counter. The sections that decide.lua and slow_path.lua call for.

--@contract
--              kind 2, fixed window:           a = window, microseconds
--              kind 5, calendar window:        a, b = begin of two windows in a row, then two more I7: the ends of the
--                                              second and of the one after it. Redis's time must be in the first two,
--                                              or it is answered as if it was too late

--@constants
local FIXED, CALENDAR = 2, 5

--@read
  if kind == FIXED or kind == CALENDAR then
    local edge = now - now % a
    local ends = edge + a
    if kind == CALENDAR then
      edge, ends, a, position = read_edges(now, a, b, request, position)
      if not edge then
        -- Nothing is written yet but later ends of token buckets' keys, which do no harm, unless a log has been mended:
        -- then only who asks for this one gets no answer.
        if not slow then return pack('>I7', now) end
        broken = broken or {}
        broken[i], edge, ends = true, now, now
      end
    end
    local state = ends > now and read('GET', key)
    local level, kept, born, following = 0, 0, now
    if state then
      if #state == 18 then
        local start, count, since = unpack('>I7I4I7', state)
        if start == edge then
          level, kept, born = count, count, since
        elseif start > edge and start < ends then
          -- By whoever wrote it this window began later: the zone's rules changed with another version.
          edge, level, kept, born = start, count, count, since
        elseif start > edge then
          -- The clock stepped back into an earlier window, whose count is lost: it is full for any limit.
          level, born = FULL, now + 1
          if start == ends then
            -- Back by one window: the following window keeps its count, and this one is not written.
            kept, following = level, count
          end
        end
      else
        broken = broken or {}
        broken[i] = true
      end
    end
    -- a is the length of the window that follows.
    local bucket = {
      a = a, cap = limit, level = level, kept = kept, fresh = ends - now, born = born, start = edge,
    }
    if following then bucket.following, bucket.last = following, ends end
    buckets[i] = bucket

--@room
        if bucket.following and bucket.following + cost > bucket.cap then
          later = later + bucket.a

--@save
    if bucket.start then
      local state = pack('>I7I4I7', bucket.start, level, born)
      if kept > 0 then
        call('SET', key, state, 'KEEPTTL')
      else
        local lifetime = bucket.fresh + MARGIN
        call('SET', key, state, 'PX', (lifetime + (-lifetime) % 1000) / 1000)
      end

--@functions
-- Begin and end of the calendar window that holds now, the length of the one after it, and where the request goes on.
-- If the request has no window that holds now, returns only where it goes on.
local function read_edges(now, first, second, request, position)
  local third, fourth, ends = struct.unpack('>I7I7', request, position)
  if now < first or now >= third then return nil, nil, nil, ends end
  if now < second then return first, second, third - second, ends end
  return second, third, fourth - third, ends
end

--@restore
    if bucket.start then
      returned = at >= bucket.start and min(cost, bucket.level) or 0
      bucket.level = bucket.level - returned

--@record
    if bucket.start then
      recorded = 0
      local level, from, to = bucket.level, bucket.start, now + bucket.fresh
      -- If the clock stepped back over an edge, what is kept is the count of the window that follows.
      if bucket.following then level, from, to = bucket.following, bucket.last, bucket.last + bucket.a end
      for i = 1, #times do
        if times[i] >= from and times[i] < to then
          recorded = recorded + min(units[i], TWO32 - 1 - level - recorded)
        end
      end
      if not bucket.following then
        bucket.level = level + recorded
      elseif recorded > 0 then
        local start, _, born = unpack('>I7I4I7', call('GET', key))
        call('SET', key, pack('>I7I4I7', start, level + recorded, born), 'KEEPTTL')
      end
