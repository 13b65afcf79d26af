//! Feeds the viewers of the live page: one snapshot per second, made once for all viewers. Without viewers it only
//! samples the counters at a lower rate, so that the next viewer finds a chart.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::response::sse::Event;
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::snapshot::{Past, Snapshot, StoreView};
use crate::clock;
use crate::decide::Service;
use crate::telemetry::events::StoreState;
use crate::telemetry::history::History;

/// Viewers at once: enough for a team, and a bound on idle connections.
const MAX_VIEWERS: usize = 32;

/// Time from one snapshot to the next.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// Without viewers, one sample is taken per this many ticks.
const IDLE_TICKS_PER_SAMPLE: u32 = 5;

/// How often the store's state is checked for a change.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Samples closer together than this give no meaningful rate.
const MIN_SAMPLE_INTERVAL_MS: u64 = 900;

/// What viewers receive.
#[derive(Clone, Debug)]
enum Frame {
    Nothing,
    Snapshot(Arc<str>),
    /// The sidecar is shutting down.
    End,
}

/// The source of all viewers' streams.
#[derive(Debug)]
pub struct Feed {
    started_ms: u64,
    started: Instant,
    history: Mutex<History>,
    frames: watch::Sender<Frame>,
    permits: Arc<Semaphore>,
    /// Asks for a snapshot before the next tick.
    wake: Notify,
}

/// One viewer.
struct Viewer {
    frames: watch::Receiver<Frame>,
    /// Sent before the first frame.
    past: Option<String>,
    _permit: OwnedSemaphorePermit,
}

impl Feed {
    /// A feed without viewers.
    pub fn new(started_ms: u64) -> Self {
        Self {
            started_ms,
            started: Instant::now(),
            history: Mutex::default(),
            frames: watch::Sender::new(Frame::Nothing),
            permits: Arc::new(Semaphore::new(MAX_VIEWERS)),
            wake: Notify::new(),
        }
    }

