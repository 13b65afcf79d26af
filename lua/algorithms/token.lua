-- Token buckets: a level that drains. The sections that decide.lua and slow_path.lua call for.

--@contract
--              kind 3, token bucket:           limit = burst, a = fine units drained per microsecond,
--                                              b = fine units per unit

--@constants
local TOKEN = 3
-- A token bucket: its level in fine units, as of when, born, when the key expires; the rate that the level is counted
-- by, fine units per unit, and per microsecond; and the limit of what has taken, over which it is a debt. 43 bytes.
local TOKEN_STATE = '>I7I7I7I7I7I4I4'
-- What follows if a change of the policy has cut the level: the level without the cut, and the rate that it is counted
-- by. 18 bytes.
local UNCUT = '>I7I7I4'
-- Or, if it has not, what follows once receipts have been left: since when, and up to 8 groups of them (returns.rs in
-- sidecar/engine/src/algorithm explains them): the time of the last taking, the most that it and those before return,
-- and what is not settled. 7 bytes, and 21 for each group.
local GROUP = '>I7I7I7'

--@read
  if kind == TOKEN then
    local state, level, kept, born, expires = read('GET', key), 0, 0, now, 0
    local bucket, burst
    if state then
      local stored, as_of, since, stored_expires, unit, rate
      local size = #state
      if size == 43 then stored, as_of, since, stored_expires, unit, rate, burst = unpack(TOKEN_STATE, state) end
      if unit == b and rate == a and limit >= burst and as_of <= now then
        level, born, expires = stored - (now - as_of) * a, since, stored_expires
        if level <= 0 then level, born, burst = 0, now, nil end
        kept = level
      elseif size == 43 or size == 61 or size > 50 and size % 21 == 8 then
        bucket = read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT, GROUP)
      else
        broken = broken or {}
        broken[i] = true
      end
    end
    buckets[i] = bucket or {
      drain = a, unit = b, cap = limit * b, level = level, kept = kept, born = born, expires = expires,
      stored_burst = burst,
    }

