//! The table of the sidecar's metrics: type, name, labels, buckets and help of each. `docs/metrics.md` says what they mean
//! and when to look at them; a test compares the two.

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry,
};

/// Seconds: from well under a local round trip to past the longest sensible deadline.
const SECONDS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0,
];
/// Decisions in one call of the store, up to the largest batch of counters that an ordinary request makes.
const BATCH_DECISIONS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// Shares of a limit: finer where it is about to bind.
const USED_RATIO: [f64; 8] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];
/// How long a slot is in use, in seconds: from a quick request to a job of an hour.
const HOLDING_SECONDS: [f64; 13] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0,
];

/// Declares [`Families`], which has a field for each row, and the function that registers them all. A row: the field and its
/// type, the metric's name, `by` the names of its labels, `in` the buckets of a histogram, its help.
macro_rules! families {
    ($($field:ident: $family:ident = $name:literal $(by $labels:tt)? $(in $buckets:ident)?, $help:literal;)+) => {
        /// All metrics but those of the process.
        #[derive(Debug)]
        pub struct Families {
            $(#[doc = $help] pub $field: $family,)+
        }

        impl Families {
            /// Makes and registers all of them.
            pub fn register(registry: &Registry) -> prometheus::Result<Self> {
                $(
                    let options = Opts::new($name, $help);
                    $(let options = HistogramOpts::from(options).buckets($buckets.to_vec());)?
                    let $field = families!(@new $family options $($labels)?);
                    registry.register(Box::new($field.clone()))?;
                )+
                Ok(Self { $($field,)+ })
            }
        }
    };
    (@new $family:ident $options:ident) => { $family::with_opts($options)? };
    (@new $family:ident $options:ident $labels:tt) => { $family::new($options, &$labels)? };
}

families! {
    decisions: IntCounterVec = "sluicegate_decisions_total" by ["limit", "verdict", "source"],
        "Decisions by limit, verdict and source of the verdict.";
    shadow_decisions: IntCounterVec = "sluicegate_shadow_decisions_total" by ["rule", "limit", "verdict"],
        "Shadow decisions (evaluated, not enforced) by rule, limit and verdict.";
    used: HistogramVec = "sluicegate_limit_used_ratio" by ["limit"] in USED_RATIO,
        "Share of its quota that a subject had used after a decision of the store; above 1 if it was over.";
    quota: GaugeVec = "sluicegate_limit_quota" by ["limit", "window"],
        "Units that one subject may take in a window of the limit, by the policy in force.";
    window_seconds: GaugeVec = "sluicegate_limit_window_seconds" by ["limit", "window"],
        "Length of a window of the limit; for a calendar window, of the current one.";
    burst: GaugeVec = "sluicegate_limit_burst" by ["limit", "window"],
        "Units that a full token bucket of the limit holds.";
    refused_quotas: IntCounterVec = "sluicegate_quota_requests_refused_total" by ["limit"],
        "Quotas that requests asked for and the limit does not accept; its own quota counted instead.";
    settles: IntCounterVec = "sluicegate_settles_total" by ["limit", "outcome"],
        "Receipts that were settled: `returned` and `charged`, and `unknown` ones, of which the reserve stays taken.";
    settled_units: IntCounterVec = "sluicegate_settled_units_total" by ["limit", "outcome"],
        "Units that settles said were `used`, `returned` to the limit, or `charged` beyond what was taken.";
    top_denied_ratio: GaugeVec = "sluicegate_top_denied_ratio" by ["limit"],
        "Lower bound of the share of a limit's recent denials that went to the most denied subject, 0 to 1.";
    decision_seconds: HistogramVec = "sluicegate_decision_duration_seconds" by ["source"] in SECONDS,
        "Time to decide a request, including the wait in the queue, by what decided: the store, a share in its place, or neither.";
    queue_seconds: Histogram = "sluicegate_queue_wait_seconds" in SECONDS,
        "Time that decisions waited in the queue for the running store call to finish.";
    store_seconds: Histogram = "sluicegate_store_duration_seconds" in SECONDS,
        "Time of one call to the store; each call carries one batch.";
    batch_decisions: Histogram = "sluicegate_store_batch_decisions" in BATCH_DECISIONS,
        "Decisions sent to the store in one call.";
    store_errors: IntCounterVec = "sluicegate_store_errors_total" by ["kind"],
        "Calls to the store that failed, losses of the store, and callers whose decisions did not reach it in time, by kind.";
    store_up: IntGauge = "sluicegate_store_up",
        "1 while every part of the store can be used, else 0.";
    store_timeout: Gauge = "sluicegate_store_timeout_seconds",
        "`store_timeout` of the policy: how long a call to the store may take.";
    certificates: Gauge = "sluicegate_certificates",
        "Cached denials, which are answered without a call to the store.";
    neighbours: GaugeVec = "sluicegate_neighbours" by ["other"],
        "Others on this Redis: other limits under this `key_prefix`, and other key prefixes.";
    round_trip: Gauge = "sluicegate_store_round_trip_seconds",
        "How long the last announcement to the store took.";
    server_changes: IntCounter = "sluicegate_store_server_changes_total",
        "Times that another server was found where one was before, such as a new primary.";
    evicting: Gauge = "sluicegate_store_evicting",
        "Redis servers in use that evict keys when their memory is full, and with them what was admitted.";
    evicted_keys: IntCounter = "sluicegate_store_evicted_keys_total",
        "Keys that Redis evicted, of anybody, since this sidecar has known it.";
    store_clock_ahead: Gauge = "sluicegate_store_clock_ahead_seconds",
        "How far the store's clock is ahead of this host's, less up to a round trip.";
    connections_made: IntCounterVec = "sluicegate_store_connections_total" by ["cause"],
        "Connections to Redis that were made, by why.";
    sidecars: Gauge = "sluicegate_sidecars",
        "Sidecars that divide the limits among them while the store is down; 0 before the first announcement.";
    unwritten: Gauge = "sluicegate_unwritten_buckets",
        "Buckets whose units were admitted without the store and have not been written back yet.";
    overrides: GaugeVec = "sluicegate_overrides" by ["allowance"],
        "Overrides in force, by what they allow, and those that do not fit the policy.";
    overrides_lost: IntCounter = "sluicegate_overrides_lost_total",
        "Overrides that this sidecar knew and the store had lost, or had again after their removal.";
    lease_units: IntCounterVec = "sluicegate_lease_units_total" by ["limit", "event"],
        "Units of leases that the store granted, that were spent, and that were returned.";
    lease_held: GaugeVec = "sluicegate_lease_units_held" by ["limit"],
        "Units of leases that are neither spent nor returned yet.";
    lease_refusals: IntCounterVec = "sluicegate_lease_refusals_total" by ["limit", "reason"],
        "Times that a key got no lease, by reason.";
    slots: IntCounterVec = "sluicegate_slots_total" by ["limit", "event"],
        "Slots that were granted and freed, that had expired before anybody freed them, and that a renewal revived.";
    slots_in_use: GaugeVec = "sluicegate_slots_in_use" by ["limit"],
        "Slots in use that this sidecar granted or renewed last.";
    slot_seconds: HistogramVec = "sluicegate_slot_holding_seconds" by ["limit"] in HOLDING_SECONDS,
        "How long slots were in use that were freed.";
    slot_waits: IntCounterVec = "sluicegate_slot_waits_total" by ["limit", "verdict"],
        "Decisions that waited for a slot, by their verdict.";
    filter_info: GaugeVec = "sluicegate_filter_info" by ["version", "configuration"],
        "Always 1; filters that announced themselves in the last minute, by version and configuration.";
    filter_rules: GaugeVec = "sluicegate_filter_rules" by ["state"],
        "Filters that were heard of in the last minute, by whether they have the rules of the policy.";
    other_pepper: Gauge = "sluicegate_filters_with_other_pepper",
        "Filters that asked for rules in the last minute and have another pepper than the policy's consumers.";
    held_back: Gauge = "sluicegate_filters_held_back",
        "Filters that have newer rules ready and keep earlier ones for the sake of this sidecar, whose policy has those.";
    kept: Gauge = "sluicegate_kept_ratio",
        "Share of the room for limits that the policy does not have any more and filters may still ask for, 0 to 1.";
    unkept: IntGauge = "sluicegate_policy_unkept",
        "1 while the policy in force could not be written to the state directory, else 0.";
    rules: GaugeVec = "sluicegate_rules_info" by ["digest", "source", "sidecar"],
        "Always 1; the digest of the policy's rules, whether the policy is from its file or the last good one, and this process's number.";
    epoch: Gauge = "sluicegate_policy_epoch",
        "Number of the policy in force; starts at 1 and grows with each reload.";
    reloads: IntCounterVec = "sluicegate_policy_reloads_total" by ["outcome"],
        "Policy reloads by outcome.";
    reload_successful: Gauge = "sluicegate_policy_last_reload_successful",
        "1 if the policy file's current content is in force, 0 if it was refused.";
    reload_time: Gauge = "sluicegate_policy_last_reload_success_timestamp_seconds",
        "When the policy in force was loaded, seconds since 1970.";
    build: GaugeVec = "sluicegate_build_info" by ["version", "commit"],
        "Always 1; the version and the commit are labels.";
    unknown_limits: Gauge = "sluicegate_unknown_limits",
        "Limits that requests asked for in the last minute and the policy does not have.";
    tasks: Gauge = "sluicegate_tasks",
        "Tasks under way: about one for each connection, and a few of its own.";
}
