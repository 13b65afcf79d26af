//! `make bench-engine`: the engine's cost in Redis, compared with the scripts that articles teach.
//!
//! | module | for |
//! |---|---|
//! | `wire.rs` | the Redis protocol |
//! | `rig.rs` | a Redis with the scripts; interleaved measurements |
//! | `speed.rs` | decisions per second |
//! | `size.rs` | bytes in Redis, and time independent of the size |

mod rig;
mod size;
mod speed;
mod wire;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut rig = rig::Rig::start().await;
    let mut report = sluicegate_tests_full::report::Report::default();
    println!("speed (medians of interleaved rounds)");
    speed::counters(&mut rig, &mut report);
    speed::logs(&mut rig, &mut report);
    speed::weighted(&mut rig, &mut report);
    speed::batches(&mut rig, &mut report);
    println!("size");
    size::bytes(&mut rig, &mut report);
    size::time(&mut rig, &mut report);
    report.finish("engine");
}
