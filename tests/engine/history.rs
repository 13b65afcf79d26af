//! Histories, generated.

use proptest::prelude::*;
use sluicegate_engine::{Algorithm, BucketSpec, Calendar, CalendarUnit};

pub use super::events::{Ask, Clock, History, Step};
use super::events::{WINDOWS_US, ZONES};
use super::made::{self, sliding};

/// Which algorithms a history mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    SlidingLog,
    SlidingWindow,
    /// Sliding windows of limits with leases.
    LeasedWindow,
    FixedWindow,
    CalendarWindow,
    TokenBucket,
    Mixed,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::SlidingLog,
        Self::SlidingWindow,
        Self::LeasedWindow,
        Self::FixedWindow,
        Self::CalendarWindow,
        Self::TokenBucket,
        Self::Mixed,
    ];
}

fn spec(kind: Kind) -> BoxedStrategy<BucketSpec> {
    let algorithm = match kind {
        Kind::SlidingLog => Just(Algorithm::SlidingLog).boxed(),
        Kind::SlidingWindow | Kind::LeasedWindow => prop_oneof![
            (1_000_000u64..15_000_000),
            (1u64..1_000),
            Just(WINDOWS_US.start)
        ]
        .prop_map(move |precision_us| sliding(precision_us, kind == Kind::LeasedWindow))
        .boxed(),
        Kind::FixedWindow => Just(Algorithm::FixedWindow).boxed(),
        Kind::TokenBucket => burst()
            .prop_map(|burst| Algorithm::TokenBucket { burst })
            .boxed(),
        Kind::CalendarWindow => return calendar_spec().boxed(),
        Kind::Mixed => {
            // All but itself, which is the last.
            let kinds = prop::sample::select(&Kind::ALL[..6]);
            return kinds.prop_flat_map(spec).boxed();
        }
    };
    let window = prop_oneof![WINDOWS_US, (20u64..40).prop_map(|s| s * 1_000_000)];
    (algorithm, limit(), window)
        .prop_map(|(algorithm, quota, window_us)| made::spec(algorithm, quota, window_us))
        .boxed()
}

fn calendar_spec() -> impl Strategy<Value = BucketSpec> {
    let unit = prop::sample::select(&CalendarUnit::ALL[..]);
    (limit(), unit, prop::sample::select(&ZONES[..])).prop_map(|(quota, unit, zone)| {
        let calendar = Calendar::new(unit, zone).expect("a zone");
        let algorithm = Algorithm::CalendarWindow(calendar);
        made::spec(algorithm, quota, calendar.longest_us())
    })
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1u64..12, 2 => 12u64..200, 1 => Just(2_000_000_000)]
}

fn burst() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..30, 1u64..3_000]
}

fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0u64), 6 => 1u64..4, 2 => 4u64..60, 1 => Just(1_000_000_000)]
}

fn clock() -> impl Strategy<Value = Clock> {
    prop_oneof![
        3 => prop_oneof![0u64..3, 0u64..1_000_000].prop_map(Clock::ForwardUs),
        3 => (0usize..4, 0u64..60).prop_map(|(bucket, percent)| Clock::Windows { bucket, percent }),
        1 => (0usize..4, 60u64..250).prop_map(|(bucket, percent)| Clock::Windows { bucket, percent }),
        3 => Just(Clock::Promised),
        2 => Just(Clock::JustBeforePromised),
        1 => (0usize..4, 0u64..250).prop_map(|(bucket, percent)| Clock::BackWindows { bucket, percent }),
        1 => prop_oneof![0u64..3, 0u64..1_000_000].prop_map(Clock::BackUs),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let takes = prop::collection::vec((0usize..4, cost()), 1..4);
    let ask = (takes, prop::bool::weighted(0.15), any::<bool>());
    ask.prop_map(|(takes, peek, receipts)| Ask {
        takes,
        peek,
        receipts,
    })
}

fn write_back() -> impl Strategy<Value = Step> {
    let ago = prop_oneof![8 => 0i64..130, 1 => -30i64..0, 3 => Just(0i64)];
    let taken = prop::collection::vec((ago, cost()), 0..6);
    (0usize..4, taken).prop_map(|(bucket, taken)| Step::WriteBack { bucket, taken })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec(ask(), 1..5).prop_map(Step::Ask),
        3 => (0usize..4, 1u8..25, 0u64..1_000_000, 1u64..4, any::<bool>())
            .prop_map(|(bucket, times, pause_us, cost, receipts)| Step::Run { bucket, times, pause_us, cost, receipts }),
        6 => clock().prop_map(Step::Clock),
        3 => (0usize..40, cost()).prop_map(|(ago, cost)| Step::GiveBack { ago, cost }),
        2 => write_back(),
        1 => (0usize..4).prop_map(Step::Reset),
        1 => (0usize..4, limit()).prop_map(|(bucket, limit)| Step::Relimit { bucket, limit }),
        1 => (0usize..4, burst()).prop_map(|(bucket, burst)| Step::Reburst { bucket, burst }),
    ]
}

/// Any history over buckets of that kind.
pub fn histories(kind: Kind) -> impl Strategy<Value = History> {
    let block = prop_oneof![Just(2usize), Just(3), Just(18)];
    let world = prop::collection::vec(spec(kind), 1..4);
    (world, block, prop::collection::vec(step(), 1..80)).prop_map(|(world, block, steps)| History {
        world,
        block,
        steps,
    })
}
