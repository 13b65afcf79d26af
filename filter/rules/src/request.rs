//! What this crate wants to know of a request. The host reads only what is asked for, since each read costs.

/// A request as the proxy knows it. Every value may be any bytes at all.
pub trait Request {
    /// The value of a header or pseudo-header (`:path`, `:method`), by its lower-case name.
    fn header(&self, name: &str) -> Option<Vec<u8>>;

    /// The address and port of the peer of this connection, as Envoy writes it: `192.0.2.1:443` or `[2001:db8::1]:443`.
    fn peer_address(&self) -> Option<Vec<u8>>;
}
