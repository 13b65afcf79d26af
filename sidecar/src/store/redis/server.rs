//! What INFO tells of the server that a connection leads to. Pure.

/// A server, as far as the user may ask.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Identifies its process.
    pub run_id: Option<String>,
    /// The policy by which it evicts keys, if it does.
    pub evicts_by: Option<String>,
    /// How many keys it has evicted.
    pub evicted: u64,
}

impl Server {
    /// Reads an answer to INFO.
    pub fn read(info: &str) -> Self {
        let policy = field(info, "maxmemory_policy").filter(|policy| *policy != "noeviction");
        let evicts_by = policy.filter(|_| field(info, "maxmemory") != Some("0"));
        let evicted = field(info, "evicted_keys").and_then(|keys| keys.parse().ok());
        Self {
            run_id: field(info, "run_id").map(str::to_owned),
            evicts_by: evicts_by.map(str::to_owned),
            evicted: evicted.unwrap_or(0),
        }
    }

    /// Whether both are known, and are not the same.
    pub fn is_other_than(&self, other: &Self) -> bool {
        matches!((&self.run_id, &other.run_id), (Some(one), Some(other)) if one != other)
    }
}

/// A field of INFO.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
