//! The slot of a key.

/// What Redis Cluster hashes of a key: what is between the braces.
pub fn tag(key: &str) -> &str {
    key.split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag)
}

/// Slots of a Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key.
pub fn slot(key: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag(key).as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_what_the_redis_client_thinks_it_is() {
        for key in ["sg:{alice}:l:log:1ms", "sg:{%}:l", "untagged"] {
            let theirs = redis::cluster_routing::Slot::for_key(key);
            assert_eq!(Some(theirs), redis::cluster_routing::Slot::new(slot(key)));
        }
    }
}
