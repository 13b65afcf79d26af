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

fn queue() -> CalloutQueue<usize> {
    CalloutQueue::new(TIMEOUT_US, BatchLimits::SHARED)
}

fn nobody(_: &usize) -> bool {
    false
}

/// A queue whose first callout, for request 0, is in flight.
fn in_flight() -> (CalloutQueue<usize>, Batch<usize>) {
    let mut queue = queue();
    let woken = queue.submit(0, ONE, 0);
    assert_eq!(woken, Submitted::Waits { wake: true });
    queue.woken();
    let first = queue.next_batch(0, nobody).unwrap();
    assert_eq!(first.waiters, [0]);
    (queue, first)
}

#[test]
fn requests_submitted_before_the_wake_up_share_a_callout() {
    let mut queue = queue();
    queue.submit(0, ONE, 0);
    for who in 1..4 {
        let submitted = queue.submit(10, ONE, who);
        assert_eq!(submitted, Submitted::Waits { wake: false });
    }
    queue.woken();
    let batch = queue.next_batch(20, |who| *who == 2).unwrap();
    assert_eq!(batch.waiters, [0, 1, 3]);
    // The deadline of the last.
    assert_eq!(batch.timeout_us, TIMEOUT_US - 10);
    assert_eq!(queue.complete(batch.id), [0, 1, 3]);
    assert!(queue.is_idle());
}

#[test]
fn requests_wait_while_a_callout_is_in_flight() {
    let (mut queue, first) = in_flight();
    let waits = queue.submit(10, ONE, 1);
    assert_eq!(waits, Submitted::Waits { wake: false });
    assert!(queue.next_batch(20, nobody).is_none());
    queue.complete(first.id);
    assert!(queue.wants_wakeup(300));
    assert!(!queue.wants_wakeup(300), "a wake-up is pending");
    assert_eq!(queue.next_batch(310, nobody).unwrap().waiters, [1]);
}

/// F9: requests at 0 and 1 ms, and the first callout is lost: the second is sent although no further request comes.
#[test]
fn another_callout_follows_a_slow_one_without_new_requests() {
    let (mut queue, _) = in_flight();
    queue.submit(1_000, ONE, 1);
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
        queue.submit(1, ONE, who);
        assert!(queue.next_batch(1, nobody).is_none());
    }
    let expected = Submitted::Waits { wake: true };
    assert_eq!(queue.submit(1, ONE, 256), expected);
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
            queue.submit(0, each, who);
        }
        let batch = queue.next_batch(0, nobody).unwrap();
        assert_eq!(batch.waiters.len(), together, "{each:?}");
    }
}

#[test]
fn single_batch_limits_send_a_callout_for_each_request() {
    let mut queue = CalloutQueue::new(TIMEOUT_US, BatchLimits::SINGLE);
    for who in 0..10 {
        queue.submit(0, ONE, who);
    }
    for who in 0..10 {
        assert_eq!(queue.next_batch(0, nobody).unwrap().waiters, [who]);
    }
    assert!(queue.next_batch(0, nobody).is_none());
}
