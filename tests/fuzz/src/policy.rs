//! The sidecar's policy: whatever the file says, it is a policy whose numbers every store can count, or it is refused with a
//! message that does not contain the store's password.

use sluicegate::policy::Policy;
use sluicegate_engine::BucketSpec;
use sluicegate_protocol::Whom;

use crate::input::Input;

/// No other input contains it.
const PASSWORD: &str = "hunter2-of-the-store";

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    let Ok(rest) = str::from_utf8(input.rest()) else {
        return;
    };
    if rest.contains(PASSWORD) {
        return;
    }
    let text = match kind % 4 {
        0 => format!("store: redis://user:{PASSWORD}@127.0.0.1:6379\n{rest}"),
        // In front of the store, what is wrong stands within two lines of it (S21).
        1 => format!("{rest}\nstore: redis://:{PASSWORD}@127.0.0.1:6379\n"),
        2 => format!("limits: {{ l: {rest} }}"),
        _ => rest.to_owned(),
    };
    match Policy::parse(&text) {
        Ok(policy) => valid(&policy),
        Err(message) => {
            assert!(!message.contains(PASSWORD), "{message}");
            assert!(
                !message.is_empty() && message.len() < 2_000 + text.len(),
                "{message}"
            );
        }
    }
}

fn valid(policy: &Policy) {
    assert!(policy.limits().count() > 0);
    for limit in policy.limits() {
        assert!((1..=8).contains(&limit.windows.len()));
        for window in &limit.windows {
            let quota = window.quota.max(u64::from(limit.allows_nothing()));
            let counted = BucketSpec { quota, ..*window };
            assert_eq!(counted.check(), Ok(()), "{limit:?}");
        }
        assert_eq!(limit.most() > 0, !limit.allows_nothing());
        for whom in limit.overrides.keys() {
            assert_ne!(*whom, Whom::Key(String::new()));
        }
    }
}
