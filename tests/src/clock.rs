//! A clock that a test steps, for a Redis of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::repository;

/// A clock that differs from the machine's by what the test says. It ends with its folder.
#[derive(Debug)]
pub struct SteppedClock {
    library: PathBuf,
    file: PathBuf,
}

impl SteppedClock {
    /// Builds one, on time.
    ///
    /// # Panics
    /// There is no C compiler.
    pub fn build(folder: &Path) -> Self {
        let (library, file) = (folder.join("clock.so"), folder.join("clock"));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library);
        let status = cc.arg(repository("tests/src/clock.c")).status();
        assert!(status.is_ok_and(|status| status.success()), "a C compiler");
        let clock = Self { library, file };
        std::fs::write(&clock.file, 0_i64.to_ne_bytes()).expect("a file of the test's own");
        clock
    }

    /// What a process needs in its environment to have this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("SLUICEGATE_CLOCK", self.file.clone()),
        ]
    }

    /// Sets how far it is ahead of the machine's; negative: behind.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn set_ahead_us(&self, ahead_us: i64) {
        use std::os::unix::fs::FileExt;
        // In place, since Redis has mapped it.
        let file = std::fs::File::options().write(true).open(&self.file);
        let file = file.expect("a file of the test's own");
        file.write_all_at(&ahead_us.to_ne_bytes(), 0)
            .expect("eight bytes");
    }
}
