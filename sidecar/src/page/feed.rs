//! What viewers of the live page are told: a snapshot a second, made once for all of them. While nobody looks, the
//! counters are sampled now and then, for the chart of whoever comes next, and nothing else is done.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::snapshot::{Past, Snapshot};
use crate::clock;
use crate::decide::Service;
use crate::telemetry::events::Store;
use crate::telemetry::history::{History, Sample};

/// Viewers at once: a team's screens, and not a way to keep connections for nothing.
const MOST_VIEWERS: usize = 32;

/// Time from one snapshot to the next.
const EVERY: Duration = Duration::from_secs(1);

/// Of so many, one sample is taken while nobody looks.
const UNWATCHED: u32 = 5;

/// How often it is looked whether the store was lost or has come back.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Samples that are nearer to each other give no rate worth showing.
const LEAST_APART_MS: u64 = 900;

/// What there is to tell.
#[derive(Clone, Debug)]
enum Frame {
    Nothing,
    Snapshot(Arc<str>),
    /// The sidecar goes.
    End,
}

/// The viewers' common source.
#[derive(Debug)]
pub struct Feed {
    started_ms: u64,
    history: Mutex<History>,
    frames: watch::Sender<Frame>,
    places: Arc<Semaphore>,
    /// Somebody should hear of something before the second is over.
    hurry: Notify,
}

/// One viewer.
struct Viewer {
    frames: watch::Receiver<Frame>,
    /// What comes before all frames.
    past: Option<String>,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    /// One without viewers.
    pub fn new(started_ms: u64) -> Self {
        Self {
            started_ms,
            history: Mutex::default(),
            frames: watch::Sender::new(Frame::Nothing),
            places: Arc::new(Semaphore::new(MOST_VIEWERS)),
            hurry: Notify::new(),
        }
    }

    /// What one more viewer hears, until it leaves or the sidecar goes; nothing if there are too many.
    pub fn view(&self) -> Option<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let mut frames = self.frames.subscribe();
        // What was told while nobody looked is old; the sidecar's going is not.
        if matches!(*frames.borrow_and_update(), Frame::End) {
            return None;
        }
        let history = self.history();
        let past = Past::new(self.started_ms, history.series(), history.samples());
        let viewer = Viewer {
            frames,
            past: Some(json(&past)),
            _place: place,
        };
        self.hurry.notify_one();
        Some(stream::unfold(viewer, |mut viewer| async {
            let event = viewer.next().await?;
            Some((Ok(event), viewer))
        }))
    }

    /// Makes snapshots for whoever looks, for ever.
    pub async fn run(&self, service: &Service) {
        tokio::join!(self.beat(service), self.watch(service));
    }

    /// Tells all viewers that there will be no more.
    pub fn end(&self) {
        self.frames.send_replace(Frame::End);
    }

    fn is_watched(&self) -> bool {
        self.frames.receiver_count() > 0
    }

    async fn beat(&self, service: &Service) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unwatched = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.hurry.notified() => {}
            }
            if self.is_watched() {
                unwatched = 0;
                self.sample(service);
                self.tell(service);
            } else {
                if unwatched % UNWATCHED == 0 {
                    self.sample(service);
                }
                unwatched += 1;
            }
        }
    }

    fn sample(&self, service: &Service) {
        let (now_ms, mut history) = (clock::unix_ms(), self.history());
        let before = history.samples().next_back().map(|sample| sample.at_ms);
        // A clock that was set back would let none pass for a while.
        if before.is_some_and(|before| now_ms.abs_diff(before) < LEAST_APART_MS) {
            return;
        }
        let totals = service.metrics.totals();
        history.add(
            now_ms,
            totals.iter().map(|(name, counts)| (name.as_str(), *counts)),
        );
    }

    fn tell(&self, service: &Service) {
        let history = self.history();
        let none = Sample {
            at_ms: self.started_ms,
            counts: Vec::new(),
        };
        let snapshot = Snapshot::new(
            (clock::unix_ms(), self.started_ms),
            &service.live,
            service.store_name(),
            &service.incidents,
            history.series(),
            history.samples().next_back().unwrap_or(&none),
            service.metrics.top(),
        );
        self.frames
            .send_replace(Frame::Snapshot(json(&snapshot).into()));
    }

    /// Hurries when the store is lost or back. It asks nobody: whoever calls the store tells of it, and the service asks
    /// an idle one each second.
    async fn watch(&self, service: &Service) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lost = false;
        loop {
            looks.tick().await;
            let now_lost = matches!(service.incidents.store(), Store::Lost { .. });
            if now_lost != lost {
                lost = now_lost;
                self.hurry.notify_one();
            }
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Viewer {
    /// What it hears next; what came while it did not listen is passed over.
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

/// Strings and integers can always be written as JSON.
fn json(told: &impl Serialize) -> String {
    serde_json::to_string(told).unwrap_or_default()
}
