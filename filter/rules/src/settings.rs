//! What a plugin's configuration says of Envoy's own side: one for each root context, whatever the rules are.

use std::time::Duration;

use crate::conclude::Conclusion;
use crate::config::terms::WhenUnavailable;
use crate::key::Hasher;
use crate::reply::{Reply, details};
use crate::request::Request;
use crate::stats::{NO_RULES_ALLOWED, NO_RULES_DENIED};

/// How the filter reaches the sidecar, and the secret of its keys.
#[derive(Debug)]
pub struct Settings {
    /// Name of the Envoy cluster that contains the sidecar.
    pub cluster: String,
    /// How long a request waits for its verdict.
    pub timeout: Duration,
    /// Waiting requests share a callout.
    pub together: bool,
    /// The sidecar gets the `traceparent` of sampled requests.
    pub traces: bool,
    /// Hashes key components.
    pub hasher: Hasher,
    /// The environment variable that has its pepper, if the configuration does not have it.
    pub(crate) pepper_env: Option<String>,
}

/// Which rule sets of the policy a filter runs.
#[derive(Debug)]
pub struct Pushed {
    /// Their names; the first is the default.
    pub sets: Vec<String>,
    pub(crate) by: Option<By>,
    /// How long a request waits for the first rules.
    pub hold: Duration,
    /// What happens to it then.
    pub then: WhenUnavailable,
}

/// Where a request's route names its rule set.
#[derive(Debug)]
pub(crate) enum By {
    RouteName,
    /// In the route's metadata.
    Metadata(crate::claims::Claim),
}

impl Pushed {
    /// The conclusion for a request that gets no rules in time, and the counter of such requests.
    pub fn without_rules(&self, request: &dyn Request) -> (Conclusion, &'static str) {
        match self.then {
            WhenUnavailable::Allow => {
                let why = details("unmetered", &[("reason", Some("no_rules"))]);
                (Conclusion::Unmetered(why), NO_RULES_ALLOWED)
            }
            WhenUnavailable::Deny => {
                let grpc = request.headers().is_grpc();
                (Conclusion::Answer(Reply::no_rules(grpc)), NO_RULES_DENIED)
            }
        }
    }

    /// The index of the set for a request.
    pub fn set_of(&self, request: &dyn Request) -> usize {
        let name = match &self.by {
            None => return 0,
            Some(By::RouteName) => request.property(&["xds", "route_name"]),
            Some(By::Metadata(claim)) => claim
                .text(request, &["xds", "route_metadata"])
                .map(String::into_bytes),
        };
        let listed = |name: Vec<u8>| self.sets.iter().position(|set| set.as_bytes() == name);
        name.and_then(listed).unwrap_or(0)
    }
}
