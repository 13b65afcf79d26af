//! `sluicegate schema`: the JSON Schema of a policy or of the filter's configuration, or the OpenAPI document of the sidecar.

use super::Failure;
use super::output::json;
use super::stdout::print;

/// Arguments of `schema`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate schema > policy.schema.json\n\nMore:\n  docs/policy.md"
)]
pub struct Schema {
    /// Print the JSON Schema of the filter's configuration instead.
    #[arg(long, conflicts_with = "openapi")]
    for_filter: bool,
    /// Print the OpenAPI document of the sidecar's two ports instead.
    #[arg(long)]
    openapi: bool,
}

impl Schema {
    pub fn run(self) -> Result<(), Failure> {
        let schema = if self.openapi {
            sluicegate::server::openapi::document()
        } else if self.for_filter {
            sluicegate_rules::config::schema::json_schema()
        } else {
            sluicegate::policy::policy_schema()
        };
        print(&json(&schema)?)
    }
}
