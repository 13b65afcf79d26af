//! Where the state is kept, as the policy and `--store` name it.

/// Where a store keeps its state.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum StoreAddress {
    /// In this process.
    #[default]
    Memory,
    /// In the Redis at this URL, which may hold a password and is therefore never shown.
    Redis(String),
    /// In the Redis Cluster that these URLs are nodes of; not shown either.
    Cluster(Vec<String>),
}

impl std::fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the URLs: they may hold passwords.
        f.write_str(match self {
            Self::Memory => "Memory",
            Self::Redis(_) => "Redis(..)",
            Self::Cluster(_) => "Cluster(..)",
        })
    }
}

impl std::str::FromStr for StoreAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SINGLE: [&str; 2] = ["redis://", "redis+unix://"];
        const CLUSTER: &str = "redis+cluster://";
        if text == "memory" {
            return Ok(Self::Memory);
        }
        if let Some(nodes) = text.strip_prefix(CLUSTER) {
            return Ok(Self::Cluster(
                nodes
                    .split(',')
                    .map(|node| format!("redis://{node}"))
                    .collect(),
            ));
        }
        if SINGLE.iter().any(|scheme| text.starts_with(scheme)) {
            return Ok(Self::Redis(text.to_owned()));
        }
        // The value is not shown: it may be a URL with a password and a typing error in its scheme.
        Err(
            "neither `memory` nor a URL: `redis://HOST:PORT`, `redis+unix:///PATH` or `redis+cluster://HOST:PORT,HOST:PORT`",
        )
    }
}
