//! `sluicegate estimate`: how much memory a policy needs in Redis.

use std::path::PathBuf;

use sluicegate::policy::Policy;
use sluicegate_engine::bucket_key;

use super::Failure;
use super::stdout::{line, print};

/// Arguments of `estimate`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sluicegate estimate --policy policy.yaml --keys 100000")]
pub struct Estimate {
    /// The policy (YAML).
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Number of subjects that are active at the same time: API keys, addresses or tenants.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    keys: u64,
    /// Length of a subject's key in bytes; the default is about the length of a hashed header.
    #[arg(long, value_name = "BYTES", default_value_t = 43)]
    key_bytes: usize,
    /// Share of its limit that each subject uses, with requests of cost 1.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=100), allow_negative_numbers = true)]
    used: u64,
}

impl Estimate {
    pub fn run(self) -> Result<(), Failure> {
        let policy = Policy::load(&self.policy).map_err(Failure::usage)?;
        let mut text =
            "limit                       bytes per key       bytes in Redis\n".to_owned();
        let mut sum = 0;
        for limit in policy.limits() {
            let bytes = limit.windows.iter().map(|spec| {
                let key = bucket_key(&"k".repeat(self.key_bytes), &limit.name, spec);
                let entries = (spec.most_entries() * self.used).div_ceil(100);
                spec.redis_bytes(key.len(), entries)
            });
            let bytes = bytes.sum::<u64>();
            let all = bytes.saturating_mul(self.keys);
            sum = all.saturating_add(sum);
            line!(text, "{:24} {bytes:>16} {all:>20}", limit.name);
        }
        line!(text, "{:24} {:>16} {sum:>20}", "total", "");
        line!(
            text,
            "\n{} subjects of {} bytes, each using {} % of every limit with requests of cost 1. A request that costs \
             more takes no more memory.",
            self.keys,
            self.key_bytes,
            self.used
        );
        print(&text)
    }
}
