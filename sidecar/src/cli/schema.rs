//! `sluicegate schema`: the JSON Schema of the filter's configuration or of a policy, or the OpenAPI document of the sidecar.

use super::Failure;
use super::output::json;
use super::stdout::print;

/// Arguments of `schema`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sluicegate schema > sluicegate.schema.json")]
pub struct Schema {
    /// Print the JSON Schema of a policy instead.
    #[arg(long, conflicts_with = "openapi")]
    for_policy: bool,
    /// Print the OpenAPI document of the sidecar's two ports instead.
    #[arg(long)]
    openapi: bool,
}

impl Schema {
    pub fn run(self) -> Result<(), Failure> {
        let schema = if self.openapi {
            sluicegate::server::openapi::document()
        } else if self.for_policy {
            sluicegate::policy::policy_schema()
        } else {
            sluicegate_rules::config::schema::json_schema()
        };
        print(&json(&schema)?)
    }
}
