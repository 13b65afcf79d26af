//! The queue by example; `tests/fuzz/src/queue.rs` has events in any order.

use super::*;

const TIMEOUT_US: u64 = 50_000;
const ONE: Load = load(0, 0, 0);

const fn load(decisions: usize, checks: usize, bytes: usize) -> Load {
    Load {
        decisions,
        checks,
        bytes,
    }
}

/// A queue of a sidecar that is known to be fast.
fn queue() -> CalloutQueue<usize> {
    let mut queue = CalloutQueue::new(TIMEOUT_US, BatchLimits::SHARED);
    queue.took_us = [300; 4];
    queue
}

fn nobody(_: &usize) -> bool {
    false
}

fn everybody(_: &usize) -> bool {
    true
}

/// Of a subject of its own; whether the root has to be woken.
fn submit(queue: &mut CalloutQueue<usize>, now_us: u64, load: Load, who: usize) -> Option<bool> {
    (queue.submit(now_us, (load, || vec![who as u64]), who, nobody)).ok()
}

/// Sends and answers callouts that take so long, one after the other; returns when the last is over.
fn answers(queue: &mut CalloutQueue<usize>, took_us: u64, count: u64) -> u64 {
    for n in 0..count {
        submit(queue, n * TIMEOUT_US, ONE, 0);
        queue.woken();
        let batch = queue.next_batch(n * TIMEOUT_US, nobody).unwrap();
        queue.complete(batch.id, Some(n * TIMEOUT_US + took_us));
    }
    count * TIMEOUT_US
}

/// A queue whose first callout, for request 0, is in flight.
fn in_flight() -> (CalloutQueue<usize>, Batch<usize>) {
    let mut queue = queue();
    let woken = submit(&mut queue, 0, ONE, 0);
    assert_eq!(woken, Some(true));
    queue.woken();
    let first = queue.next_batch(0, nobody).unwrap();
    assert_eq!(first.waiters, [0]);
    (queue, first)
}

#[test]
fn requests_submitted_before_the_wake_up_share_a_callout() {
    let mut queue = queue();
    submit(&mut queue, 0, ONE, 0);
    for who in 1..4 {
        let submitted = submit(&mut queue, 10, ONE, who);
        assert_eq!(submitted, Some(false));
    }
    queue.woken();
    let batch = queue.next_batch(20, |who| *who == 2).unwrap();
    assert_eq!(batch.waiters, [0, 1, 3]);
    // The deadline of the last.
    assert_eq!(batch.timeout_us, TIMEOUT_US - 10);
    assert_eq!(queue.complete(batch.id, Some(300)), [0, 1, 3]);
    assert!(queue.is_idle());
}

#[test]
fn requests_wait_while_a_callout_is_in_flight() {
    let (mut queue, first) = in_flight();
    let waits = submit(&mut queue, 10, ONE, 1);
    assert_eq!(waits, Some(false));
    assert!(queue.next_batch(20, nobody).is_none());
    queue.complete(first.id, Some(300));
    assert!(queue.wants_wakeup(300, nobody));
    assert!(!queue.wants_wakeup(300, nobody), "a wake-up is pending");
    assert_eq!(queue.next_batch(310, nobody).unwrap().waiters, [1]);
}

/// F9: requests at 0 and 1 ms, and the first callout is lost: the second is sent although no further request comes.
#[test]
fn another_callout_follows_a_slow_one_without_new_requests() {
    let (mut queue, _) = in_flight();
    submit(&mut queue, 1_000, ONE, 1);
    let poll_interval_us = queue.poll_interval_us().unwrap();
    assert!(poll_interval_us <= TIMEOUT_US / 4);
    let batch = queue.next_batch(TIMEOUT_US / 4, nobody).unwrap();
    assert_eq!(batch.waiters, [1]);
    assert_eq!(batch.timeout_us, 1_000 + TIMEOUT_US - TIMEOUT_US / 4);
    // F9: each request fails at its own deadline and not at that of its callout.
    assert_eq!(queue.expired(TIMEOUT_US), [0]);
    assert_eq!(queue.expired(TIMEOUT_US + 1_000), [0, 1]);
}

