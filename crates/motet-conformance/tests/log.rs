//! The log of a process with a hostile peer: it has the reason, as `motet why` has.
//!
//! The victim is this program again, with `MOTET_LOG` set; the hostile peer is the test itself. It finds the victim's socket as an honest peer
//! would, and then offers invalid memory, or valid memory with false contents.

use motet_driver_shm::Shm;
use motet_driver_shm::streams::offer::Offer;
use motet_engine::driver::{Pair, Progress, StreamDriver};
use motet_engine::reason::{Reason, text};
use motet_sys::{sock_diag, socket};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;

/// Names the port that a victim connects to.
const VICTIM: &str = "MOTET_TEST_LOG_VICTIM";
/// Enough messages for the victim to give up a peer that never answers.
const MESSAGES: usize = 5000;

/// The victim process: it exchanges messages with the peer until the connection is gone. In a test run it does nothing.
#[test]
fn victim() {
    let Ok(port) = std::env::var(VICTIM) else { return };
    let tcp = TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
    let mut stream = motet::Stream::connected(tcp).unwrap();
    let mut bytes = [0; 64];
    for _ in 0..MESSAGES {
        if stream.write_all(&bytes).and_then(|()| stream.read_exact(&mut bytes)).is_err() {
            break;
        }
    }
}

/// Runs a victim against `peer` and returns its log.
fn log_of(name: &str, peer: impl FnOnce(TcpStream)) -> Vec<String> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix("motet-log-").permissions(mode).tempdir().unwrap();
    let log = folder.path().join(name);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "victim"]).env(VICTIM, listener.local_addr().unwrap().port().to_string());
    command.env("MOTET_LOG", &log).env("MOTET_CONFIG", "/dev/null").env("MOTET_PROFILE", "/dev/null");
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    peer(listener.accept().unwrap().0);
    assert!(child.wait().unwrap().success());
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    for line in text.lines() {
        assert!(line.contains(&format!(" pid={} event=", child.id())), "{line}");
    }
    text.lines().map(String::from).collect()
}

#[track_caller]
fn has(lines: &[String], event: &str, reason: Reason) {
    let wanted = format!("reason={} text=\"{}\"", reason.0, text(reason.0));
    let found = lines.iter().find(|l| l.contains(&format!(" event={event} ")) && l.ends_with(&wanted));
    assert!(found.is_some_and(|l| l.contains(" local=127.0.0.1:") && l.contains(" peer=127.0.0.1:")), "{lines:#?}");
}

/// Answers every message, until the victim leaves.
fn echo(mut tcp: TcpStream) {
    let mut bytes = [0; 64];
    while tcp.read_exact(&mut bytes).is_ok() && tcp.write_all(&bytes).is_ok() {}
}

fn pair_of(tcp: &TcpStream) -> Pair {
    let fd = tcp.as_raw_fd();
    let (local, peer) = socket::addresses(fd).unwrap();
    let cookie = socket::cookie(fd).unwrap();
    Pair { fd, local, peer, connected: false, cookie, ring: 65536, bulk: 0, memory: usize::MAX, huge: false }
}

#[test]
fn log_has_reason_of_bad_segment() {
    let lines = log_of("segment", |tcp| {
        let pair = pair_of(&tcp);
        let victim = sock_diag::SockDiag::open().unwrap().find(pair.peer, pair.local).unwrap().unwrap();
        let netns = socket::netns_cookie(pair.fd).unwrap();
        let name = format!("motet/{netns:x}/{:x}", victim.cookie);
        let offer = Offer { netns, offerer: pair.cookie, target: victim.cookie, slot: 0, nonce: [1; 16] };
        // The victim listens from its first step on.
        let mut offered = false;
        let mut tcp = tcp;
        let mut bytes = [0; 64];
        while tcp.read_exact(&mut bytes).is_ok() {
            if !offered && let Ok(connection) = socket::connect_abstract(name.as_bytes()) {
                let memory = std::fs::File::open("/proc/self/exe").unwrap();
                socket::send_with_fd(&connection, &offer.encode(), &memory).unwrap();
                std::mem::forget(connection);
                offered = true;
            }
            if tcp.write_all(&bytes).is_err() {
                break;
            }
        }
        assert!(offered, "the victim never listened");
    });
    assert!(lines[0].contains(" event=start motet="), "{lines:#?}");
    has(&lines, "tcp_only", Reason::BAD_SEGMENT);
}

#[test]
fn log_has_reason_of_false_shared_memory() {
    let lines = log_of("lie", |mut tcp| {
        let pair = pair_of(&tcp);
        let mut connecting = None;
        let mut slot = None;
        let mut bytes = [0; 64];
        while tcp.read_exact(&mut bytes).is_ok() {
            let connecting = connecting.get_or_insert_with(|| Shm.connect(&pair));
            if slot.is_none()
                && let Ok(connecting) = connecting
                && let Progress::Up(wire) = connecting.step()
            {
                slot = Some(wire.slot);
            }
            if let Some(slot) = &slot {
                // Opens the gate, and claims to have read more than was ever sent.
                let (gate, line) = (&slot.inward().gate, &slot.inward().consumer);
                gate.raise(0);
                let _ = line.advance(0, 1 << 40);
            }
            if tcp.write_all(&bytes).is_err() {
                break;
            }
        }
        assert!(slot.is_some(), "the wire came up");
    });
    assert!(lines.iter().any(|l| l.contains(" event=attached ") && l.contains(" driver=shm")), "{lines:#?}");
    has(&lines, "reset", Reason::BROKEN);
}

#[test]
fn log_has_reason_of_peer_without_motet() {
    let lines = log_of("tcp_only", echo);
    assert!(lines.iter().all(|l| !l.contains(" event=attached ")), "{lines:#?}");
    has(&lines, "tcp_only", Reason::PEER_WITHOUT_MOTET);
}
