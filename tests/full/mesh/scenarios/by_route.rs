//! A route chooses the rules by which its requests are limited, as docs/install says; the others have the default.

use std::time::Instant;

use sluicegate_tests::process::eventually_within;

use super::{BURST, RECOVERS, exact_burst};
use crate::mesh::{Mesh, PARTNERS_QUOTA};
use crate::report::Report;
use crate::traffic::{Counts, PARTNERS, new_key};

pub async fn run(mesh: &Mesh, report: &mut Report) {
    let started = Instant::now();
    let partners = Counts::exact(BURST, PARTNERS_QUOTA);
    let burst = async || mesh.clients.burst(PARTNERS, &new_key(), BURST).await;
    // Each proxy learns of its routes on its own.
    let chosen = async || burst().await == partners;
    eventually_within(RECOVERS, "both proxies choose by route", chosen).await;
    let took = started.elapsed();
    let mut counts = exact_burst(mesh).await;
    counts += partners;
    let note = format!(
        "{PARTNERS}: exactly {PARTNERS_QUOTA} by the set `partners`; elsewhere exactly {} by the default",
        mesh.quota
    );
    report.row(mesh, "rules chosen by route", counts, took, &note);
}
