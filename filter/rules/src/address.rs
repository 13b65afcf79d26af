//! The client's address: the peer's, or one that a trusted proxy has written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::request::Request;

/// Whose address counts as the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The peer of the connection to this Envoy.
    Peer,
    /// The n-th entry of X-Forwarded-For from the right, 1 being the last: the one that the outermost of `n`
    /// trusted proxies has written. Those further left are the client's own words.
    TrustedHops(usize),
}

/// How much of an address tells clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Leading bits of an IPv4 address.
    pub ipv4: u8,
    /// Leading bits of an IPv6 address.
    pub ipv6: u8,
}

impl Default for Mask {
    /// An IPv6 customer usually holds a whole /64, and could otherwise choose a new address for each request.
    fn default() -> Self {
        Self { ipv4: 32, ipv6: 64 }
    }
}

/// The masked address as text, or `None` where there is none that can be trusted.
pub fn client(request: &dyn Request, source: Source, mask: Mask) -> Option<String> {
    let address = match source {
        Source::Peer => parse(&request.property(&["source", "address"])?)?,
        Source::TrustedHops(hops) => {
            // Several headers are one list, in their order.
            let lists = request.headers().all("x-forwarded-for");
            let entries: Vec<&[u8]> = lists
                .flat_map(|list| list.split(|byte| *byte == b','))
                .collect();
            parse(entries.get(entries.len().checked_sub(hops)?)?)?
        }
    };
    Some(masked(address, mask))
}

/// `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1` or `[2001:db8::1]:443`.
fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    text.parse()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
}

fn masked(address: IpAddr, mask: Mask) -> String {
    // An IPv4 client seen through an IPv6 socket is the same client.
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let bits = u32::from(v4)
                & u32::MAX
                    .checked_shl(32 - u32::from(mask.ipv4.min(32)))
                    .unwrap_or(0);
            Ipv4Addr::from(bits).to_string()
        }
        IpAddr::V6(v6) => {
            let bits = u128::from(v6)
                & u128::MAX
                    .checked_shl(128 - u32::from(mask.ipv6.min(128)))
                    .unwrap_or(0);
            Ipv6Addr::from(bits).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::request::Headers;

    struct From<'a>(&'a str, Headers);

    impl Request for From<'_> {
        fn headers(&self) -> &Headers {
            &self.1
        }
        fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
            (path == ["source", "address"]).then(|| self.0.into())
        }
    }

    fn from<'a>(peer: &'a str, lists: &[&str]) -> From<'a> {
        let header = |list: &&str| ("x-forwarded-for", (*list).to_owned());
        From(peer, lists.iter().map(header).collect())
    }

    #[test]
    fn the_peer_is_told_apart_by_its_whole_ipv4_or_its_ipv6_network() {
        let peer = |text| client(&from(text, &[]), Source::Peer, Mask::default());
        assert_eq!(peer("192.0.2.1:443").as_deref(), Some("192.0.2.1"));
        assert_eq!(peer("[::ffff:192.0.2.1]:443").as_deref(), Some("192.0.2.1"));
        assert_eq!(
            peer("[2001:db8:1:2:3::1]:443").as_deref(),
            Some("2001:db8:1:2::")
        );
        assert_eq!(peer("/run/envoy.sock"), None);
    }

    #[test]
    fn only_what_trusted_proxies_wrote_is_believed() {
        let hops = |n, list: &[&str]| {
            client(
                &from("10.0.0.1:1", list),
                Source::TrustedHops(n),
                Mask::default(),
            )
        };
        let list = &["6.6.6.6, 192.0.2.7,10.0.0.2"];
        assert_eq!(hops(1, list).as_deref(), Some("10.0.0.2"));
        assert_eq!(hops(2, list).as_deref(), Some("192.0.2.7"));
        assert_eq!(hops(4, list), None);
        assert_eq!(hops(1, &[]), None);
        // Two headers are one list.
        let split = &["6.6.6.6, 192.0.2.7", "10.0.0.2"];
        assert_eq!(hops(2, split).as_deref(), Some("192.0.2.7"));
        assert_eq!(hops(1, &["not an address"]), None);
    }

    #[test]
    fn a_mask_of_any_width_is_applied() {
        let mask = |ipv4, ipv6, text| client(&from(text, &[]), Source::Peer, Mask { ipv4, ipv6 });
        assert_eq!(mask(24, 64, "192.0.2.77:1").as_deref(), Some("192.0.2.0"));
        assert_eq!(mask(0, 0, "192.0.2.77:1").as_deref(), Some("0.0.0.0"));
        assert_eq!(mask(0, 0, "[2001:db8::1]:1").as_deref(), Some("::"));
        assert_eq!(
            mask(0, 128, "[2001:db8::1]:1").as_deref(),
            Some("2001:db8::1")
        );
    }
}
