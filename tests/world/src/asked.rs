//! What became of a request at an Envoy: what its client got, and by what the network saw who decided.

use sluicegate_history::{By, Said};
use sluicegate_protocol::{Code, Verdict};
use sluicegate_rules::Reply;

use super::network::{Got, Seen};
use super::script::Check;

/// How a request ended in Envoy; its sender is dropped if its VM ended.
pub enum End {
    /// It went to the upstream.
    Passed {
        unmetered: bool,
    },
    Replied(Reply),
}

/// What became of a request.
pub struct Asked {
    /// The sidecar that was asked, or would have been.
    pub sidecar: usize,
    /// What its rules ask for.
    pub checks: Vec<Check>,
    pub said: Said,
    pub by: By,
    /// The checks that had no part in the verdict.
    pub unknown: Vec<usize>,
    /// Those for which no sidecar was asked: the filter has spent units of a lease.
    pub leased: Vec<usize>,
    /// Other sidecars that may have taken the same.
    pub also: Vec<usize>,
    /// What it has reserved, by the limits that it asked for.
    pub receipts: Vec<(usize, String)>,
    /// It has no verdict because its client hung up, its VM ended or the network failed.
    pub is_disturbed: bool,
}

/// A verdict as the record has it.
pub fn said(verdict: &Verdict<'_>) -> Said {
    match verdict {
        Verdict::Admitted(_) => Said::Admitted,
        Verdict::Denied(status) => Said::Denied {
            retry_ms: Some(status.retry_after_ms),
        },
        Verdict::Unavailable { .. } => Said::Unknown,
        Verdict::Error(_) => Said::Refused,
    }
}

impl Asked {
    /// By its end, and what the network saw of it. `None`: it was neither admitted nor denied nor was any sidecar asked, or its rules
    /// asked for nothing. `next`: the sidecar that would have been asked.
    pub fn of(end: &End, seen: &Seen, checks: Vec<Check>, next: usize) -> Option<Self> {
        let last = seen.sent.last();
        let got = last.and_then(|sent| sent.got.as_ref());
        let mut said = match end {
            End::Passed { unmetered: false } => Said::Admitted,
            End::Passed { unmetered: true } => Said::Unknown,
            End::Replied(reply) => match reply.status {
                429 => Said::Denied {
                    retry_ms: Some(retry_ms(reply)?),
                },
                422 => Said::Refused,
                _ => Said::Unknown,
            },
        };
        let mut unknown = Vec::new();
        match got {
            // The units of the others are taken. What leases had of them is put back.
            Some(Got::Admitted(lacks)) if said == Said::Unknown && !lacks.is_empty() => {
                let all_sent = last.is_some_and(|sent| sent.limits.len() == checks.len());
                if all_sent {
                    said = Said::Admitted;
                }
                let lacks =
                    |(index, check): (usize, &Check)| lacks.contains(&check.limit).then_some(index);
                unknown = checks.iter().enumerate().filter_map(lacks).collect();
            }
            Some(Got::Invalid(code)) if said == Said::Unknown => {
                said = Said::Refused;
                if *code == Code::UnknownLimit {
                    unknown = (0..checks.len()).collect();
                }
            }
            _ => {}
        }
        let by = match (said, got) {
            (Said::Denied { .. }, Some(Got::Denied)) => By::Sidecar,
            (Said::Denied { .. }, _) => By::Cache,
            _ => By::Sidecar,
        };
        // Without a verdict, and no sidecar was asked.
        if checks.is_empty() || said == Said::Unknown && last.is_none() {
            return None;
        }
        let is_leased = |check: &Check| {
            said == Said::Admitted && last.is_none_or(|sent| !sent.limits.contains(&check.limit))
        };
        let numbered = checks.iter().enumerate();
        let leased = numbered.filter_map(|(index, check)| is_leased(check).then_some(index));
        let leased = leased.collect();
        let mut also = seen.others();
        if let (By::Cache, Some(last)) = (by, last) {
            also.push(last.sidecar);
        }
        Some(Self {
            sidecar: last.map_or(next, |sent| sent.sidecar),
            checks,
            said,
            by,
            unknown,
            leased,
            also,
            receipts: seen.receipts.clone(),
            is_disturbed: seen.is_disturbed,
        })
    }
}

/// When a denial says to come back.
fn retry_ms(reply: &Reply) -> Option<u64> {
    let header = |name| {
        let mut headers = reply.headers.iter();
        let (_, value) = headers.find(|(known, _)| *known == name)?;
        value.parse::<u64>().ok()
    };
    header("retry-after-ms").or_else(|| Some(header("retry-after")? * 1_000))
}
