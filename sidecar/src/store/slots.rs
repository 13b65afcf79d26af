//! The slot of a key.

/// What Redis Cluster hashes of a key: what is between the braces.
pub fn tag(key: &str) -> &str {
    key.split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag)
}

/// Which keys one call of the script may have: what Redis decides atomically.
#[derive(Clone, Copy, Debug)]
pub enum Atomic {
    /// All keys of the store.
    Store,
    /// Those in one slot of a Cluster.
    Slot,
    /// One key, where a slot is open.
    Key,
}

impl Atomic {
    /// What keys have in common that may be in one call.
    pub fn group(self, key: &str) -> &str {
        match self {
            Self::Store => "",
            Self::Slot => tag(key),
            Self::Key => key,
        }
    }
}

/// Number of slots of a Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key.
pub fn slot(key: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag(key).as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_redis_computes() {
        // What `CLUSTER KEYSLOT` of Redis 7.0 answers.
        for (key, is) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("sg:{foo}:l:log:1ms", 12_182),
            ("", 0),
        ] {
            assert_eq!(slot(key), is, "{key}");
        }
    }
}
