//! The policy in force and its counters, and their replacement while requests are served.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::{error, info};

use crate::policy::{Policy, PolicyError, PolicySource};
use crate::telemetry::metrics::{Meters, Metrics};

/// A policy and which of the loaded ones it is.
#[derive(Debug)]
pub struct Epoch {
    /// Counted from 1; grows with each reload.
    pub number: u64,
    /// The limits.
    pub policy: Policy,
    /// What is counted of them.
    pub meters: Meters,
}

/// The policy in force. Readers take what is there when they begin, and keep it until they are done.
#[derive(Debug)]
pub struct Live {
    current: ArcSwap<Epoch>,
    /// Where it comes from.
    pub source: PolicySource,
}

/// What a reload came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Reload {
    /// The file is as it was.
    Unchanged,
    /// Its new policy is in force.
    Loaded,
    /// It cannot be used; the policy before stays in force.
    Refused,
}

impl Live {
    /// Loads a file's first policy.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong.
    pub fn load(path: &Path, metrics: &Metrics) -> Result<Self, PolicyError> {
        let (source, policy) = PolicySource::open(path)?;
        let epoch = Epoch {
            number: 1,
            meters: metrics.policy_loaded(1, &policy),
            policy,
        };
        Ok(Self {
            current: ArcSwap::from_pointee(epoch),
            source,
        })
    }

    /// What is in force now.
    pub fn current(&self) -> Arc<Epoch> {
        self.current.load_full()
    }

    /// Reads the file again, and puts its policy in force if it is a new and a good one.
    pub fn reload(&self, metrics: &Metrics) -> Reload {
        let before = self.current.load_full();
        let mut reload = Reload::Unchanged;
        let tried = self.source.read_again(&before.policy, |policy| {
            let number = before.number + 1;
            let meters = metrics.policy_loaded(number, &policy);
            self.current.store(Arc::new(Epoch {
                number,
                policy,
                meters,
            }));
            info!(epoch = number, "policy reloaded");
            reload = Reload::Loaded;
        });
        if let Err(why) = tried {
            error!("{why}; the policy before stays in force");
            metrics.policy_refused();
            return Reload::Refused;
        }
        reload
    }
}
