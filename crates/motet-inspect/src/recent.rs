//! The path that the bytes of upgraded streams take, from two scans, and the reason if it is TCP.
//!
//! What it is: a verdict from counters and from the state of the receiving ends. A stream is "in use shm" only if its bytes take the ring.
//! What it is not: a history. If nothing moved between the scans, all bytes of the stream count.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use motet_wire::stream::record::State;

use crate::process_scan::{self, Identity, Moved, Path, Process, Receiver, Stream};

/// Time between the two scans.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// The receiving end has gone back to TCP.
const RECEIVER_ON_TCP: &str = "upgraded, but the receiving end uses TCP only";
/// A thread sleeps on the socket in the kernel.
const RECEIVER_SLEEPS: &str =
    "upgraded, but the receiver sleeps in the kernel when bytes come, and they go by TCP then";
/// No wait that Motet sees precedes the receives.
const WAIT_UNSEEN: &str =
    "upgraded, but the receiver learns readiness by calls that Motet does not see, so its ring stays closed";
/// The cause is no longer visible.
const RING_CLOSED: &str = "upgraded, but the receiver's ring was full or a thread slept in the kernel when bytes came, as is normal for a receiver slower than its sender";

/// Scans all processes twice, and sets the path of each upgraded stream to the path of its recent bytes.
pub fn scan() -> Vec<Process> {
    let first = process_scan::scan();
    if !first.iter().flat_map(|p| &p.streams).any(|s| s.path == Path::Shm) {
        return first;
    }
    thread::sleep(SAMPLE_INTERVAL);
    let mut then = process_scan::scan();
    set_recent_paths(&mut then, &first);
    then
}

/// A stream: its node file, and the index and generation of its record.
type StreamId = (Option<Identity>, (usize, u32));

/// Sets the path of every upgraded stream to the path of the bytes that moved since an earlier scan.
pub fn set_recent_paths(now: &mut [Process], earlier: &[Process]) {
    let before: HashMap<StreamId, (Moved, Moved)> =
        earlier.iter().flat_map(|p| p.streams.iter().map(|s| ((p.fork_group, s.id), (s.sent, s.received)))).collect();
    let receivers: HashMap<(SocketAddr, SocketAddr), Receiver> = now
        .iter()
        .flat_map(|p| &p.streams)
        .filter(|s| s.state == State::Attached)
        .filter_map(|s| Some(((s.local?, s.peer?), s.receiver)))
        .collect();
    for process in now {
        let fork_group = process.fork_group;
        for stream in process.streams.iter_mut().filter(|s| s.state == State::Attached) {
            let (sent, received) = before.get(&(fork_group, stream.id)).copied().unwrap_or_default();
            let far = stream.peer.zip(stream.local).and_then(|ends| receivers.get(&ends)).copied();
            let recent = (since(stream.sent, sent), since(stream.received, received));
            (stream.path, stream.reason_text) = verdict(stream, recent, far);
        }
    }
}

fn since(now: Moved, before: Moved) -> Moved {
    Moved { fast: now.fast.saturating_sub(before.fast), tcp: now.tcp.saturating_sub(before.tcp) }
}

/// The path of most bytes, and its reason. `far` is the receiver at the other end, if it is visible.
fn verdict(stream: &Stream, recent: (Moved, Moved), far: Option<Receiver>) -> (Path, Cow<'static, str>) {
    let all = |(sent, received): (Moved, Moved)| {
        (sent.fast.saturating_add(received.fast), sent.tcp.saturating_add(received.tcp))
    };
    let still = all(recent) == (0, 0);
    let (sent, received) = if still { (stream.sent, stream.received) } else { recent };
    let (fast, tcp) = all((sent, received));
    if fast >= tcp {
        return (stream.path, stream.reason_text.clone());
    }
    let receiver = if received.tcp >= sent.tcp { Some(stream.receiver) } else { far };
    let why = match receiver {
        Some(Receiver { over_tcp: true, .. }) if stream.receiver.over_tcp => &stream.reason_text,
        Some(Receiver { over_tcp: true, .. }) => RECEIVER_ON_TCP,
        Some(Receiver { unseen: true, .. }) => WAIT_UNSEEN,
        // Every waiting receiver sleeps over an empty socket; it matters only if bytes arrive meanwhile.
        Some(Receiver { sleeps: true, .. }) if !still => RECEIVER_SLEEPS,
        _ => RING_CLOSED,
    };
    (Path::Tcp, Cow::Owned(why.to_owned()))
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
            reason_text: "the fastest path there is".into(),
            sent,
            received,
            spilled: 0,
            downgraded: 0,
            single_copy: 0,
            began: 0,
            rate: None,
            id: (0, 0),
            receiver: Receiver::default(),
        }
    }

    fn moved(fast: u64, tcp: u64) -> Moved {
        Moved { fast, tcp }
    }

    #[test]
    fn path_shown_is_that_of_the_recent_bytes() {
        let stream = stream(moved(1_000_000, 0), NONE);
        assert_eq!(verdict(&stream, (moved(0, 500), NONE), None), (Path::Tcp, RING_CLOSED.into()));
        assert_eq!(verdict(&stream, (moved(501, 500), NONE), None).0, Path::Shm);
        assert_eq!(verdict(&stream, (NONE, NONE), None).0, Path::Shm);
    }

    #[test]
    fn all_bytes_count_if_none_moved() {
        assert_eq!(verdict(&stream(moved(10, 65_600_000), NONE), (NONE, NONE), None), (Path::Tcp, RING_CLOSED.into()));
        assert_eq!(verdict(&stream(NONE, NONE), (NONE, NONE), None).0, Path::Shm);
    }

    #[test]
    fn reason_of_a_tcp_path_is_the_receivers() {
        let far = Receiver { unseen: true, ..Receiver::default() };
        let sleeps = Receiver { sleeps: true, ..Receiver::default() };
        let mut stream = stream(moved(0, 900), moved(0, 900));
        stream.receiver = sleeps;
        assert_eq!(verdict(&stream, (moved(0, 9), NONE), Some(far)), (Path::Tcp, WAIT_UNSEEN.into()));
        assert_eq!(verdict(&stream, (NONE, moved(0, 9)), Some(far)), (Path::Tcp, RECEIVER_SLEEPS.into()));
        let on_tcp = Receiver { over_tcp: true, ..Receiver::default() };
        assert_eq!(verdict(&stream, (moved(0, 9), NONE), Some(on_tcp)), (Path::Tcp, RECEIVER_ON_TCP.into()));
    }
}
