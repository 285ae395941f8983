//! Streams and links on TCP although both ends are on one host and no user has chosen TCP: what a user wants to be warned of.
//!
//! A stream may be on TCP for a reason that is wanted (another host, another user, a setting) or that lies in the program (a descriptor that was passed
//! on). These are no falls. A fall is a lack that the user can remove, such as of memory, or a fault.

use motet::reason::Reason;
use motet_wire::stream::record::State;
use serde::{Deserialize, Serialize};

use crate::process_scan::{Path, Process, Stream};

/// Reasons that a user can and wants to remove.
const UNWANTED: &[Reason] = &[
    Reason::VERSION,
    Reason::NO_MEMORY,
    Reason::BAD_SEGMENT,
    Reason::BAD_OFFER,
    Reason::NOT_PERMITTED,
    Reason::TABLE_FULL,
    Reason::BROKEN,
    Reason::ORDER,
    Reason::NAME_TAKEN,
    Reason::MEMORY_LIMIT,
    Reason::LIMITED,
];
/// An upgraded stream whose bytes take TCP is worth a warning from this rate on, bytes per second.
const BUSY: u64 = 10_000_000;

/// A stream or link that is on TCP and should not be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fall {
    /// The process.
    pub pid: u32,
    /// The other process, if known.
    pub peer_pid: Option<u32>,
    /// The stream's addresses, or the link's peer.
    pub what: String,
    /// The reason, in the words of `motet why`.
    pub reason: String,
}

/// All falls of some processes.
pub fn of(processes: &[Process]) -> Vec<Fall> {
    let mut falls = Vec::new();
    for process in processes {
        let fall = |peer_pid, what, reason: &str| Fall { pid: process.pid, peer_pid, what, reason: reason.to_owned() };
        let address = |address: Option<std::net::SocketAddr>| address.map_or("?".to_owned(), |a| a.to_string());
        for stream in process.streams.iter().filter(|stream| has_fallen(stream)) {
            let what = format!("{} to {}", address(stream.local), address(stream.peer));
            falls.push(fall(stream.peer_pid, what, &stream.reason_text));
        }
        let links = process.nodes.iter().flat_map(|node| &node.links).filter(|link| link.up);
        for link in links.filter(|link| link.peer_pid.is_some()) {
            let [Some(used), Some(shm)] =
                ["tcp", "shm"].map(|name| link.drivers.iter().find(|verdict| verdict.driver == name))
            else {
                continue;
            };
            if used.in_use && UNWANTED.iter().any(|reason| shm.reason == motet::reason::text(reason.0)) {
                let peer = link.peer_name.as_ref().unwrap_or(&link.peer);
                falls.push(fall(link.peer_pid, format!("link to {peer}"), &shm.reason));
            }
        }
    }
    falls
}

fn has_fallen(stream: &Stream) -> bool {
    match stream.state {
        State::TcpOnly | State::Broken => UNWANTED.iter().any(|reason| reason.0 == stream.reason),
        State::Attached => stream.path == Path::Tcp && stream.rate.is_some_and(|rate| rate.both() >= BUSY),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Rate;

    fn stream(state: State, reason: Reason, path: Path, rate: u64) -> Stream {
        let text = r#"{"fd":1,"local":"127.0.0.1:1","peer":"127.0.0.1:2","connected":true,"peer_pid":7,"peer_uid":0,"path":"tcp","state":"tcp",
            "reason":0,"reason_text":"r","sent":{"fast":0,"tcp":0},"received":{"fast":0,"tcp":0},"spilled":0,"downgraded":0,"single_copy":0,"began":0}"#;
        let stream: Stream = serde_json::from_str(text).unwrap();
        Stream { state, reason: reason.0, path, rate: Some(Rate { sent: rate, received: 0 }), ..stream }
    }

    #[test]
    fn what_a_user_has_chosen_is_no_fall() {
        let of = |reason| has_fallen(&stream(State::TcpOnly, reason, Path::Tcp, 0));
        assert!(of(Reason::MEMORY_LIMIT) && of(Reason::VERSION));
        assert!(![Reason::OTHER_HOST, Reason::OTHER_USER, Reason::FORBIDDEN, Reason::DISABLED].into_iter().any(of));
    }

    #[test]
    fn upgraded_stream_on_tcp_is_a_fall_when_busy() {
        assert!(has_fallen(&stream(State::Attached, Reason::FASTEST, Path::Tcp, BUSY)));
        assert!(!has_fallen(&stream(State::Attached, Reason::FASTEST, Path::Tcp, BUSY - 1)));
        assert!(!has_fallen(&stream(State::Attached, Reason::FASTEST, Path::Shm, BUSY)));
    }

    #[test]
    #[allow(clippy::field_reassign_with_default)] // it has private fields
    fn falls_name_the_process_and_the_reason() {
        let mut process = Process::default();
        process.pid = 3;
        process.streams = vec![stream(State::TcpOnly, Reason::LIMITED, Path::Tcp, 0)];
        let what = "127.0.0.1:1 to 127.0.0.1:2".to_owned();
        assert_eq!(of(&[process]), [Fall { pid: 3, peer_pid: Some(7), what, reason: "r".to_owned() }]);
    }
}
