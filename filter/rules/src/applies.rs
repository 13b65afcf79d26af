//! In which readings of its target a rule applies to a request, and what its key's parts are there.

use crate::found::Found;
use crate::matcher::{Holds, TooLong};
use crate::part::Part;
use crate::rule::Rule;
use crate::seen::{Reading, Seen};
use crate::template::Capture;

/// The readings of the target in which a rule applies to a request, each with the variables that its template names.
/// The first stands apart: a plain path has no other, and then nothing is allocated.
#[derive(Default)]
pub(crate) struct Applies<'s, 'r> {
    pub first: Option<(Reading<'s, 'r>, Vec<Capture<'s>>)>,
    others: Vec<(Reading<'s, 'r>, Vec<Capture<'s>>)>,
}

impl<'s, 'r> Applies<'s, 'r> {
    /// What a part is. Where readings disagree, only the upstream knows whom the request is about, and a client could
    /// choose: `/v1/tenant/..%2Fx1`, `..%2Fx2`, and so on.
    pub fn find<'a>(&'a self, part: &'a Part, seen: &'a Seen<'_>) -> Found<'a> {
        let Some((reading, captures)) = &self.first else {
            return Found::Missing;
        };
        let found = part.find(seen, *reading, captures);
        let differs = |(reading, captures): &'a (Reading<'s, 'r>, Vec<Capture<'s>>)| {
            part.find(seen, *reading, captures) != found
        };
        if part.varies() && self.others.iter().any(differs) {
            return Found::Ambiguous;
        }
        found
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Reading<'s, 'r>, Vec<Capture<'s>>)> {
        self.first.iter().chain(&self.others)
    }
}

/// Where a rule with `stop` has matched.
#[derive(Default)]
pub(crate) struct Stopped {
    /// In every reading, so that no further rule is looked at.
    pub everywhere: bool,
    /// In these, by their places; none when there is one reading.
    readings: Vec<bool>,
}

impl Rule {
    /// The readings in which the rule applies. If it has `stop`, rules after it are stopped there.
    pub fn applies<'s, 'r>(
        &'s self,
        seen: &'s Seen<'r>,
        stopped: &mut Stopped,
    ) -> Result<Applies<'s, 'r>, TooLong> {
        let mut applies = Applies::default();
        let mut left = false;
        for reading in seen.readings() {
            if stopped.readings.get(reading.place) == Some(&true) {
                continue;
            }
            let mut captures = Vec::new();
            match self.matcher.matches(reading, &mut captures) {
                Holds::Yes if applies.first.is_none() => applies.first = Some((reading, captures)),
                Holds::Yes => applies.others.push((reading, captures)),
                Holds::No => left = true,
                Holds::Unknown(too_long) => return Err(too_long),
            }
        }
        if self.stop && applies.first.is_some() {
            stopped.everywhere = !left;
            if left {
                for (reading, _) in applies.iter() {
                    let place = reading.place;
                    if stopped.readings.len() <= place {
                        stopped.readings.resize(place + 1, false);
                    }
                    if let Some(stopped) = stopped.readings.get_mut(place) {
                        *stopped = true;
                    }
                }
            }
        }
        Ok(applies)
    }
}
