//! Faults under load: the whole chain with one fault at a time, steady traffic, and an exact count of what was admitted.
//!
//! Clients record every decision as they see it, and `tests/history` checks the whole history against the promises: so each
//! fault is judged by the same questions. `make chaos` runs all faults and, with `SLUICEGATE_WRITE=1`, writes the table of
//! docs/faults.md; `make test-full` runs some of them, and `make test` one. `SLUICEGATE_CHAOS=words` runs those whose names contain the words.
//!
//! | module | for |
//! |---|---|
//! | `rules.rs` | the rules and limits of the traffic, for Envoy, the sidecar and the checker |
//! | `chain.rs` | Envoy, sidecar, proxy and Redis, each real |
//! | `load.rs` | the clients, and what they see |
//! | `fault.rs` | what is allowed while a fault lasts |
//! | `campaign.rs` | breaks one thing at a time under load and mends it |
//! | `judge.rs` | whether the promises were kept |
//! | `noticed.rs` | who was without a verdict, and whether the fault explains it |
//! | `stalls.rs` | when the machine itself stood still |
//! | `judged.rs` | runs that are wrong in one place, which the judge must find |
//! | `outcome.rs` | what came of it, in figures |
//! | `table.rs` | the table, printed and in docs/faults.md |
//! | `faults/` | the faults |
//! | `soak.rs`, `soak/` | half an hour at full load, without a fault but restarts and reloads: `make soak` |

mod campaign;
mod chain;
mod fault;
mod faults;
mod judge;
mod judged;
mod load;
mod noticed;
mod outcome;
mod rules;
mod soak;
mod stalls;
mod table;

use campaign::{Campaign, Form};

/// A Redis that is killed, and empty when it returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_fault_keeps_the_promises() {
    run(Form::One).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_faults_of_the_short_form_keep_the_promises() {
    run(Form::Short).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a quarter of an hour: make chaos"]
async fn all_faults_keep_the_promises() {
    run(Form::Whole).await;
}

async fn run(form: Form) {
    let mut campaign = Campaign::new(form);
    faults::redis::all(&mut campaign).await;
    faults::link::all(&mut campaign).await;
    faults::fleet::all(&mut campaign).await;
    faults::sidecar::all(&mut campaign).await;
    faults::envoy::all(&mut campaign).await;
    faults::versions::all(&mut campaign).await;
    campaign.finish();
}