    /// The stream of one more viewer, until it leaves or the sidecar shuts down. `None` if there are too many viewers.
    pub fn subscribe(&self) -> Option<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let mut frames = self.frames.subscribe();
        // An old snapshot is skipped, but not the end.
        if matches!(*frames.borrow_and_update(), Frame::End) {
            return None;
        }
        let history = self.history();
        let past = Past::new(self.started_ms, &history);
        let viewer = Viewer {
            frames,
            past: Some(json(&past)),
            _permit: permit,
        };
        self.wake.notify_one();
        Some(stream::unfold(viewer, |mut viewer| async {
            let event = viewer.next().await?;
            Some((Ok(event), viewer))
        }))
    }

    /// Samples the counters and publishes snapshots for ever.
    pub async fn run(&self, service: &Service) {
        tokio::join!(self.sample_and_publish(service), self.watch_store(service));
    }

    /// Ends the streams of all viewers.
    pub fn end(&self) {
        self.frames.send_replace(Frame::End);
    }

    fn is_watched(&self) -> bool {
        self.frames.receiver_count() > 0
    }

    async fn sample_and_publish(&self, service: &Service) {
        let mut ticks = interval(SNAPSHOT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unwatched = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.wake.notified() => {}
            }
            if self.is_watched() {
                unwatched = 0;
                self.sample(service);
                self.publish(service);
            } else {
                if unwatched % IDLE_TICKS_PER_SAMPLE == 0 {
                    self.sample(service);
                }
                unwatched += 1;
            }
        }
    }

    fn sample(&self, service: &Service) {
        let (now_ms, mut history) = (clock::unix_ms(), self.history());
        service.events.cap_times(now_ms);
        let before = history.samples().next_back().map(|sample| sample.at_ms);
        // `abs_diff`: after the clock was set back, sampling must go on.
        if before.is_some_and(|before| now_ms.abs_diff(before) < MIN_SAMPLE_INTERVAL_MS) {
            return;
        }
        let totals = service.metrics.totals();
        history.add(
            now_ms,
            totals.iter().map(|(name, counts)| (name.as_str(), *counts)),
            service.metrics.store_failures(),
        );
    }

    fn publish(&self, service: &Service) {
        let history = self.history();
        let state = service.events.store();
        let up_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let snapshot = Snapshot::new(
            (clock::unix_ms(), self.started_ms, up_ms),
            (&service.policy, service.metrics.unknown_limits()),
            StoreView::new(service.store_name(), service.sidecars(), state),
            service.lease_totals(),
            &service.events,
            &history,
            service.metrics.top(),
        );
        self.frames
            .send_replace(Frame::Snapshot(json(&snapshot).into()));
    }

    /// Asks for a snapshot when the store's state changes. It does not call the store: every call reports its result,
    /// and the service pings an idle store once a second.
    async fn watch_store(&self, service: &Service) {
        let mut ticks = interval(STORE_POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lost = false;
        loop {
            ticks.tick().await;
            let now_lost = matches!(service.events.store(), StoreState::Lost { .. });
            if now_lost != lost {
                lost = now_lost;
                self.wake.notify_one();
            }
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Viewer {
    /// The next event. Frames that came while the viewer was busy are skipped.
    async fn next(&mut self) -> Option<Event> {
        if let Some(past) = self.past.take() {
            return Some(Event::default().event("past").data(past));
        }
        loop {
            self.frames.changed().await.ok()?;
            let frame = self.frames.borrow_and_update().clone();
            match frame {
                Frame::Nothing => {}
                Frame::Snapshot(text) => {
                    return Some(Event::default().event("snapshot").data(text));
                }
                Frame::End => return None,
            }
        }
    }
}

/// Snapshots serialize without an error: they hold only strings, numbers and lists.
fn json(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::decide::PolicyHandle;
    use crate::policy::StoreAddress;
    use crate::store::Store;
    use crate::telemetry::metrics::Metrics;

    const HOUR_MS: u64 = 3_600_000;

    fn service() -> Service {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        let policy = "limits: { a: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }";
        std::fs::write(&path, policy).unwrap();
        let metrics = Metrics::new().unwrap();
        let handle = PolicyHandle::load(&path, &metrics).unwrap();
        let store = Store::open(&StoreAddress::Memory, Duration::from_secs(1));
        Service::new(handle, store, metrics)
    }

    #[tokio::test]
    async fn a_snapshot_after_a_step_back_of_the_clock_has_no_event_of_the_future() {
        let service = service();
        let before_the_step = clock::unix_ms() + HOUR_MS;
        let feed = Feed::new(before_the_step);
        service
            .events
            .policy_loaded(before_the_step, "epoch 2".to_owned());
        feed.sample(&service);
        // Another one between two samples.
        service
            .events
            .policy_loaded(before_the_step, "epoch 3".to_owned());
        feed.sample(&service);
        // What passes is what `up_ms` tells.
        tokio::time::sleep(Duration::from_millis(50)).await;
        feed.publish(&service);
        let Frame::Snapshot(text) = feed.frames.borrow().clone() else {
            panic!("no snapshot");
        };
        let snapshot: Value = serde_json::from_str(&text).unwrap();
        let now_ms = snapshot["now_ms"].as_u64().unwrap();
        let events = snapshot["events"].as_array().unwrap();
        assert_eq!(events.len(), 3);
        for event in events {
            assert!(event["at_ms"].as_u64().unwrap() <= now_ms, "{event}");
        }
        let since_ms = snapshot["policy"]["since_ms"].as_u64().unwrap();
        assert!(since_ms <= now_ms);
        // How long the sidecar has run is not read from that clock.
        let up_ms = snapshot["up_ms"].as_u64().unwrap();
        assert!((50..HOUR_MS / 2).contains(&up_ms), "{up_ms}");
    }
}
