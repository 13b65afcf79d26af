//! Sidecar and filter of this commit, and of the earlier one that `tests/full/upgrade/build-earlier` has built.

use std::path::PathBuf;

use crate::process::repository;
use crate::sidecar::binary;

/// A version of the sidecar or the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// That of the commit in `SLUICEGATE_EARLIER`.
    Earlier,
    /// That of this working tree.
    This,
}

impl Version {
    /// Path of its sidecar.
    ///
    /// # Panics
    /// The earlier one is not built.
    pub fn sidecar(self) -> PathBuf {
        match self {
            Self::Earlier => earlier("sluicegate"),
            Self::This => binary(),
        }
    }

    /// Path of its filter.
    ///
    /// # Panics
    /// The earlier one is not built.
    pub fn filter(self) -> PathBuf {
        match self {
            Self::Earlier => earlier("sluicegate.wasm"),
            Self::This => repository("target/filter/sluicegate.wasm"),
        }
    }
}

fn earlier(file: &str) -> PathBuf {
    let commit = std::env::var("SLUICEGATE_EARLIER")
        .expect("SLUICEGATE_EARLIER: run `make upgrade` or `make chaos`, which set it");
    let path = repository("target/earlier").join(commit).join(file);
    assert!(
        path.exists(),
        "no {}: run `make upgrade` or `make chaos`, which build it",
        path.display()
    );
    path
}
