//! `sluicegate schema`: the JSON Schema of the filter's configuration.

use super::Failure;
use super::stdout::print;

pub fn run() -> Result<(), Failure> {
    let schema = sluicegate_rules::config::written::schema();
    let text = serde_json::to_string_pretty(&schema).map_err(Failure::system)?;
    print(&(text + "\n"))
}
