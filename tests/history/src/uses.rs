//! What was taken from one bucket: sums of units by time.

/// Units that were taken, or may have been.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// Its number in the log.
    pub entry: usize,
    pub from: u64,
    pub to: u64,
    /// At most.
    pub units: u64,
    pub least: u64,
    pub certain: bool,
    /// What a settle has charged: no limit holds it back.
    pub charged: bool,
    /// A share may have decided.
    pub by_share: bool,
    /// What a request's own quota is.
    pub quota: Option<u64>,
}

/// Uses in order of their end, with running totals.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub each: Vec<Use>,
    /// What has certainly come back: when it was settled at the latest, when it had been taken at the latest, and how much.
    pub returned: Vec<(u64, u64, u64)>,
    /// For how long a denial may be given although something has come back.
    pub denied_still: u64,
    /// By the earliest instant, with the total up to and including each.
    by_from: Vec<(u64, u64)>,
    /// The same by the latest.
    by_to: Vec<(u64, u64)>,
}

impl Uses {
    pub(crate) fn of(mut each: Vec<Use>, mut returned: Vec<(u64, u64, u64)>) -> Self {
        returned.sort_unstable();
        each.sort_by_key(|one| one.to);
        let totals = |time: fn(&Use) -> u64| {
            let mut times: Vec<_> = each.iter().map(|one| (time(one), one.units)).collect();
            times.sort_unstable();
            let mut total = 0;
            for (_, units) in &mut times {
                total += *units;
                *units = total;
            }
            times
        };
        let (by_from, by_to) = (totals(|one| one.from), totals(|one| one.to));
        Self {
            each,
            returned,
            denied_still: 0,
            by_from,
            by_to,
        }
    }

    /// The most units that can have been taken from `gone` until `until`, less what had come back before `back`.
    pub(crate) fn at_most(&self, gone: u64, until: u64, back: u64) -> u64 {
        let taken = if gone <= until {
            // What is gone had begun.
            before(&self.by_from, until + 1) - before(&self.by_to, gone)
        } else {
            let counts = |one: &&Use| one.from <= until && one.to >= gone;
            self.each.iter().filter(counts).map(|one| one.units).sum()
        };
        let first = self.returned.partition_point(|one| one.0 < gone);
        let returned = self.returned[first..].iter();
        let returned = returned.take_while(|one| one.0 < back);
        let returned = returned.filter(|one| one.1 >= gone).map(|one| one.2);
        taken.saturating_sub(returned.sum())
    }

    /// What was certainly taken after `since` and before `until`.
    pub(crate) fn certain(&self, since: u64, until: u64) -> impl Iterator<Item = &Use> {
        let first = self.each.partition_point(|one| one.to <= since);
        let rest = self.each[first..].iter();
        let rest = rest.take_while(move |one| one.to < until);
        rest.filter(move |one| one.certain && one.from > since)
    }
}

/// The total of what is earlier than `time`.
fn before(totals: &[(u64, u64)], time: u64) -> u64 {
    let count = totals.partition_point(|(at, _)| *at < time);
    totals[..count].last().map_or(0, |(_, total)| *total)
}
