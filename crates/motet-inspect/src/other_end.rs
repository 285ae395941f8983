//! Why a stream gets no offer, where its other end is a process of this host under Motet.
//!
//! The engine of one end sees only that the other makes no offer. Here both ends are seen, so the reader learns the reason of the end that has one.

use std::collections::HashMap;
use std::net::SocketAddr;

use motet::reason::Reason;
use motet_wire::stream::record::State;

use crate::process_scan::{Process, Stream};
use crate::procfs;

/// The addresses of one end: its own first.
type Ends = (SocketAddr, SocketAddr);

/// Sets the peer and the reason of each stream that got no offer, if its other end says why.
pub(crate) fn set_reasons(processes: &mut [Process]) {
    if !processes.iter().flat_map(|process| &process.streams).any(got_no_offer) {
        return;
    }
    let mut others: HashMap<Ends, Vec<(u32, String)>> = HashMap::new();
    for process in processes.iter() {
        for stream in process.streams.iter().filter(|stream| stream.state == State::TcpOnly && !got_no_offer(stream)) {
            if let Some(ends) = ends(stream) {
                others.entry(ends).or_default().push((process.pid, stream.reason_text.to_string()));
            }
        }
    }
    for process in processes {
        for stream in process.streams.iter_mut().filter(|stream| got_no_offer(stream)) {
            let other = ends(stream).and_then(|(local, peer)| others.get(&(peer, local)));
            // The same addresses may be in use in another network namespace.
            let other = other.and_then(|all| all.iter().find(|(pid, _)| in_one_network(process.pid, *pid)));
            if let Some((pid, reason)) = other {
                stream.peer_pid = Some(*pid);
                stream.reason_text = format!("the peer keeps the connection on TCP: {reason}").into();
            }
        }
    }
}

fn got_no_offer(stream: &Stream) -> bool {
    stream.state == State::TcpOnly && stream.reason == Reason::PEER_WITHOUT_MOTET.0
}

fn ends(stream: &Stream) -> Option<Ends> {
    Some((stream.local?, stream.peer?))
}

fn in_one_network(one: u32, other: u32) -> bool {
    one == other || procfs::network(one).is_some_and(|own| procfs::network(other) == Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, local: &str, peer: &str, reason: Reason) -> Process {
        let text = r#"{"fd":1,"local":null,"peer":null,"connected":true,"peer_pid":null,"peer_uid":null,"path":"tcp","state":"tcp",
            "reason":0,"reason_text":"","sent":{"fast":0,"tcp":0},"received":{"fast":0,"tcp":0},"spilled":0,"downgraded":0,"single_copy":0,"began":0}"#;
        let stream: Stream = serde_json::from_str(text).unwrap();
        let reason_text = motet::reason::text(reason.0).into();
        let (local, peer) = (local.parse().ok(), peer.parse().ok());
        let mut process = Process::default();
        process.pid = pid;
        process.streams = vec![Stream { local, peer, reason: reason.0, reason_text, ..stream }];
        process
    }

    #[test]
    fn reason_of_the_other_end_is_shown() {
        let (here, there) = ("127.0.0.1:5000", "127.0.0.1:40000");
        let own = std::process::id();
        let mut processes = [
            process(own, here, there, Reason::PEER_WITHOUT_MOTET),
            process(own, there, here, Reason::FORBIDDEN),
            process(own, here, "127.0.0.1:40001", Reason::PEER_WITHOUT_MOTET),
        ];
        set_reasons(&mut processes);
        let shown = processes.each_ref().map(|p| (p.streams[0].reason_text.to_string(), p.streams[0].peer_pid));
        let forbidden = motet::reason::text(Reason::FORBIDDEN.0);
        assert_eq!(shown[0], (format!("the peer keeps the connection on TCP: {forbidden}"), Some(own)));
        assert_eq!(shown[1], (forbidden.to_owned(), None));
        assert_eq!(shown[2], (motet::reason::text(Reason::PEER_WITHOUT_MOTET.0).to_owned(), None));
    }

    #[test]
    fn same_addresses_in_another_network_are_other_ends() {
        let (here, there) = ("127.0.0.1:5000", "127.0.0.1:40000");
        // A process that does not exist has no network.
        let mut processes =
            [process(1, here, there, Reason::PEER_WITHOUT_MOTET), process(u32::MAX, there, here, Reason::FORBIDDEN)];
        set_reasons(&mut processes);
        assert_eq!(processes[0].streams[0].peer_pid, None);
    }
}
