//! The readings of a request's target in which a rule applies, and the values of key components in them.

use crate::key_component::KeyComponent;
use crate::lookup::Lookup;
use crate::match_result::{MatchResult, TooLong};
use crate::request_view::{Reading, RequestView};
use crate::rule::Rule;
use crate::template::Capture;

/// The readings of the target in which a rule applies, each with the variables of its template. The first one is
/// separate, so that a plain path, which has no other, needs no allocation.
#[derive(Default)]
pub(crate) struct MatchingReadings<'s, 'r> {
    pub first: Option<(Reading<'s, 'r>, Vec<Capture<'s>>)>,
    others: Vec<(Reading<'s, 'r>, Vec<Capture<'s>>)>,
}

impl<'s, 'r> MatchingReadings<'s, 'r> {
    /// The value of a component. If the readings disagree, only the upstream knows the true value, and a client could
    /// choose a key: `/v1/tenant/..%2Fx1`, `..%2Fx2`, and so on.
    pub fn find<'a>(
        &'a self,
        component: &'a KeyComponent,
        view: &'a RequestView<'_>,
    ) -> Lookup<'a> {
        let Some((reading, captures)) = &self.first else {
            return Lookup::Missing;
        };
        let found = component.find(view, *reading, captures);
        let differs = |(reading, captures): &'a (Reading<'s, 'r>, Vec<Capture<'s>>)| {
            component.find(view, *reading, captures) != found
        };
        if component.varies() && self.others.iter().any(differs) {
            return Lookup::Ambiguous;
        }
        found
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Reading<'s, 'r>, Vec<Capture<'s>>)> {
        self.first.iter().chain(&self.others)
    }
}

/// The readings in which a rule with `stop` has matched.
#[derive(Default)]
pub(crate) struct Stopped {
    /// All of them: later rules need not be evaluated.
    pub everywhere: bool,
    /// By index; empty if there is one reading only.
    readings: Vec<bool>,
}

impl Rule {
    /// The readings in which the rule applies. If it has `stop`, they are marked as stopped for later rules.
    pub fn matching_readings<'s, 'r>(
        &'s self,
        view: &'s RequestView<'r>,
        stopped: &mut Stopped,
    ) -> Result<MatchingReadings<'s, 'r>, TooLong> {
        let mut matching = MatchingReadings::default();
        let mut left = false;
        for reading in view.readings() {
            if stopped.readings.get(reading.index) == Some(&true) {
                continue;
            }
            let mut captures = Vec::new();
            match self.matcher.matches(reading, &mut captures) {
                MatchResult::Yes if matching.first.is_none() => {
                    matching.first = Some((reading, captures))
                }
                MatchResult::Yes => matching.others.push((reading, captures)),
                MatchResult::No => left = true,
                MatchResult::Unknown(too_long) => return Err(too_long),
            }
        }
        if self.stop && matching.first.is_some() {
            stopped.everywhere = !left;
            if left {
                stopped.readings.resize(view.readings().count(), false);
                for (reading, _) in matching.iter() {
                    if let Some(stopped) = stopped.readings.get_mut(reading.index) {
                        *stopped = true;
                    }
                }
            }
        }
        Ok(matching)
    }
}
