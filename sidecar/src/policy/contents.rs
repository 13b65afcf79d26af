//! The contents of a policy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::consumers::{Consumers, ConsumersByLimit};
use super::kept::{Asked, Kept, Text};
use super::limits::Limit;
use super::rules::RuleSets;
use super::store::StoreAddress;

/// Default of `store_timeout`. Shorter than the filter's own default timeout of 50 ms, so that the filter receives
/// *unavailable* from the sidecar instead of no answer.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_millis(20);

/// Default of `denial_ttl`, how long a denial may be cached: resets and units returned through other sidecars take effect
/// everywhere within this time.
pub const DEFAULT_DENIAL_TTL: Duration = Duration::from_secs(1);

/// Default of `memory_limit`, the bytes that the embedded store may use: some 700,000 keys of one window.
pub const DEFAULT_MEMORY_LIMIT: usize = 256 << 20;

/// A loaded policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its text in the long form, with no other files.
    pub(super) text: Text,
    /// The address of the store.
    pub store: StoreAddress,
    /// Deadline of one store call.
    pub store_timeout: Duration,
    /// Bytes that the embedded store may use.
    pub memory_limit: usize,
    /// How long a denial may be cached.
    pub denial_ttl: Duration,
    /// By name.
    pub(super) limits: BTreeMap<String, Arc<Limit>>,
    /// Entries of `consumers`, by the name with which rules ask for them.
    pub(super) consumers: ConsumersByLimit,
    /// Limits, entries and rules of earlier policies: a filter may ask for them until it has the new rules.
    pub(super) kept: Kept,
    /// The rules for filters.
    pub rules: Arc<RuleSets>,
}

impl Policy {
    /// The entry of `consumers` with this name.
    pub(super) fn entry(&self, name: &str) -> Option<&Arc<Consumers>> {
        let kept = || self.kept.consumers.get(name);
        self.consumers.get(name).or_else(kept)
    }

    /// Everything but the rules that decides, as a text: sidecars with equal policies have equal texts.
    pub fn decides_by(&self) -> String {
        format!(
            "{:?} {:?} {}",
            self.denial_ttl,
            self.consumers,
            self.limits_text()
        )
    }

    /// All limits, as a text: sidecars with equal limits have equal texts.
    pub fn limits_text(&self) -> String {
        format!("{:?}", self.limits)
    }

