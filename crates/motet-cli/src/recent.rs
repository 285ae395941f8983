//! Which path the bytes of upgraded streams take: two looks a moment apart, and why it is TCP where it is.
//!
//! What it is: a judgement of counters and of what the receiving ends do. A stream in whose rings nothing goes is not "in use shm" because it could
//! be. What it is not: a history: of a stream on which nothing moves between the looks all bytes count.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use motet_wire::stream::record::State;

use crate::process_scan::{self, Identity, Moved, Path, Process, Receiver, Stream};

/// Between the looks.
const MOMENT: Duration = Duration::from_millis(250);

/// The receiving end has gone back to TCP.
const PLAIN: &str = "upgraded, but the receiving end keeps to TCP";
/// A thread sleeps on the socket in the kernel.
const SLEEPS: &str = "upgraded, but the receiver sleeps in the kernel when bytes come: its ring is closed then";
/// Nobody waits where Motet sees it.
const UNSEEN: &str = "upgraded, but the receiver learns readiness where Motet does not see it: its ring stays closed";
/// Whatever it was, it is over.
const CLOSED: &str = "upgraded, but the receiver's ring is closed when bytes come: it sleeps, in this wait or in another thread's, or the ring is full";

/// All processes, with the paths that bytes take now.
pub fn take() -> Vec<Process> {
    let first = process_scan::take();
    if !first.iter().flat_map(|p| &p.streams).any(|s| s.path == Path::Shm) {
        return first;
    }
    thread::sleep(MOMENT);
    let mut then = process_scan::take();
    judge(&mut then, &first);
    then
}

/// Which stream: its node, and its place and generation there.
type Which = (Option<Identity>, (usize, u32));

/// Judges every upgraded stream by what moved since an earlier look.
pub fn judge(now: &mut [Process], earlier: &[Process]) {
    let before: HashMap<Which, (Moved, Moved)> =
        earlier.iter().flat_map(|p| p.streams.iter().map(|s| ((p.family, s.place), (s.sent, s.received)))).collect();
    let receivers: HashMap<(SocketAddr, SocketAddr), Receiver> = now
        .iter()
        .flat_map(|p| &p.streams)
        .filter(|s| s.state == State::Attached)
        .filter_map(|s| Some(((s.local?, s.peer?), s.receiver)))
        .collect();
    for process in now {
        let family = process.family;
        for stream in process.streams.iter_mut().filter(|s| s.state == State::Attached) {
            let (sent, received) = before.get(&(family, stream.place)).copied().unwrap_or_default();
            let far = stream.peer.zip(stream.local).and_then(|ends| receivers.get(&ends)).copied();
            let recent = (since(stream.sent, sent), since(stream.received, received));
            (stream.path, stream.reason_text) = verdict(stream, recent, far);
        }
    }
}

fn since(now: Moved, before: Moved) -> Moved {
    Moved { fast: now.fast.saturating_sub(before.fast), tcp: now.tcp.saturating_sub(before.tcp) }
}

/// The path of most bytes, and why it is not the ring if it is not. `far`: the receiver at the other end, where it is seen.
fn verdict(stream: &Stream, recent: (Moved, Moved), far: Option<Receiver>) -> (Path, &'static str) {
    let all = |(sent, received): (Moved, Moved)| {
        (sent.fast.saturating_add(received.fast), sent.tcp.saturating_add(received.tcp))
    };
    let still = all(recent) == (0, 0);
    let (sent, received) = if still { (stream.sent, stream.received) } else { recent };
    let (fast, tcp) = all((sent, received));
    if fast >= tcp {
        return (stream.path, stream.reason_text);
    }
    let receiver = if received.tcp >= sent.tcp { Some(stream.receiver) } else { far };
    let why = match receiver {
        Some(Receiver { plain: true, .. }) if stream.receiver.plain => stream.reason_text,
        Some(Receiver { plain: true, .. }) => PLAIN,
        Some(Receiver { unseen: true, .. }) => UNSEEN,
        // Asleep over an empty socket is how everybody waits; what counts is what comes meanwhile.
        Some(Receiver { sleeps: true, .. }) if !still => SLEEPS,
        _ => CLOSED,
    };
    (Path::Tcp, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Moved = Moved { fast: 0, tcp: 0 };

    fn stream(sent: Moved, received: Moved) -> Stream {
        Stream {
            fd: 3,
            local: None,
            peer: None,
            connected: true,
            peer_pid: None,
            peer_uid: None,
            path: Path::Shm,
            state: State::Attached,
            reason: 0,
            reason_text: "the fastest path there is",
            sent,
            received,
            spilled: 0,
            downgraded: 0,
            single_copy: 0,
            began: 0,
            place: (0, 0),
            receiver: Receiver::default(),
        }
    }

    fn moved(fast: u64, tcp: u64) -> Moved {
        Moved { fast, tcp }
    }

    #[test]
    fn the_path_is_that_of_the_bytes_of_the_last_moment() {
        let stream = stream(moved(1_000_000, 0), NONE);
        assert_eq!(verdict(&stream, (moved(0, 500), NONE), None), (Path::Tcp, CLOSED));
        assert_eq!(verdict(&stream, (moved(501, 500), NONE), None).0, Path::Shm);
        assert_eq!(verdict(&stream, (NONE, NONE), None).0, Path::Shm);
    }

    #[test]
    fn where_nothing_moves_all_bytes_count() {
        assert_eq!(verdict(&stream(moved(10, 65_600_000), NONE), (NONE, NONE), None), (Path::Tcp, CLOSED));
        assert_eq!(verdict(&stream(NONE, NONE), (NONE, NONE), None).0, Path::Shm);
    }

    #[test]
    fn the_reason_is_the_receivers() {
        let far = Receiver { unseen: true, ..Receiver::default() };
        let sleeps = Receiver { sleeps: true, ..Receiver::default() };
        let mut stream = stream(moved(0, 900), moved(0, 900));
        stream.receiver = sleeps;
        assert_eq!(verdict(&stream, (moved(0, 9), NONE), Some(far)), (Path::Tcp, UNSEEN));
        assert_eq!(verdict(&stream, (NONE, moved(0, 9)), Some(far)), (Path::Tcp, SLEEPS));
        let plain = Receiver { plain: true, ..Receiver::default() };
        assert_eq!(verdict(&stream, (moved(0, 9), NONE), Some(plain)), (Path::Tcp, PLAIN));
    }
}
