//! The client's address: the peer's, or one that a trusted proxy has written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use crate::found::Found;
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

/// The masked address as text. An entry of X-Forwarded-For that is no address is unreadable, not missing: a client
/// that can make a proxy write one would else step around a check.
pub(crate) fn client<'a>(request: &dyn Request, source: Source, mask: Mask) -> Found<'a> {
    let found = |address| Found::of(masked(address, mask).into_bytes());
    match source {
        Source::Peer => {
            let peer = request.property(&["source", "address"]);
            // A peer on a Unix socket has a path, and no address.
            peer.and_then(|peer| parse(&peer))
                .map_or(Found::Missing, found)
        }
        Source::TrustedHops(hops) => {
            // Several headers are one list, in their order.
            let lists = request.headers().all("x-forwarded-for");
            let entries: Vec<&[u8]> = lists
                .flat_map(|list| list.split(|byte| *byte == b','))
                .collect();
            let entry = entries.len().checked_sub(hops);
            match entry.and_then(|entry| entries.get(entry)) {
                None => Found::Missing,
                Some(entry) => parse(entry).map_or(Found::Unreadable, found),
            }
        }
    }
}

/// `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:443`, with a zone (`fe80::1%eth0`)
/// or in quotes too.
fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let quoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let text = quoted.unwrap_or(text);
    if let Ok(socket) = text.parse::<SocketAddrV4>() {
        return Some((*socket.ip()).into());
    }
    let Some((address, after)) = text.strip_prefix('[').and_then(|text| text.split_once(']'))
    else {
        let ipv4 = text.parse::<Ipv4Addr>().map(IpAddr::from);
        return ipv4.ok().or_else(|| ipv6(text));
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    (after.is_empty() || after.strip_prefix(':').is_some_and(is_port)).then(|| ipv6(address))?
}

/// Without its zone, which says something of this host's interfaces and nothing of the client.
fn ipv6(text: &str) -> Option<IpAddr> {
    let (address, _) = text.split_once('%').unwrap_or((text, ""));
    address.parse::<Ipv6Addr>().ok().map(IpAddr::from)
}

/// An IPv4 client seen through an IPv6 socket (`::ffff:0:0/96`) or through NAT64 (`64:ff9b::/96`, RFC 6052) is the same
/// client; behind NAT64 all of IPv4 would else be one /64.
fn without_translation(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
                let [.., a, b, c, d] = v6.octets();
                Ipv4Addr::new(a, b, c, d).into()
            }
            _ => v6.into(),
        },
        v4 => v4,
    }
}

fn masked(address: IpAddr, mask: Mask) -> String {
    match without_translation(address) {
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

    /// `None` for an address that is missing, `400` for one that is unreadable.
    fn client(request: &dyn Request, source: Source, mask: Mask) -> Option<String> {
        match super::client(request, source, mask) {
            Found::Value(_, value) => Some(String::from_utf8_lossy(&value).into_owned()),
            Found::Missing => None,
            Found::Ambiguous | Found::Unreadable => Some("400".to_owned()),
        }
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
    }

    #[test]
    fn f7_what_is_no_address_is_unreadable_and_every_way_to_write_one_is_read() {
        let entry = |entry| client(&from("", &[entry]), Source::TrustedHops(1), Mask::default());
        for address in [
            "2001:db8::1",
            "[2001:db8::1]",
            "[2001:db8::1]:443",
            "\"[2001:db8::1]:443\"",
            "\"2001:db8::1\"",
            "2001:db8::1%eth0",
            "[2001:db8::1%25eth0]:443",
        ] {
            assert_eq!(entry(address).as_deref(), Some("2001:db8::"), "{address}");
        }
        assert_eq!(entry(" \"192.0.2.1:443\" ").as_deref(), Some("192.0.2.1"));
        assert_eq!(entry("fe80::1%eth0").as_deref(), Some("fe80::"));
        for nonsense in [
            "not an address",
            "unknown",
            "",
            " ",
            "[2001:db8::1]x",
            "[192.0.2.1]",
            "192.0.2.1%eth0",
            "[2001:db8::1",
            "[::1]:99999",
            "\u{ff}",
        ] {
            assert_eq!(entry(nonsense).as_deref(), Some("400"), "{nonsense}");
        }
    }

    #[test]
    fn f15_an_ipv4_address_behind_nat64_is_told_apart() {
        let peer = |text| client(&from(text, &[]), Source::Peer, Mask::default());
        assert_eq!(
            peer("[64:ff9b::c000:201]:443").as_deref(),
            Some("192.0.2.1")
        );
        assert_eq!(
            peer("[64:ff9b::192.0.2.2]:443").as_deref(),
            Some("192.0.2.2")
        );
        assert_eq!(
            peer("[64:ff9b:1::c000:201]:443").as_deref(),
            Some("64:ff9b:1::")
        );
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
