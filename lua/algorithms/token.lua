-- Token buckets: a level that drains. The sections that decide.lua and slow_path.lua call for.

--@contract
--              kind 3, token bucket:           limit = burst, a = fine units drained per microsecond,
--                                              b = fine units per unit

--@constants
local TOKEN = 3
-- A token bucket: its level in fine units, as of when, born, when the key expires; and the rate that the level is
-- counted by: fine units per unit, and per microsecond. 39 bytes.
local TOKEN_STATE = '>I7I7I7I7I7I4'
-- What follows if a change of the policy has cut the level: the level without the cut, the rate that it is counted by,
-- and the limit that the other was cut to. 22 bytes.
local UNCUT = '>I7I7I4I4'

--@read
  if kind == TOKEN then
    local state, level, kept, born, expires = read('GET', key), 0, 0, now, 0
    local bucket
    if state then
      local stored, as_of, since, stored_expires, unit, rate
      local size = #state
      if size == 39 then stored, as_of, since, stored_expires, unit, rate = unpack(TOKEN_STATE, state) end
      if unit == b and rate == a then
        level, born, expires = stored, since, stored_expires
        if as_of > now then
          -- The clock stepped back: drain from the new now on. What was taken before cannot be told by its time from
          -- what is taken until the clock is there again.
          born, expires = as_of + 1, 0
        else
          level = stored - (now - as_of) * a
          if level <= 0 then level, born = 0, now end
          kept = level
        end
      elseif size == 39 or size == 61 then
        bucket = read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT)
      else
        broken = broken or {}
        broken[i] = true
      end
    end
    buckets[i] = bucket or {
      drain = a, unit = b, cap = limit * b, level = level, kept = kept, born = born, expires = expires,
    }

--@save
    if bucket.uncut then
      save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT)
    elseif bucket.drain then
      local empty = (level + (-level) % bucket.drain) / bucket.drain
      local expires = bucket.expires
      if expires < now + empty then
        -- Twice as long as needed, so that a filling bucket is not extended at each step.
        local lifetime = 2 * empty + MARGIN
        local state = pack(TOKEN_STATE, level, now, born, now + lifetime, bucket.unit, bucket.drain)
        call('SET', key, state, 'PX', (lifetime + (-lifetime) % 1000) / 1000)
      else
        local state = pack(TOKEN_STATE, level, now, born, expires, bucket.unit, bucket.drain)
        call('SET', key, state, 'KEEPTTL')
      end

--@functions
-- A level in fine units of which `unit` are a unit, in those of which `other` are one: rounded up, at most `most`.
-- Long division, since the product of the two may have 90 bits: 7 bits of `other` at a time, of which there are 49.
local function rescale(level, unit, other, most)
  local rest = level % unit
  local scaled, quotient, remainder, digit = (level - rest) / unit * other, 0, 0, 4398046511104
  while digit >= 1 do
    local low = other % digit
    remainder = remainder * 128 + rest * ((other - low) / digit)
    other, digit = low, digit / 128
    local left = remainder % unit
    quotient, remainder = quotient * 128 + (remainder - left) / unit, left
  end
  scaled = scaled + quotient + (remainder > 0 and 1 or 0)
  return scaled < most and scaled or most
end

-- A quotient rounded up, exactly.
local function quotient_up(a, b)
  return (a + (-a) % b) / b
end

-- Reads a token bucket that another rate has counted, or that is stored twice: as a change of the policy has cut it,
-- and uncut.
--
-- Its level is what a decision by this rate and limit finds: as stored, if it goes on with what was cut, or if its
-- rate is that of what was not; otherwise rounded up, and a full bucket at most. What another rate has let in must not
-- take hours to drain by this one. It is cut before it drains, so that looks, which do not write it, see it drain.
-- `uncut`, in units of `uncut_unit`, is every taking, drained by the fastest rate that has taken since the cut: so a
-- larger policy finds what a smaller one has cut. `held` is what is stored, for those who settle.
local function read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT)
  local max, huge, pack, sub = math.max, math.huge, struct.pack, string.sub
  local level, as_of, born, expires, unit, rate = struct.unpack(TOKEN_STATE, state)
  local uncut, uncut_unit, uncut_rate, cut_to = 0, unit, rate, limit
  if #state > 39 then uncut, uncut_unit, uncut_rate, cut_to = struct.unpack(UNCUT, state, 40) end
  -- The clock stepped back: drain from the new now on.
  if as_of > now then as_of, born, expires = now, as_of + 1, 0 end
  local passed = now - as_of
  local most, most_unit, most_rate = level, unit, rate
  if rescale(uncut, uncut_unit, unit, huge) > level then
    most, most_unit, most_rate = uncut, uncut_unit, uncut_rate
  end
  local found, found_cut_to
  if unit == b and rate == a and limit <= cut_to then
    found, found_cut_to = level, cut_to
  elseif uncut > 0 and uncut_unit == b and uncut_rate == a then
    found, found_cut_to = uncut, limit
  else
    found, found_cut_to = rescale(most, most_unit, b, limit * b), limit
  end
  if rescale(a, b, most_unit, huge) > most_rate then
    most, most_unit, most_rate = rescale(most, most_unit, b, 4503599627370496), b, a
  end
  local drains = max(quotient_up(level, rate), quotient_up(uncut, uncut_rate))
  local empty = max(drains, quotient_up(found, a)) - passed
  -- Also for a look, since a faster rate may have set an end before it has drained by this one.
  if empty > 0 and expires < now + empty then
    expires = now + 2 * empty + MARGIN
    state = sub(state, 1, 7) .. pack('>I7I7I7', as_of, born, expires) .. sub(state, 29)
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  end
  found = max(0, found - passed * a)
  return {
    drain = a, unit = b, cap = limit * b, level = found, kept = found, born = found > 0 and born or now,
    expires = expires, uncut = max(0, most - passed * most_rate), uncut_unit = most_unit, uncut_rate = most_rate,
    cut_to = found_cut_to,
    held = {
      level = max(0, level - passed * rate), unit = unit, drain = rate, born = born, emptied = as_of + drains,
      uncut = max(0, uncut - passed * uncut_rate), uncut_unit = uncut_unit, uncut_rate = uncut_rate, cut_to = cut_to,
    },
  }
