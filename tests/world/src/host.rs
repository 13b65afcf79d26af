//! Stands in for `filter/src/host.rs`, so that the filter's own `plugin.rs` and `rule_updates.rs` run here: a request for rules is
//! kept until the world's filter takes it to a sidecar.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use sluicegate_protocol::RULES_HEADER;
use sluicegate_rules::{Headers, Request, VerdictError};

use super::determined;

pub enum Level {
    Info,
    Warn,
    Error,
}

thread_local! {
    /// The name of the current request's route: that of its rule set.
    pub static ROUTE: Cell<&'static str> = const { Cell::new("") };
    static TOKEN: Cell<u32> = const { Cell::new(0) };
    /// What the latest request for rules says of those in force.
    static ASKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The request for rules that was sent last, with its token.
pub fn take_call() -> Option<(u32, String)> {
    ASKED.take().map(|report| (TOKEN.get(), report))
}

pub fn call(
    _: &str,
    headers: Vec<(&str, &str)>,
    _: Option<&[u8]>,
    _: Duration,
) -> Result<u32, VerdictError> {
    let report = headers.iter().find(|(name, _)| *name == RULES_HEADER);
    ASKED.set(report.map(|(_, report)| (*report).to_owned()));
    TOKEN.set(TOKEN.get() + 1);
    Ok(TOKEN.get())
}

pub fn monotonic_us() -> u64 {
    determined::passed_us()
}

/// All that is asked of it is the route's name.
pub struct CurrentRequest;

impl Request for CurrentRequest {
    fn headers(&self) -> &Headers {
        static NONE: std::sync::OnceLock<Headers> = std::sync::OnceLock::new();
        NONE.get_or_init(Headers::default)
    }

    fn property(&self, _: &[&str]) -> Option<Vec<u8>> {
        Some(ROUTE.get().as_bytes().to_vec())
    }
}

pub fn random() -> Option<String> {
    Some(format!("{:032x}", 1))
}

pub fn node() -> String {
    "world".to_owned()
}

pub fn no_memory() -> Option<String> {
    None
}

pub fn define_counter(_: &str) {}

pub fn add_to_counter(_: &str, _: i64) {}

pub fn log(_: Level, _: &str) {}
