//! The addresses of a stream's TCP connection, as its record holds them.

use motet_wire::stream::record::StreamRecord;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

/// The local address and the peer's.
pub(crate) fn addresses(record: &StreamRecord) -> [SocketAddr; 2] {
    [0, 1].map(|end| {
        let words = std::array::from_fn::<_, 4, _>(|i| record.connection.addresses[end][i].load(Relaxed).to_ne_bytes());
        let ip = match record.connection.family.load(Relaxed) {
            4 => IpAddr::V4(Ipv4Addr::from(words[0])),
            _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).unwrap_or_default())),
        };
        SocketAddr::new(ip, record.connection.ports[end].load(Relaxed) as u16)
    })
}