#[test]
fn a_full_batch_does_not_wait_for_the_callout_before_it() {
    let (mut queue, _) = in_flight();
    for who in 1..256 {
        submit(&mut queue, 1, ONE, who);
        assert!(queue.next_batch(1, nobody).is_none());
    }
    let expected = Some(true);
    assert_eq!(submit(&mut queue, 1, ONE, 256), expected);
    assert_eq!(queue.next_batch(1, nobody).unwrap().waiters.len(), 256);
}

/// F5: what exceeds the protocol's bounds is split into several callouts.
#[test]
fn a_batch_is_bounded_by_decisions_checks_and_bytes() {
    for (each, together) in [
        (load(5, 5, 500), 102),
        (load(1, 40, 500), 12),
        (load(1, 4, 70_000), 3),
        (load(900, 2_000, 700_000), 1),
        (load(1, 1, 100), 256),
    ] {
        let mut queue = queue();
        for who in 0..1_000 {
            submit(&mut queue, 0, each, who);
        }
        let batch = queue.next_batch(0, nobody).unwrap();
        assert_eq!(batch.waiters.len(), together, "{each:?}");
    }
}

#[test]
fn single_batch_limits_send_a_callout_for_each_request() {
    let mut queue = CalloutQueue::new(TIMEOUT_US, BatchLimits::SINGLE);
    for who in 0..10 {
        submit(&mut queue, 0, ONE, who);
    }
    for who in 0..10 {
        assert_eq!(queue.next_batch(0, nobody).unwrap().waiters, [who]);
    }
    assert!(queue.next_batch(0, nobody).is_none());
}

/// W2: one client cannot fill the queue, for others or for itself.
#[test]
fn one_limit_and_key_has_a_quarter_of_the_queue() {
    let (mut queue, _) = in_flight();
    let submit = |queue: &mut CalloutQueue<usize>, subjects: &[u64], who| {
        queue.submit(10, (ONE, || subjects.to_vec()), who, nobody)
    };
    for who in 1..=UNCOUNTED + MAX_OF_SUBJECT {
        let waits = submit(&mut queue, &[1, 100 + who as u64], who);
        assert!(waits.is_ok(), "{who}");
    }
    let refused = Err(VerdictError::SubjectFull);
    assert_eq!(submit(&mut queue, &[1], 0), refused);
    assert_eq!(submit(&mut queue, &[2, 1], 0), refused);
    assert!(submit(&mut queue, &[2], 0).is_ok());
    // Those that were sent wait no more in the queue.
    for _ in 0..3 {
        let batch = queue.next_batch(10, nobody).unwrap();
        queue.complete(batch.id, Some(10));
    }
    assert!(submit(&mut queue, &[1], 0).is_ok());
}

/// L4: nobody waits, so there is room.
#[test]
fn requests_whose_clients_have_hung_up_hold_no_place() {
    for subjects in [MAX_WAITING, 1] {
        let (mut queue, _) = in_flight();
        let full = (0..MAX_WAITING).find(|who| {
            let subject = (who % subjects) as u64;
            let submitted = queue.submit(0, (ONE, || vec![subject]), *who, nobody);
            submitted.is_err()
        });
        assert_eq!(full.is_some(), subjects == 1);
        let next = |queue: &mut CalloutQueue<usize>, now_us| {
            queue.submit(now_us, (ONE, || vec![0]), MAX_WAITING, |who| {
                *who < MAX_WAITING
            })
        };
        // Each search takes a while, so that it is not made for every request.
        queue.swept_us = 10_000;
        assert!(next(&mut queue, 10_900).is_err());
        assert!(next(&mut queue, 11_000).is_ok());
        assert_eq!(queue.waiting.len(), 1);
    }
}

