//! What the test prints: a line for each thing that was seen to be so, with the time since the beginning.

use std::time::Instant;

use crate::hardening::Container;
use crate::traffic::Counts;

/// Prints as it goes.
#[derive(Clone, Copy, Debug)]
pub struct Report(Instant);

impl Report {
    /// The clock starts.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Something was done.
    pub fn note(&self, what: &str) {
        println!("compose: {:>4} s  {what}", self.0.elapsed().as_secs());
    }

    /// Containers were looked at.
    pub fn containers(&self, containers: &[Container]) {
        println!("\n  service        user    memory   published on 127.0.0.1");
        for container in containers {
            let line = format!(
                "  {:12} {:>6} {:>5} MiB   {}",
                container.service,
                container.user,
                container.memory >> 20,
                container.ports.join(" "),
            );
            println!("{}", line.trim_end());
        }
        println!("  each: healthy, no capability, no new privileges, its image read only\n");
    }

    /// What the columns of [`Report::answers`] are.
    pub fn answers_follow(&self) {
        println!(
            "\n  {:>4}  {:28} {:>5} {:>5} {:>5}   seen besides",
            "at s", "clients were answered", 200, 429, 503
        );
    }

    /// Clients were answered, and others say the same.
    pub fn answers(&self, when: &str, counts: Counts, besides: &str) {
        println!(
            "  {:>4}  {when:28} {:>5} {:>5} {:>5}   {besides}",
            self.0.elapsed().as_secs(),
            counts.ok,
            counts.denied,
            counts.unavailable
        );
    }
}