    /// Checks that a running sidecar can replace this policy with `next`.
    ///
    /// # Errors
    /// Changes that require a restart.
    pub fn check_restart(&self, next: &Self) -> Result<(), String> {
        let fields = [
            ("store", self.store != next.store),
            ("store_timeout", self.store_timeout != next.store_timeout),
            ("memory_limit", self.memory_limit != next.memory_limit),
        ];
        let changed = fields.iter().filter(|(_, is_other)| *is_other);
        let changed: Vec<_> = changed.map(|(field, _)| format!("`{field}`")).collect();
        if changed.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} changed, which requires a restart of the sidecar",
            changed.join(", ")
        ))
    }

    /// `next` in the place of this policy, with everything of this one that filters may still ask for.
    ///
    /// # Errors
    /// Too much would be kept.
    pub fn may_become(&self, mut next: Self, now_us: u64) -> Result<Self, String> {
        next.kept = self.kept.after(self.asked(), next.asked(), now_us)?;
        Ok(next)
    }

    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            text: &self.text,
            limits: &self.limits,
            consumers: &self.consumers,
            rules: &self.rules,
        }
    }

    /// The limit with this name.
    pub fn limit(&self, name: &str) -> Option<&Arc<Limit>> {
        let kept = || self.kept.limits.get(name);
        self.limits.get(name).or_else(kept)
    }

    /// Whether a policy has a limit of this name, and not just an earlier one.
    pub fn has(&self, name: &str) -> bool {
        self.limits.contains_key(name)
    }

    /// Whether both apply the same limits in the same way, whatever their rules.
    pub fn limits_as(&self, other: &Self) -> bool {
        self.limits == other.limits
            && self.denial_ttl == other.denial_ttl
            && self.consumers == other.consumers
    }

    /// The earlier rules by which filters may ask, as answers list them.
    pub fn earlier(&self) -> Option<String> {
        let earlier = self.kept.earlier();
        (!earlier.is_empty()).then_some(earlier)
    }

    /// How much is kept of earlier policies, as a part of the most that may be kept: 0 to 1.
    pub fn kept_ratio(&self) -> f64 {
        self.kept.ratio()
    }

    /// This policy without limits, entries and rules that filters should not ask for any more, and whether limits or entries of
    /// `consumers` are among them; `None` if all are kept. `is_used`: whether a filter has the rules with this digest.
    pub fn without_unused(
        &self,
        is_used: impl Fn(&str) -> bool,
        now_us: u64,
    ) -> Option<(Self, bool)> {
        let mut kept = self.kept.clone();
        let (is_other, has_fewer) = kept.drop_unused(is_used, now_us);
        let policy = || Self {
            kept,
            ..self.clone()
        };
        is_other.then(|| (policy(), has_fewer))
    }

    /// All limits for which decisions are made.
    pub fn decided_limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.values().chain(self.kept.limits.values())
    }

    /// All limits, sorted by name.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.values()
    }

    /// The names of shadow rules, each with one of the limits that decide on what it asks.
    pub fn shadows(&self) -> impl Iterator<Item = (&String, &str)> {
        let shadows = self.rules.shadows.iter();
        shadows.flat_map(|(rule, limit)| self.limits_of(limit).map(move |limit| (rule, limit)))
    }

    /// What a rule may name so: the limits of an entry of `consumers`, and a limit.
    pub fn limits_of<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'n str> {
        let of_consumers = self.consumers.get(name).into_iter();
        let limits = of_consumers.flat_map(|of| of.limits());
        limits.map(String::as_str).chain([name])
    }

    /// The limit and the key that a check is for, if it names an entry of `consumers`.
    pub fn resolve<'k>(&self, limit: &str, key: &'k str) -> Option<(&str, Cow<'k, str>)> {
        // If a change has turned a limit into an entry of `consumers` or back, earlier and new rules ask for one name with keys of
        // different forms.
        let (entry, has_both) = match self.consumers.get(limit) {
            Some(entry) => (
                entry,
                self.kept.limits.contains_key(limit) && !self.has(limit),
            ),
            None => (self.kept.consumers.get(limit)?, self.has(limit)),
        };
        (!has_both || Consumers::is_asked_with(key)).then(|| entry.resolve(key))
    }

    /// Resolves a limit and a key in place.
    pub fn rename(&self, limit: &mut Cow<'_, str>, key: &mut Cow<'_, str>) {
        if let Some((of, with)) = self.resolve(limit, key) {
            (*limit, *key) = (of.to_owned().into(), with.into_owned().into());
        }
    }

    /// Entries of a request with the names that this gives them; without consumers, the entries themselves.
    pub fn renamed<'e, T: Clone>(&self, asked: &'e [T], rename: impl Fn(&mut T)) -> Cow<'e, [T]> {
        let mut asked = Cow::Borrowed(asked);
        if !(self.consumers.is_empty() && self.kept.consumers.is_empty()) {
            asked.to_mut().iter_mut().for_each(rename);
        }
        asked
    }

    /// Consumers that have limits of their own and no key, with the entry that names them.
    pub fn consumers_without_keys(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.consumers.iter();
        entries.flat_map(|(name, of)| of.without_keys().map(|one| (name.as_str(), one)))
    }

    /// The digests of the peppers of all consumers.
    pub fn peppers(&self) -> impl Iterator<Item = &str> {
        self.consumers.values().map(|of| of.pepper.as_str())
    }
}
