//! Plausible bugs of the script: every one turns red the test that is there for it.
//!
//! They go through the checks of agreement.rs, kept.rs and expiry.rs; what those miss here, they would miss there.

use super::exact::receipts_differ;
use super::expiry::{a_slower_rate_extends_a_key, keys_outlive_their_units};
use super::history::{Kind, histories};
use super::holds::holds_agree;
use super::kept;
use super::lua::Lua;
use super::made::is_refuted;
use super::replay::replay;
use super::slots::slots_differ;
use proptest::test_runner::TestCaseError;
use sluicegate_engine::script;
use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// After `===` the check that has to find the bugs below it: histories of a kind, or one of the checks by name. Of each bug,
/// what is wrong, the text of the script, and what stands there instead.
const BUGS: &str = r"
=== SlidingLog
the cost is left out of the test
- local over = bucket.level + (drain and cost * bucket.unit or cost) - bucket.cap
+ local over = bucket.level + (drain and bucket.unit or 1) - bucket.cap
full is taken for over
- if over > 0 and cost > 0 then
+ if over >= 0 and cost > 0 then
one more than the limit is let through
- if over > 0 and cost > 0 then
+ if over > 1 and cost > 0 then
a look without cost can be denied
- if over > 0 and cost > 0 then
+ if over > 0 then
retry-after is when the oldest entry goes
- if over <= (total - bucket.base) % TWO32 then
+ if total then
an entry counts a microsecond too long
- search(log, true, now - log.a + 1)
+ search(log, true, now - log.a)
the last entry counts a microsecond too long
- if last + a > now then
+ if last + a >= now then
the first bucket without room decides, not the last
- if later > retry then
+ if retry == 0 then
a peek takes
- if retry == 0 and cost > 0 and what ~= PEEK then
+ if retry == 0 and cost > 0 then
a denied decision takes from those with room
- if retry > 0 then from, to = -result, -result end
+
a write-back goes to the end of a log
- if log.kept > 0 and stamps[1] <= log.last then
+ if not log.kept then
a write-back is of now
- if not bucket.following then at = min(at, now) end
+ if not bucket.following then at = now end
a write-back is recorded though its window is over
- if more > 0 and not (bucket.head and last + bucket.a <= now) then
+ if more > 0 then
a write-back forgets what a step of the clock has moved
- units[#units + 1] = now + log.fresh - log.a, late
+ units[#units + 1] = now + log.fresh - log.a, 0
a write-back between two records does not add up
- old[#old + 1], old_units[#old_units + 1], level = stamp, up_to - level, up_to
+ old[#old + 1], old_units[#old_units + 1], level = stamp, up_to - before, up_to
a log's future is believed
- if kept > 0 and (last > stamp or head_stamp + a <= now) then
+ if kept > 0 and head_stamp + a <= now then
a give-back leaves later blocks as they are
- records = pack('>I4', (unpack('>I4', records) - returned) % TWO32) .. sub(records, 5)
+ records = sub(records, 1)
a search halves one step too few
- while high - low > 1 do
+ while high - low > 2 do

=== SlidingWindow
stamps are rounded down to the precision
- local stamp, kept = now + (-now) % b, 0
+ local stamp, kept = now - now % b, 0
every sliding window is restamped as if it had leases
- if kind == LEASED and last > stamp then
+ if last > stamp then

=== LeasedWindow
after a clock step, units of a lease end with the step that it is now
- if kind == LEASED and last > stamp then stamp = stamp + b end
+

=== FixedWindow
a debt is told as nothing left
- if drain or level < FULL then over = left end
+
a count that is lost is told as a debt
- if drain or level < FULL then over = left end
+ over = left
writing a counter again forgets its end
- bucket.start, level, born)
-       if kept > 0 then
-         call('SET', key, state, 'KEEPTTL')
+ bucket.start, level, born)
+       if kept > 0 then
+         call('SET', key, state)
a counter's future is believed
- elseif start > edge then
+ elseif start > edge + now then
a step back over one edge forgets the window that follows
- if start == ends then
+ if start == 0 then
a step back over one edge lets the window before admit again
- kept, following = level, count
+ level, kept, following = count, count, count
the wait after such a step ends at the edge, whatever the window that follows holds
- elseif bucket.following and bucket.following + cost > bucket.cap then
+ elseif not bucket then
a fixed window is written back into the next one
- if times[i] >= from and times[i] < to then
+ if times[i] < to then

=== CalendarWindow
of equal waits the first is reported
- if slow.tighter(bucket, tightest) then
+ if not slow then
of equal waits and remainders the first is reported
- return left < least or left == least and one.cap / a < other.cap / b
+ return left < least
of two calendar windows the later is taken
- if now < second then return first, second, third - second, ends end
+ if now < first then return first, second, third - second, ends end
the calendar window that follows is as long as this one
- return second, third, fourth - third, ends
+ return second, third, third - second, ends

=== TokenBucket
tokens are written back that have drained
- gain = gain - max(0, now - from) * drain
+ gain = gain * 1
tokens that are written back drain beside those that were there
- elseif at < bucket.born and bucket.born <= now then
+ elseif at < now then
a token bucket waits for its old clock
- if as_of > now then as_of, born
+ if as_of > now * 2 then as_of, born
a token bucket's level is taken for one of the rate in force
- if unit == b and rate == a and limit >= burst and as_of <= now then
+ if size == 43 and limit >= burst and as_of <= now then
a level of another rate is rounded down
- scaled + quotient + (remainder > 0 and 1 or 0)
+ scaled + quotient
a level of another rate is more than a full bucket
- found = min(found, limit * b + debt)
+
a change of the rate forgives a debt
- found = min(found, limit * b + debt)
+ found = min(found, limit * b)
a faster rate has drained before its first look
- if is_faster then found, most, drained = held, held_uncut, 0 end
+
a look by a faster rate does not store it
- if bucket.adopts then bucket.returned = true end
+
what a change of the policy cuts is forgotten
- if uncut > 0 then
-     state
+ if uncut < 0 then
+     state
what was not cut drains by the slower of two rates
- local is_faster = rescale(a, b, uncut_unit, huge) > uncut_rate
+ local is_faster = false
a larger burst goes on with what a smaller one has cut
- and (uncut == 0 or limit <= burst)
+
who settles counts by its own rate
- bucket.unit, bucket.drain = held.unit, held.drain
+ local _
tokens are rounded up
- left = (left - left % bucket.unit) / bucket.unit
+ left = math.ceil(left / bucket.unit)
a give-back after a reset takes from others
- or at < bucket.born or at > now
+ or at > now
a token bucket gives back what has drained
- left * unit - drained
+ left * unit
receipts that another rate has counted stay
- groups = unit == b and rate == a and groups,
+ groups = groups,

=== receipts
a receipt returns what has drained
- most = min(most, lowest)
+ most = most
what a receipt returns is returned by those after it too
- for j = i, #groups do
+ for j = i, i do
receipts that return as much as those before are not joined with them
- while kept[1] and kept[#kept].most >= group.most do
+ while not group do
receipts that are joined lose nothing
- groups[i - 1].most = before - lost
+ groups[i - 1].most = before
receipts that are joined return as much as the later ones
- following.most = group.most
+ following.most = following.most
what is open in one of two groups is forgotten
- following.open = min(following.open + group.open,
+ following.open = min(following.open,
what is settled stays open
- group.open = max(0, group.open - settled)
+ group.open = max(0, group.open)
any number of groups is kept
- elseif last == 8 then
+ elseif last == 800 then

=== holds
a hold returns its units as often as it is asked
- hold.level = left > units and left - units + 1 or 0
+ hold.level = left + 1
a hold loses what is to stay in it
- units = min(units, unused)
+ units = min(units, left)
a hold returns units to buckets that it is not of
- if known == name then
+ if known then
a hold returns units as if they were taken now
- return at > 0 and at or unpack('>I7', held), drain, unit
+ return now, drain, unit
what has drained by the rate of the taking comes back by a slower one
- if (first_unit or 0) > 0 then
+ if first_unit == 0 then
a decision that is denied leaves a hold
- if result > 0 then
-       local held
+ if result then
+       local held
what is to be done once is done as often as it is sent
- if hold.level > 0 then return NOTHING, 0, ends, rows end
+
a hold is settled as often as it is asked
- hold.level, units = 0, unused
+ units = unused
what was used beyond a hold is of the time when it was left
- { now }, { -units })
+ { since }, { -units })
what was used beyond a hold is added to buckets that it is not of
- if since and units < 0 and done then
+ if units < 0 and done then
what was used beyond a hold is not taken
- if since and units < 0 and done then
+ if since and units < -1000 and done then
what was added is told as returned
- if units < 0 then result = ADDED end
+
a hold that has ended is settled with nothing
- if not held then return NOTHING, 0, ends, rows end
+ if not held then return 1, 0, ends, rows end
a hold of no units is not left
- bucket.units + 1, table
+ bucket.units, table
a hold has a unit more than it was left with
- pack('>I4', level - 1)
+ pack('>I4', level)
what asks is admitted when nothing is left
- if what == ASK and cost == 0 then cost = 1 end
+
what asks takes a unit
- if takes > 1 or what == ASK then index
+ if takes > 1 then index

=== slots
a slot counts a microsecond too long
- local level = read('ZCOUNT', key, now + 1, '+inf')
+ local level = read('ZCOUNT', key, now, '+inf')
slots that have ended count
- local level = read('ZCOUNT', key, now + 1, '+inf')
+ local level = read('ZCARD', key)
a clock that stepped back keeps slots that are dead
- if tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) > ends then
+ if tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) > ends + 2 * a then
a decision that is denied stores its slots
- if decided and decided <= 0 then return decided, 0, 0, following end
+ if decided == 0 then return decided, 0, 0, following end
slots are freed by their number instead of their id
- units = -redis.call('ZREM', key, unpack(list))
+ units = -#redis.call('ZPOPMIN', key, units) / 2
what has ended stays when it is freed
- if what == 6 then units = -redis.call('ZREM', key, unpack(list))
+ if what == 6 and live then units = -redis.call('ZREM', key, unpack(list))
what has ended is freed once more
- if what == 6 and not live then return 3, 0, 0, following end
+
a renewal does not bring back what was lost
- redis.call('ZADD', key, unpack(list))
+ redis.call('ZADD', key, decided and 'NX' or 'XX', unpack(list))
a renewal adds slots that it has already
- units = -redis.call('ZREM', key, unpack(list)) elseif live then units = 0 end
+ units = -redis.call('ZREM', key, unpack(list)) end
a renewal is of half the time
- if what ~= 6 then list[#list + 1] = now + bucket.a end
+ if what ~= 6 then list[#list + 1] = now + (decided and bucket.a or bucket.a / 2) end
nobody is told of slots that had ended
- ended = redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
+ redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
slots of one id have one name
- list[#list + 1] = id .. string.char(n)
+ list[#list + 1] = id

=== kept history
what comes next is stale when two admissions share a stamp
- elseif ahead >= copies then
+ elseif ahead > copies then
a receipt of before the first group is taken for one of it
- if settled > 0 and at >= bucket.since then
+ if settled > 0 then
a give-back takes from whichever entry comes next
- if found ~= stamp or log.number - number > REACH then returned = 0 end
+ if log.number - number > REACH then returned = 0 end
what asks keeps the rate of another policy
- bucket.returned = bucket.returned or differs and held.level + held.uncut > 0
+
who settles says what is a debt
- bucket.burst = bucket.burst or bucket.stored_burst
+

=== keys outlive their units
a log's key ends with the window of its first entry
- local extend = expires < last + window
+ local extend = expires == 0
a token bucket's key ends too soon
- local lifetime = 2 * empty + MARGIN
+ local lifetime = empty / 2
a token bucket's key ends with the units of its first take
- if expires < now + empty then
-         -- Twice
+ if expires == 0 then
+         -- Twice

=== a slower rate extends a key
a look by a slower rate leaves a token bucket's key its end
- if empty > 0 and expires < now + empty then
+ if expires == 0 then
";

struct Bug {
    check: &'static str,
    name: &'static str,
    right: String,
    wrong: String,
}

fn bugs() -> Vec<Bug> {
    let (mut bugs, mut check): (Vec<Bug>, _) = (Vec::new(), "");
    for line in BUGS.lines().filter(|line| !line.is_empty()) {
        let (sign, rest) = line.split_at_checked(2).unwrap_or((line, ""));
        match (sign, bugs.last_mut()) {
            ("- ", Some(bug)) => bug.right += &format!("\n{rest}"),
            ("+ " | "+", Some(bug)) => bug.wrong += &format!("\n{rest}"),
            ("==", _) => check = &line[4..],
            _ => bugs.push(Bug {
                check,
                name: line,
                right: String::new(),
                wrong: String::new(),
            }),
        }
    }
    bugs
}

impl Bug {
    /// The script with this bug.
    fn script(&self) -> String {
        let right = self.right.trim_start_matches('\n');
        let times = script::DECIDE.matches(right).count();
        assert_eq!(times, 1, "`{right}` stands {times} times in the script");
        script::DECIDE.replace(right, self.wrong.trim_start_matches('\n'))
    }

    /// Whether its check fails.
    fn is_found(&self, lua: &mut Lua) -> bool {
        lua.use_script(&self.script());
        match self.check {
            "holds" => holds_agree(lua).is_err(),
            "receipts" => receipts_differ(lua, HISTORIES),
            "slots" => slots_differ(lua, HISTORIES),
            "kept history" => {
                let mut kept = kept::that_find_bugs().into_iter();
                kept.any(|history| replay(lua, &history).is_err())
            }
            "keys outlive their units" => keys_outlive_their_units(lua).is_err(),
            "a slower rate extends a key" => a_slower_rate_extends_a_key(lua).is_err(),
            kind => {
                let same = |of: &&Kind| format!("{of:?}") == kind;
                let kind = *Kind::ALL.iter().find(same).expect(kind);
                let lua = RefCell::new(lua);
                is_refuted(HISTORIES, &histories(kind), |history| {
                    let outcome = replay(&mut lua.borrow_mut(), &history);
                    outcome.map(drop).map_err(TestCaseError::fail)
                })
            }
        }
    }
}

/// Most bugs show in the first histories, rare ones in some tens.
const HISTORIES: u32 = 3_000;

#[test]
fn each_of_these_bugs_turns_a_test_red() {
    let bugs = bugs();
    assert!(bugs.len() > 40, "{}", bugs.len());
    // A thread and its Redis wait for each other: together they use one processor.
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    // Bugs that no check finds, of those that `next` still counts out; other threads take the others.
    let missed = || {
        let mut lua = Lua::start();
        let rest = std::iter::from_fn(|| bugs.get(next.fetch_add(1, Ordering::Relaxed)));
        let missed = rest.filter(|bug| !bug.is_found(&mut lua));
        missed.map(|bug| bug.name).collect::<Vec<_>>()
    };
    let missed: Vec<_> = thread::scope(|scope| {
        let each: Vec<_> = (0..threads).map(|_| scope.spawn(missed)).collect();
        let each = each.into_iter().map(|one| one.join());
        each.flat_map(|one| one.unwrap_or_else(|why| resume_unwind(why)))
            .collect()
    });
    assert!(missed.is_empty(), "no test finds: {missed:#?}");
}
