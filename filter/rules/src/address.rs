//! The client's address: that of the peer, or one that a trusted proxy has added.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use crate::config::terms::Address;
use crate::lookup::Lookup;
use crate::request::Request;

impl Address {
    /// The masked address as text. An entry of X-Forwarded-For that is not an address is unreadable, not missing: otherwise
    /// a client that can make a proxy add one could bypass a check.
    pub(crate) fn find<'a>(&self, request: &dyn Request) -> Lookup<'a> {
        let found = |address| Lookup::of(self.masked(address).into_bytes());
        let Some(hops) = self.trusted_hops else {
            let peer = request.property(&["source", "address"]);
            // A peer on a Unix socket has a path and no address.
            let peer = peer.and_then(|peer| parse(&peer));
            return peer.map_or(Lookup::Missing, found);
        };
        // Several headers form one list, in order. The outermost of so many trusted proxies has added the entry; those further
        // left come from the client.
        let lists = request.headers().all("x-forwarded-for");
        let entries: Vec<&[u8]> = lists
            .flat_map(|list| list.split(|byte| *byte == b','))
            .collect();
        let entry = entries.len().checked_sub(hops);
        match entry.and_then(|entry| entries.get(entry)) {
            None => Lookup::Missing,
            Some(entry) => parse(entry).map_or(Lookup::Unreadable, found),
        }
    }

    fn masked(&self, address: IpAddr) -> String {
        match without_translation(address) {
            IpAddr::V4(v4) => {
                let cut = 32_u32.saturating_sub(self.ipv4_bits.into());
                Ipv4Addr::from_bits(v4.to_bits() & u32::MAX.unbounded_shl(cut)).to_string()
            }
            IpAddr::V6(v6) => {
                let cut = 128_u32.saturating_sub(self.ipv6_bits.into());
                Ipv6Addr::from_bits(v6.to_bits() & u128::MAX.unbounded_shl(cut)).to_string()
            }
        }
    }
}

/// Parses `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:443`, optionally with a zone
/// (`fe80::1%eth0`) or in quotes.
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

/// Parses an IPv6 address without its zone, which names an interface of this host and not the client.
fn ipv6(text: &str) -> Option<IpAddr> {
    let (address, _) = text.split_once('%').unwrap_or((text, ""));
    address.parse::<Ipv6Addr>().ok().map(IpAddr::from)
}

/// An IPv4 client that connects through an IPv6 socket (`::ffff:0:0/96`) or NAT64 (`64:ff9b::/96`, RFC 6052) counts by
/// its IPv4 address; otherwise all of IPv4 behind NAT64 would be one /64.
fn without_translation(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if v6.segments().starts_with(&[0x64, 0xff9b, 0, 0, 0, 0]) => {
            let [.., a, b, c, d] = v6.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::request::Headers;

    struct FakeRequest<'a>(&'a str, Headers);

    impl Request for FakeRequest<'_> {
        fn headers(&self) -> &Headers {
            &self.1
        }
        fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
            (path == ["source", "address"]).then(|| self.0.into())
        }
    }

    fn from<'a>(peer: &'a str, lists: &[&str]) -> FakeRequest<'a> {
        let header = |list: &&str| ("x-forwarded-for", (*list).to_owned());
        FakeRequest(peer, lists.iter().map(header).collect())
    }

    /// `None` if the address is missing, `400` if it is unreadable.
    fn client(
        request: &dyn Request,
        trusted_hops: Option<usize>,
        [ipv4_bits, ipv6_bits]: [u8; 2],
    ) -> Option<String> {
        let address = Address {
            trusted_hops,
            ipv4_bits,
            ipv6_bits,
        };
        match address.find(request) {
            Lookup::Value(_, value) => Some(String::from_utf8_lossy(&value).into_owned()),
            Lookup::Missing => None,
            Lookup::Ambiguous | Lookup::Unreadable => Some("400".to_owned()),
        }
    }

    /// IPv4 clients behind NAT64 have keys of their own.
    #[test]
    fn a_peer_is_keyed_by_its_ipv4_address_or_its_ipv6_network() {
        for (peer, expected) in [
            ("192.0.2.1:443", Some("192.0.2.1")),
            ("[::ffff:192.0.2.1]:443", Some("192.0.2.1")),
            ("[2001:db8:1:2:3::1]:443", Some("2001:db8:1:2::")),
            ("/run/envoy.sock", None),
            ("[64:ff9b::c000:201]:443", Some("192.0.2.1")),
            ("[64:ff9b::192.0.2.2]:443", Some("192.0.2.2")),
            ("[64:ff9b:1::c000:201]:443", Some("64:ff9b:1::")),
        ] {
            let key = client(&from(peer, &[]), None, [32, 64]);
            assert_eq!(key.as_deref(), expected, "{peer}");
        }
    }

    fn hops(peer: &str, hops: usize, list: &[&str]) -> Option<String> {
        client(&from(peer, list), Some(hops), [32, 64])
    }

    #[test]
    fn only_forwarded_addresses_from_trusted_proxies_count() {
        let hops = |n, list: &[&str]| hops("10.0.0.1:1", n, list);
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
    fn every_address_format_is_parsed_and_anything_else_is_unreadable() {
        let entry = |entry| hops("", 1, &[entry]);
        let addresses = r#"2001:db8::1 [2001:db8::1] [2001:db8::1]:443 "[2001:db8::1]:443" "2001:db8::1" 2001:db8::1%eth0
            [2001:db8::1%25eth0]:443"#;
        for address in addresses.split_whitespace() {
            assert_eq!(entry(address).as_deref(), Some("2001:db8::"), "{address}");
        }
        assert_eq!(entry(" \"192.0.2.1:443\" ").as_deref(), Some("192.0.2.1"));
        assert_eq!(entry("fe80::1%eth0").as_deref(), Some("fe80::"));
        let nonsense = "not an address,unknown,, ,[2001:db8::1]x,[192.0.2.1],192.0.2.1%eth0,[2001:db8::1,[::1]:99999,\u{ff}";
        for nonsense in nonsense.split(',') {
            assert_eq!(entry(nonsense).as_deref(), Some("400"), "{nonsense}");
        }
    }

    #[test]
    fn a_mask_of_any_width_is_applied() {
        for (ipv4, ipv6, peer, expected) in [
            (24, 64, "192.0.2.77:1", "192.0.2.0"),
            (0, 0, "192.0.2.77:1", "0.0.0.0"),
            (0, 0, "[2001:db8::1]:1", "::"),
            (0, 128, "[2001:db8::1]:1", "2001:db8::1"),
        ] {
            let key = client(&from(peer, &[]), None, [ipv4, ipv6]);
            assert_eq!(key.as_deref(), Some(expected));
        }
    }
}