/// L4: what a client leaves behind does not keep the next one waiting.
#[test]
fn a_callout_whose_clients_have_all_hung_up_does_not_count() {
    let (mut queue, _) = in_flight();
    let waits = queue.submit(10, (ONE, || vec![1]), 1, |who| *who == 0);
    assert_eq!(waits, Ok(true));
    queue.woken();
    // But their number is bounded.
    let (mut sent, all) = (1, BatchLimits::SHARED.callouts * MORE_WITH_ABANDONED);
    while let Some(batch) = queue.next_batch(10, |who| *who == 0) {
        assert_eq!(batch.waiters, [1]);
        sent += 1;
        let _ = queue.submit(10, (ONE, || vec![1]), 1, everybody);
        if sent < all {
            assert!(queue.next_batch(10, nobody).is_none(), "it is heeded");
        }
        for callout in &mut queue.in_flight {
            callout.waiters.iter_mut().for_each(|one| one.who = 0);
        }
    }
    assert_eq!(sent, all);
}

/// L3: what waits behind a callout that takes 9/10 of the timeout would be too late.
#[test]
fn nobody_waits_behind_a_callout_of_a_slow_sidecar() {
    let mut queue = queue();
    let now_us = answers(&mut queue, TIMEOUT_US / 10 * 9, 4);
    for who in 0..16 {
        let at_us = now_us + who as u64;
        let waits = submit(&mut queue, at_us, ONE, who);
        assert_eq!(waits, Some(true));
        queue.woken();
        assert_eq!(queue.next_batch(at_us, nobody).unwrap().waiters, [who]);
    }
    submit(&mut queue, now_us + 20, ONE, 16);
    assert!(queue.next_batch(now_us + 20, nobody).is_none(), "enough");
}

/// L3: units would be taken for it in vain.
#[test]
fn a_request_that_an_answer_could_not_reach_in_time_is_not_sent() {
    let mut queue = queue();
    let now_us = answers(&mut queue, TIMEOUT_US / 10 * 9, 4);
    submit(&mut queue, now_us, ONE, 1);
    submit(&mut queue, now_us + 5_000, ONE, 2);
    assert_eq!(
        queue.next_batch(now_us + 6_000, nobody).unwrap().waiters,
        [2]
    );
    assert_eq!(queue.expired(now_us + TIMEOUT_US), [1]);
}

/// A stall of the sidecar makes a few answers late, and the next ones are fast again.
#[test]
fn one_late_answer_does_not_make_a_sidecar_slow() {
    let mut queue = queue();
    let now_us = answers(&mut queue, TIMEOUT_US / 10 * 9, 3);
    submit(&mut queue, now_us, ONE, 1);
    assert_eq!(
        queue.next_batch(now_us + 40_000, nobody).unwrap().waiters,
        [1]
    );
    submit(&mut queue, now_us + 40_000, ONE, 2);
    assert!(queue.next_batch(now_us + 40_001, nobody).is_none());
}

/// Until there are answers, nobody waits behind the first callout.
#[test]
fn a_sidecar_is_slow_until_it_has_answered() {
    let mut queue = CalloutQueue::new(TIMEOUT_US, BatchLimits::SHARED);
    for who in 0..2 {
        submit(&mut queue, 0, ONE, who);
        assert_eq!(queue.next_batch(0, nobody).unwrap().waiters, [who]);
    }
    let id = queue.in_flight[0].id;
    queue.complete(id, Some(300));
    submit(&mut queue, 300, ONE, 2);
    assert!(queue.next_batch(300, nobody).is_none());
}

/// W2: Envoy's own timer does not know that its worker was busy.
#[test]
fn requests_of_a_callout_that_was_cut_too_early_wait_again() {
    let mut queue = queue();
    for (at_us, who) in [(0, 0), (10_000, 1), (20_000, 2)] {
        queue.submit(at_us, (ONE, || vec![7]), who, nobody).unwrap();
    }
    let batch = queue.next_batch(20_000, nobody).unwrap();
    queue.submit(21_000, (ONE, || vec![7]), 3, nobody).unwrap();
    queue.retry(batch.id, 30_000);
    assert_eq!(
        queue.complete(batch.id, None),
        [0],
        "it has little time left"
    );
    let batch = queue.next_batch(30_000, nobody).unwrap();
    assert_eq!(batch.waiters, [1, 2, 3]);
    // In time, nothing is left to ask again.
    queue.retry(batch.id, 30_000 + batch.timeout_us);
    assert_eq!(queue.complete(batch.id, None), [1, 2, 3]);
    assert!(queue.is_idle());
}
