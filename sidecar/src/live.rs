//! The policy in force, and its replacement while requests are served.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use notify::{RecursiveMode, Watcher};
use tokio::sync::Notify;
use tracing::{error, info};

use crate::metrics::{Meters, Metrics};
use crate::policy::{Policy, PolicyError};

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
    path: PathBuf,
    /// Of the newest attempt: the text read, and what is wrong with it. Also lets only one attempt run at a time.
    newest: Mutex<(String, Option<String>)>,
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
        let text = Policy::read(path)?;
        let policy = Policy::parse(&text).map_err(|message| PolicyError::invalid(path, message))?;
        let epoch = Epoch {
            number: 1,
            meters: metrics.policy_loaded(1, &policy),
            policy,
        };
        Ok(Self {
            current: ArcSwap::from_pointee(epoch),
            path: path.to_owned(),
            newest: Mutex::new((text, None)),
        })
    }

    /// What is in force now.
    pub fn current(&self) -> Arc<Epoch> {
        self.current.load_full()
    }

    /// What is wrong with the file as it stands now, if it could not be loaded.
    pub fn refusal(&self) -> Option<String> {
        self.newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .clone()
    }

    /// Reads the file again, and puts its policy in force if it is a new and a good one.
    pub fn reload(&self, metrics: &Metrics) -> Reload {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let tried = Policy::read(&self.path).and_then(|text| {
            if text == newest.0 {
                return Ok(None);
            }
            newest.0.clone_from(&text);
            let policy = Policy::parse(&text)
                .and_then(|policy| self.current.load().policy.may_become(policy));
            policy
                .map(Some)
                .map_err(|message| PolicyError::invalid(&self.path, message))
        });
        match tried {
            Ok(None) => Reload::Unchanged,
            Ok(Some(policy)) => {
                let number = self.current.load().number + 1;
                let meters = metrics.policy_loaded(number, &policy);
                self.current.store(Arc::new(Epoch {
                    number,
                    policy,
                    meters,
                }));
                newest.1 = None;
                info!(epoch = number, "policy reloaded");
                Reload::Loaded
            }
            Err(why) => {
                error!("{why}; the policy before stays in force");
                newest.1 = Some(why.to_string());
                metrics.policy_refused();
                Reload::Refused
            }
        }
    }

    /// Calls `changed` whenever something happens in the file's folder, for as long as what is returned lives.
    ///
    /// The folder and not the file: editors replace files, and Kubernetes swaps a link beside it.
    ///
    /// # Errors
    /// The system does not watch it.
    pub fn watch(&self, changed: Arc<Notify>) -> notify::Result<impl Watcher + use<>> {
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // Reading the file is an event too, and would go round for ever.
                if event.is_ok_and(|event| !event.kind.is_access()) {
                    changed.notify_one();
                }
            })?;
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        watcher.watch(
            folder.unwrap_or(Path::new(".")),
            RecursiveMode::NonRecursive,
        )?;
        Ok(watcher)
    }
}
