//! `sluicegate schema`: the JSON Schema of the filter's configuration.

use super::Failure;

pub fn run() -> Result<(), Failure> {
    let schema = sluicegate_rules::config::written::schema();
    println!(
        "{}",
        serde_json::to_string_pretty(&schema).map_err(Failure::system)?
    );
    Ok(())
}