--@save
    if bucket.uncut then
      save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT, GROUP)
    elseif bucket.drain then
      local empty = (level + (-level) % bucket.drain) / bucket.drain
      local expires, burst = bucket.expires, bucket.burst or bucket.cap / bucket.unit
      if expires < now + empty then
        -- Twice as long as needed, so that a filling bucket is not extended at each step.
        local lifetime = 2 * empty + MARGIN
        local state = pack(TOKEN_STATE, level, now, born, now + lifetime, bucket.unit, bucket.drain, burst)
        call('SET', key, state, 'PX', (lifetime + (-lifetime) % 1000) / 1000)
      else
        local state = pack(TOKEN_STATE, level, now, born, expires, bucket.unit, bucket.drain, burst)
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
-- and uncut; or one of which receipts have been left; or one before which the clock has stepped back.
--
-- Its level is what a decision by this rate and limit finds: a full bucket and its debt at most, rounded up, since what
-- another rate or a larger limit has let in must not take hours to drain; or what was not cut, if that has this rate.
-- Looks do not write it, and have to see it drain: by this rate since it was stored, so it is cut before that. Nothing
-- says when a rate has become faster, and what drains by it meanwhile would forgive debts: so by the earlier rate,
-- until the first look, which `adopts` it. `uncut`, in units of `uncut_unit`, is every taking, drained by the fastest
-- rate that has taken since the cut. `held` is what is stored, for those who settle.
local function read_token(key, state, now, limit, a, b, MARGIN, TOKEN_STATE, UNCUT, GROUP)
  local max, min, huge, pack, sub = math.max, math.min, math.huge, struct.pack, string.sub
  local level, as_of, born, expires, unit, rate, burst = struct.unpack(TOKEN_STATE, state)
  local uncut, uncut_unit, uncut_rate = 0, unit, rate
  local groups, since = nil, nil
  if #state == 61 then
    uncut, uncut_unit, uncut_rate = struct.unpack(UNCUT, state, 44)
  elseif #state > 43 then
    since = struct.unpack('>I7', state, 44)
    local lowest = level - max(0, now - as_of) * rate
    for at = 51, lowest > 0 and #state or 0, 21 do
      local until_then, most, open = struct.unpack(GROUP, state, at)
      groups = groups or {}
      groups[#groups + 1] = { until_then = until_then, most = min(most, lowest), open = open }
    end
  end
  -- The clock stepped back: drain from the new now on. What was taken before cannot be told by its time from what is
  -- taken until the clock is there again.
  if as_of > now then as_of, born, expires = now, as_of + 1, 0 end
  local passed = now - as_of
  local held, held_uncut = max(0, level - passed * rate), max(0, uncut - passed * uncut_rate)
  local found, most, most_unit, most_rate, drained = level, uncut, uncut_unit, uncut_rate, passed
  local is_faster = rescale(a, b, uncut_unit, huge) > uncut_rate
  if is_faster then found, most, drained = held, held_uncut, 0 end
  if rescale(most, uncut_unit, unit, huge) <= found then most, most_unit, most_rate = found, unit, rate end
  local goes_on = unit == b and rate == a and (uncut == 0 or limit <= burst)
  if not goes_on and uncut > 0 and uncut_unit == b and uncut_rate == a then
    found = uncut
  else
    local debt = rescale(max(0, found - burst * unit), unit, b, 4503599627370496)
    if not goes_on then found = rescale(most, most_unit, b, 4503599627370496) end
    found = min(found, limit * b + debt)
  end
  if is_faster then most, most_unit, most_rate = rescale(most, most_unit, b, 4503599627370496), b, a end
  local drains = max(quotient_up(level, rate), quotient_up(uncut, uncut_rate))
  local empty = max(drains - passed, quotient_up(found, a) - drained)
  -- Also for a look, since a faster rate may have set an end before it has drained by this one.
  if empty > 0 and expires < now + empty then
    expires = now + 2 * empty + MARGIN
    state = sub(state, 1, 7) .. pack('>I7I7I7', as_of, born, expires) .. sub(state, 29)
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  end
  found, most = max(0, found - drained * a), max(0, most - drained * most_rate)
  return {
    drain = a, unit = b, cap = limit * b, level = found, kept = found, born = found > 0 and born or now,
    expires = expires, uncut = most, uncut_unit = most_unit, uncut_rate = most_rate, burst = limit,
    adopts = is_faster and held + held_uncut > 0,
    groups = unit == b and rate == a and groups, since = since,
    held = {
      level = held, unit = unit, drain = rate, born = born, emptied = as_of + drains, burst = burst, groups = groups,
      uncut = held_uncut, uncut_unit = uncut_unit, uncut_rate = uncut_rate,
    },
  }
end

-- Writes such a bucket.
local function save_token(bucket, key, now, MARGIN, TOKEN_STATE, UNCUT, GROUP)
  local level, unit, uncut, expires = bucket.level, bucket.unit, bucket.uncut, bucket.expires
  -- A decision has taken whole units. Who settles has changed `uncut` too.
  local groups = bucket.groups
  local units = bucket.held and (level - bucket.kept) / unit or 0
  uncut = math.min(uncut + units * bucket.uncut_unit, 4503599627370496)
  if rescale(uncut, bucket.uncut_unit, unit, math.huge) <= level then uncut = 0 end
  if level == 0 and uncut == 0 then return redis.call('UNLINK', key) end
  local empty = math.max(quotient_up(level, bucket.drain), quotient_up(uncut, bucket.uncut_rate))
  local later = expires < now + empty
  if later then expires = now + 2 * empty + MARGIN end
  local burst = bucket.burst or bucket.cap / unit
  local state = struct.pack(TOKEN_STATE, level, now, bucket.born, expires, unit, bucket.drain, burst)
  if uncut > 0 then
    state = state .. struct.pack(UNCUT, uncut, bucket.uncut_unit, bucket.uncut_rate)
  elseif groups and groups[1] then
    state = state .. struct.pack('>I7', bucket.since)
    for i = 1, #groups do
      state = state .. struct.pack(GROUP, groups[i].until_then, groups[i].most, groups[i].open)
    end
  end
  if later then
    redis.call('SET', key, state, 'PX', math.ceil((expires - now) / 1000))
  else
    redis.call('SET', key, state, 'KEEPTTL')
  end
end

--@slow
  -- What settles token buckets; apart, since each closure adds to every call that needs this file.
  local tokens
  local function of_tokens()
    local known = tokens or {}
    if tokens then return known end
    tokens = known

    -- Whoever settles has no say in the policy: a token bucket is changed as it is stored, unless it holds
    -- nothing.
    function known.as_stored(bucket)
      local held = bucket.held
      if not held then
        bucket.burst = bucket.burst or bucket.stored_burst
        return
      end
      bucket.held, bucket.born, bucket.emptied = nil, held.born, held.emptied
      bucket.level, bucket.kept, bucket.groups = held.level, held.level, held.groups
      if held.level == 0 and held.uncut == 0 then
        bucket.uncut = nil
      else
        bucket.unit, bucket.drain = held.unit, held.drain
        bucket.uncut, bucket.uncut_unit, bucket.uncut_rate = held.uncut, held.uncut_unit, held.uncut_rate
        bucket.burst = held.burst
      end
    end

    -- Fine units to return of `cost` units, of `left` that were taken together and are not returned: what has drained
    -- since, by the rate in force or by the one that they were taken by, counts as returned.
    function known.undrained(level, unit, rate, cost, left, passed, first_rate, first_unit)
      local drained = passed * rate
      if (first_unit or 0) > 0 then
        local at_first = min(passed * first_rate, left * first_unit)
        drained = max(drained, rescale(at_first, first_unit, unit, 4503599627370496))
      end
      return max(0, min(level, cost * unit, left * unit - drained))
    end

    -- Records for a token bucket, without what has drained since each was taken: while the bucket held something, it
    -- drained that; only while it was empty could the new units have drained instead.
    function known.record(bucket, key, times, units)
      known.as_stored(bucket)
      local drain, unit, level, recorded = bucket.drain, bucket.unit, bucket.level, 0
      local most = min(TWO32 * 1048576, (TWO32 - 1) * unit)
      local emptied = bucket.emptied or 0
      if level == 0 and (bucket.uncut or 0) == 0 then bucket.burst = nil end
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

    -- Groups of receipts, where those that return no more than the one before are joined with it.
    local function join_equal(groups)
      local kept = {}
      for i = 1, #groups do
        local group = groups[i]
        -- Joining may have lowered one below several before it.
        while kept[1] and kept[#kept].most >= group.most do
          group.open = min(group.open + table.remove(kept).open, 4503599627370496)
        end
        kept[#kept + 1] = group
      end
      return kept
    end

    -- How much less group `i` and those before it return at most than all that is open in it and that those return; and
    -- what those return.
    local function missing(groups, i)
      local group, before = groups[i], i > 1 and groups[i - 1].most or 0
      return max(0, min(before + group.open, 4503599627370496) - group.most), before
    end

    -- Joins group `i` with the next, or the one where the least part of what is open is lost. What bounds the first of
    -- them alone is left out where it follows from what bounds the one before it, which is lowered until it does; or
    -- both have the first one's.
    local function join_groups(groups, i)
      local least = math.huge
      for at = i or 1, i or #groups - 1 do
        local lost, before = missing(groups, at)
        local of = groups[at - 1]
        if lost > before then
          of, lost = groups[at + 1], groups[at + 1].most - groups[at].most
        elseif lost > 0 then
          lost = lost + missing(groups, at - 1)
        end
        lost = lost > 0 and lost / max(1, of.open) or 0
        if lost < least then i, least = at, lost end
      end
      local lost, before = missing(groups, i)
      local group, following = table.remove(groups, i), groups[i]
      following.open = min(following.open + group.open, 4503599627370496)
      if lost > before then
        following.most = group.most
      elseif i > 1 then
        groups[i - 1].most = before - lost
      end
    end

    -- A receipt of units that were taken just now from a bucket.
    function known.leave(bucket, units)
      local unit, groups = bucket.unit, join_equal(bucket.groups or {})
      local last = #groups
      if last == 0 then bucket.since = now end
      groups[last + 1] = { until_then = now, most = bucket.level, open = units * unit }
      if last > 0 and groups[last].until_then == now then
        join_groups(groups, last)
      elseif last == 8 then
        join_groups(groups)
      end
      bucket.groups = join_equal(groups)
      if not bucket.uncut then
        bucket.uncut, bucket.uncut_unit, bucket.uncut_rate = 0, unit, bucket.drain
      end
    end

    -- Of units that were taken at `at`, those that come back of `fine`, `settled` of which are settled with this;
    -- `otherwise` those that come back if they are in no group.
    function known.give(bucket, at, fine, settled, otherwise)
      local groups, i = join_equal(bucket.groups), 1
      bucket.groups, bucket.returned = groups, true
      while groups[i] and groups[i].until_then < at do i = i + 1 end
      local group = groups[i]
      if not group then return otherwise end
      local returned = min(otherwise, group.most)
      if settled > 0 and at >= bucket.since then
        returned = min(fine, group.most)
        if group.open < 4503599627370496 then group.open = max(0, group.open - settled) end
      end
      for j = i, #groups do
        groups[j].most = groups[j].most - returned
      end
      bucket.groups = returned < bucket.level and join_equal(groups) or nil
      return returned
    end

    return known
  end

--@restore
    if bucket.drain then
      local uncut = bucket.uncut
      if uncut then
        local by_unit, by_rate = bucket.uncut_unit, bucket.uncut_rate
        uncut = of_tokens().undrained(uncut, by_unit, by_rate, cost, left, now - at, drain, unit)
        bucket.uncut, bucket.returned = bucket.uncut - uncut, bucket.returned or uncut > 0
      end
      local own = bucket.unit
      returned = of_tokens().undrained(bucket.level, own, bucket.drain, cost, left, now - at, drain, unit)
      if bucket.groups and bucket.groups[1] then
        returned = of_tokens().give(bucket, at, cost * own, settled * own, returned)
      end
      bucket.level = bucket.level - returned
      -- A part of a unit is reported as one.
      returned = ceil(returned / bucket.unit)

--@record
    if bucket.drain then
      recorded = of_tokens().record(bucket, key, times, units)