end

-- Writes such a bucket.
local function save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT)
  local level, unit, uncut, expires = bucket.level, bucket.unit, bucket.uncut, bucket.expires
  -- A decision has taken whole units. Who settles has changed `uncut` too.
  local units = bucket.held and (level - bucket.kept) / unit or 0
  uncut = math.min(uncut + units * bucket.uncut_unit, 4503599627370496)
  if rescale(uncut, bucket.uncut_unit, unit, math.huge) <= level then uncut = 0 end
  if level == 0 and uncut == 0 then return redis.call('UNLINK', key) end
  local empty = math.max(quotient_up(level, bucket.drain), quotient_up(uncut, bucket.uncut_rate))
  local later = expires < now + empty
  if later then expires = now + 2 * empty + MARGIN end
  local state = struct.pack(TOKEN_STATE, level, now, bucket.born, expires, unit, bucket.drain)
  if uncut > 0 then
    state = state .. struct.pack(UNCUT, uncut, bucket.uncut_unit, bucket.uncut_rate, bucket.cut_to)
  end
  if later then
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  else
    redis.call('SET', key, state, 'KEEPTTL')
  end
end

--@slow
  -- Whoever settles has no say in the policy: a token bucket is changed as it is stored, unless it holds
  -- nothing.
  local function as_stored(bucket)
    local held = bucket.held
    if not held then return end
    bucket.held, bucket.born, bucket.emptied = nil, held.born, held.emptied
    bucket.level, bucket.kept = held.level, held.level
    if held.level == 0 and held.uncut == 0 then
      bucket.uncut = nil
    else
      bucket.unit, bucket.drain = held.unit, held.drain
      bucket.uncut, bucket.uncut_unit, bucket.uncut_rate = held.uncut, held.uncut_unit, held.uncut_rate
      bucket.cut_to = held.cut_to
    end
  end

  -- Fine units to return of `cost` units, of `left` that were taken together and are not returned: what has drained
  -- since, by the rate in force or by the one that they were taken by, counts as returned.
  local function undrained(level, unit, rate, cost, left, passed, first_rate, first_unit)
    local drained = passed * rate
    if (first_unit or 0) > 0 then
      local at_first = min(passed * first_rate, left * first_unit)
      drained = max(drained, rescale(at_first, first_unit, unit, 4503599627370496))
    end
    return max(0, min(level, cost * unit, left * unit - drained))
  end

  -- Records for a token bucket, without what has drained since each was taken: while the bucket held something, it
  -- drained that; only while it was empty could the new units have drained instead.
  local function token_record(bucket, key, times, units)
    as_stored(bucket)
    local drain, unit, level, recorded = bucket.drain, bucket.unit, bucket.level, 0
    local most = min(TWO32 * 1048576, (TWO32 - 1) * unit)
    local emptied = bucket.emptied or 0
    local state = level == 0 and not bucket.emptied and call('GET', key)
    if state then
      local stored, as_of = unpack('>I7I7', state)
      emptied = stored > 0 and as_of + quotient_up(stored, drain) or 0
    end
    for i = 1, #times do
      local at, gain = times[i], min(units[i], (most - most % unit) / unit) * unit
      if level == 0 then
        local from = max(at, emptied)
        emptied = from + (gain + (-gain) % drain) / drain
        gain = gain - max(0, now - from) * drain
        if gain > 0 then bucket.born = at end
      elseif at < bucket.born and bucket.born <= now then
        gain = gain - (bucket.born - at) * drain
        if gain > 0 then bucket.born = at end
      end
      gain = max(0, min(gain, most - level))
      level, recorded = level + gain, recorded + ceil(gain / unit)
    end
    bucket.level = level
    if recorded > 0 and (bucket.uncut or 0) > 0 then
      bucket.uncut = min(bucket.uncut + recorded * bucket.uncut_unit, TWO32 * 1048576)
      bucket.returned = true
    end
    return recorded
  end

--@restore
    if bucket.drain then
      local uncut = bucket.uncut
      if uncut then
        local by_unit, by_rate = bucket.uncut_unit, bucket.uncut_rate
        uncut = undrained(uncut, by_unit, by_rate, cost, left, now - at, drain, unit)
        bucket.uncut, bucket.returned = bucket.uncut - uncut, bucket.returned or uncut > 0
      end
      returned = undrained(bucket.level, bucket.unit, bucket.drain, cost, left, now - at, drain, unit)
      bucket.level = bucket.level - returned
      -- A part of a unit is reported as one.
      returned = ceil(returned / bucket.unit)

--@record
    if bucket.drain then
      recorded = token_record(bucket, key, times, units)
