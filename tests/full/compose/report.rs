//! The printed report: one line per verified fact, with the time since the start.

use std::time::Instant;

use crate::hardening::Container;
use crate::traffic::Counts;

/// Prints lines during the test.
#[derive(Clone, Copy, Debug)]
pub struct Report(Instant);

impl Report {
    /// Starts the clock.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Prints a note.
    pub fn note(&self, what: &str) {
        println!("compose: {:>4} s  {what}", self.0.elapsed().as_secs());
    }

    /// Prints the table of containers.
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
        println!("  each: healthy, no capabilities, no new privileges, a read-only image\n");
    }

    /// Prints the heading of [`Report::answers`].
    pub fn answers_follow(&self) {
        println!(
            "\n  {:>4}  {:28} {:>5} {:>5} {:>5}   also verified",
            "at s", "answers to clients", 200, 429, 503
        );
    }

    /// Prints the counts of the answers, and what else confirms them.
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
