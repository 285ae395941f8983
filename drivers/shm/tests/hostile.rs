//! The stream bootstrap against processes that may not connect, and against false offers: the process never crashes, nothing unchecked is
//! mapped, and the stream stays on TCP with the right reason.

use motet_driver_shm::Shm;
use motet_driver_shm::streams::offer::{OFFER_BYTES, Offer, Refusal};
use motet_engine::driver::{Connecting, Pair, Progress, StreamDriver};
use motet_engine::reason::Reason;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use motet_sys::rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use motet_sys::socket;
use motet_wire::stream::segment::Geometry;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const RING: usize = 4096;
/// Names the bootstrap socket that an attacker process connects to.
const ATTACK: &str = "MOTET_TEST_BOOTSTRAP";

/// The end that made the connection and waits for an offer, with everything that an attacker could know.
struct Victim {
    connecting: Box<dyn Connecting>,
    name: Vec<u8>,
    honest: Offer,
    _streams: [TcpStream; 2],
}

fn pair_of(tcp: &TcpStream, connected: bool) -> Pair {
    let fd = tcp.as_raw_fd();
    let (local, peer) = socket::addresses(fd).unwrap();
    Pair {
        fd,
        local,
        peer,
        connected,
        cookie: socket::cookie(fd).unwrap(),
        ring: RING,
        bulk: 0,
        memory: usize::MAX,
        huge: false,
    }
}

fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [connected, listener.accept().unwrap().0]
}

fn victim() -> Victim {
    victim_with(usize::MAX)
}

fn victim_with(memory: usize) -> Victim {
    let streams = connection();
    let pair = Pair { memory, ..pair_of(&streams[0], true) };
    let connecting = Shm.connect(&pair).unwrap();
    let netns = socket::netns_cookie(pair.fd).unwrap();
    let name = format!("motet/{netns:x}/{:x}", pair.cookie).into_bytes();
    let offerer = socket::cookie(streams[1].as_raw_fd()).unwrap();
    let nonce = motet_sys::memory::nonce().unwrap();
    Victim {
        connecting,
        name,
        honest: Offer { netns, offerer, target: pair.cookie, slot: 0, nonce },
        _streams: streams,
    }
}

/// A memfd to offer; a test falsifies one field.
struct Memory {
    head: Vec<u8>,
    size: usize,
    preallocate: bool,
    seals: SealFlags,
}

impl Memory {
    fn honest(offer: &Offer) -> Self {
        let geometry = Geometry { slots: 1, ring: RING, bulk: 0 };
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        Self { head: geometry.encode(offer.nonce).to_vec(), size: geometry.bytes(), preallocate: true, seals }
    }

    fn make(&self, offer: &Offer) -> OwnedFd {
        let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, self.size as u64).unwrap();
        if self.preallocate && self.size > 0 {
            fallocate(&fd, FallocateFlags::empty(), 0, self.size as u64).unwrap();
        }
        let write = |bytes: &[u8], at: u64| motet_sys::rustix::io::pwrite(&fd, bytes, at).unwrap();
        write(&self.head[..self.head.len().min(self.size)], 0);
        if self.preallocate && self.size >= 4096 + 2048 + 16 {
            write(&[offer.offerer.to_ne_bytes(), offer.target.to_ne_bytes()].concat(), 4096 + 2048); // the slot's cookies
        }
        fcntl_add_seals(&fd, self.seals).unwrap();
        fd
    }
}

/// Sends a message with any number of descriptors to a bootstrap socket.
fn send_to_bootstrap(name: &[u8], bytes: &[u8], files: &[&OwnedFd]) -> Result<OwnedFd, i32> {
    let connection = socket::connect_abstract(name)?;
    let mut space = [MaybeUninit::uninit(); motet_sys::rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = files.iter().map(|f| f.as_fd()).collect();
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    sendmsg(&connection, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map_err(|e| e.raw_os_error())?;
    Ok(connection)
}

/// The victim's outcome after four steps, which suffice.
fn outcome(victim: &mut Victim) -> Result<&'static str, Reason> {
    for _ in 0..4 {
        match victim.connecting.step() {
            Progress::Pending | Progress::Busy => {}
            Progress::Up(_) => return Ok("up"),
            Progress::Rejected(reason) => return Err(reason),
        }
    }
    Ok("pending")
}

fn offered(change_offer: impl Fn(&mut Offer), change_memory: impl Fn(&mut Memory)) -> Result<&'static str, Reason> {
    let mut victim = victim();
    let mut memory = Memory::honest(&victim.honest);
    change_memory(&mut memory);
    let file = memory.make(&victim.honest);
    let mut offer = victim.honest;
    change_offer(&mut offer);
    let _connection = send_to_bootstrap(&victim.name, &offer.encode(), &[&file]).unwrap();
    outcome(&mut victim)
}

#[test]
fn offer_honest_is_accepted() {
    assert_eq!(offered(|_| (), |_| ()), Ok("up"), "otherwise the other tests prove nothing");
}

#[test]
fn offered_memory_false_is_never_mapped() {
    type Change = fn(&mut Memory);
    let bad = Err(Reason::BAD_SEGMENT);
    let cases: &[(&str, Change, Result<&str, Reason>)] = &[
        ("bad magic", |m| m.head[0] ^= 1, bad),
        ("another version", |m| m.head[8] += 1, Err(Reason::VERSION)),
        ("no slots", |m| m.head[12..16].fill(0), bad),
        ("more slots than the file has", |m| m.head[12] = 2, bad),
        ("slots beyond counting", |m| m.head[12..16].fill(0xff), bad),
        ("a ring that is no power of two", |m| m.head[16] = 1, bad),
        ("a ring larger than the file", |m| m.head[18] = 1, bad),
        ("a ring that overflows", |m| m.head[16..24].fill(0xff), bad),
        ("a large ring that the file has not", |m| m.head[42] = 1, bad),
        ("a large ring that is no power of two", |m| m.head[40..44].copy_from_slice(&5000u32.to_le_bytes()), bad),
        ("a large ring that overflows", |m| m.head[40..48].fill(0xff), bad),
        ("another nonce", |m| m.head[24] ^= 1, bad),
        ("too short", |m| m.size -= 4096, bad),
        ("too long", |m| m.size += 4096, bad),
        ("empty", |m| m.size = 0, bad),
        ("shorter than a head", |m| m.size = 10, bad),
        ("not sealed", |m| m.seals = SealFlags::empty(), bad),
        ("may shrink", |m| m.seals = SealFlags::GROW, bad),
        ("may grow", |m| m.seals = SealFlags::SHRINK, bad),
        ("nothing written", |m| m.head.clear(), bad),
    ];
    for (what, change, expected) in cases {
        assert_eq!(offered(|_| (), change), *expected, "{what}");
    }
}

/// Pages may be missing: each end allocates what it needs, and stays on TCP where it cannot.
#[test]
fn offered_large_rings_match_the_geometry() {
    let geometry = Geometry { slots: 1, ring: RING, bulk: 1 << 20 };
    let with_bulk = |memory: &mut Memory| {
        memory.head[40..48].copy_from_slice(&(geometry.bulk as u64).to_le_bytes());
        memory.size = geometry.bytes();
    };
    assert_eq!(offered(|_| (), with_bulk), Ok("up"));
    let without_a_gap = |memory: &mut Memory| {
        with_bulk(memory);
        memory.size = geometry.dense() + 2 * geometry.bulk;
    };
    assert_eq!(offered(|_| (), without_a_gap), Err(Reason::BAD_SEGMENT));
}

#[test]
fn offer_for_another_connection_is_ignored() {
    type Change = fn(&mut Offer);
    let cases: &[(&str, Change)] = &[
        ("another network namespace", |o| o.netns ^= 1),
        ("another socket of ours", |o| o.target ^= 1),
        ("another socket of the peer", |o| o.offerer ^= 1),
    ];
    for (what, change) in cases {
        assert_eq!(offered(change, |_| ()), Ok("pending"), "{what}: the right offer may still arrive");
    }
    assert_eq!(offered(|o| o.slot = 1, |_| ()), Err(Reason::BAD_SEGMENT), "a slot beyond the segment");
    assert_eq!(offered(|o| o.slot = u32::MAX, |_| ()), Err(Reason::BAD_SEGMENT));
}

#[test]
fn offer_after_malformed_ones_is_accepted() {
    let mut victim = victim();
    let file = Memory::honest(&victim.honest).make(&victim.honest);
    let honest = victim.honest.encode();
    let long = [honest.as_slice(), &[0]].concat();
    let mut magic = honest;
    magic[0] ^= 1;
    for bytes in [&honest[..0], &honest[..1], &honest[..OFFER_BYTES - 1], &long, &magic] {
        let _connection = send_to_bootstrap(&victim.name, bytes, &[&file]);
        assert_eq!(outcome(&mut victim), Ok("pending"), "{} bytes", bytes.len());
    }
    let connection = socket::connect_abstract(&victim.name).unwrap();
    assert_eq!(outcome(&mut victim), Ok("pending"), "a connection without a message");
    drop(connection);
    assert_eq!(outcome(&mut victim), Ok("pending"), "and its end");
    let _connection = send_to_bootstrap(&victim.name, &honest, &[]).unwrap();
    assert_eq!(outcome(&mut victim), Ok("pending"), "no descriptor");
    let _connection = send_to_bootstrap(&victim.name, &honest, &[&file]).unwrap();
    assert_eq!(outcome(&mut victim), Ok("up"));
}

#[test]
fn offer_of_another_version_is_rejected() {
    let mut victim = victim();
    let mut bytes = victim.honest.encode();
    bytes[8] = bytes[8].wrapping_add(1);
    let _connection = send_to_bootstrap(&victim.name, &bytes, &[]).unwrap();
    assert_eq!(outcome(&mut victim), Err(Reason::VERSION));
}

#[test]
fn descriptors_beyond_the_segment_are_closed() {
    let mut victim = victim();
    let file = Memory::honest(&victim.honest).make(&victim.honest);
    let (witness, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let extra = OwnedFd::from(other);
    let _connection = send_to_bootstrap(&victim.name, &victim.honest.encode(), &[&file, &extra]).unwrap();
    drop(extra);
    assert_eq!(outcome(&mut victim), Ok("up"), "the first descriptor is the segment");
    assert!(!socket::is_connected(witness.as_raw_fd()), "the second is closed everywhere");
}

#[test]
fn offered_file_that_is_no_memfd_is_refused() {
    for path in ["/dev/null", "/proc/self/exe"] {
        let mut victim = victim();
        let file = OwnedFd::from(std::fs::File::open(path).unwrap());
        let _connection = send_to_bootstrap(&victim.name, &victim.honest.encode(), &[&file]).unwrap();
        assert_eq!(outcome(&mut victim), Err(Reason::BAD_SEGMENT), "{path}");
    }
}

/// Another process listens on the name first: the stream stays on TCP, and the offering end checks the credentials of the listener.
#[test]
fn bootstrap_name_squatted_leaves_stream_on_tcp() {
    let streams = connection();
    let pair = pair_of(&streams[0], true);
    let netns = socket::netns_cookie(pair.fd).unwrap();
    let name = format!("motet/{netns:x}/{:x}", pair.cookie);
    let _squatter = socket::listen_abstract(name.as_bytes(), 4).unwrap();
    assert_eq!(Shm.connect(&pair).err(), Some(Reason::NAME_TAKEN), "the name is taken");
}

/// A wire with two honest ends, as a control.
#[test]
fn ends_both_honest_share_a_slot() {
    let streams = connection();
    let mut near = Shm.connect(&pair_of(&streams[0], true)).unwrap();
    let mut far = Shm.connect(&pair_of(&streams[1], false)).unwrap();
    assert!(matches!(far.step(), Progress::Pending), "offered");
    assert!(matches!(far.step(), Progress::Pending), "not accepted yet");
    let Progress::Up(accepted) = near.step() else { panic!("not accepted") };
    let Progress::Up(offered) = far.step() else { panic!("acceptance not seen") };
    assert_eq!((offered.slot.end(), accepted.slot.end()), (0, 1));
    assert_eq!(offered.peer.pid, std::process::id() as i32);
    offered.slot.outward().mark.ready.store(7, std::sync::atomic::Ordering::Release);
    assert_eq!(accepted.slot.inward().mark.ready.load(std::sync::atomic::Ordering::Acquire), 7, "the same memory");
}

/// Both the refusing and the refused end know the reason.
#[test]
fn refusal_reports_its_reason_to_both_ends() {
    let mut victim = victim_with(0);
    let file = Memory::honest(&victim.honest).make(&victim.honest);
    let sent = send_to_bootstrap(&victim.name, &victim.honest.encode(), &[&file]).unwrap();
    assert_eq!(outcome(&mut victim), Err(Reason::MEMORY_LIMIT));
    let mut answer = [0; 64];
    let (n, _) = socket::receive_with_fd(&sent, &mut answer).unwrap();
    assert_eq!(Refusal::decode(&answer[..n]), Refusal(Reason::MEMORY_LIMIT));

    // The other direction: an offering end receives the refusal of a listener of its own user.
    for (reason, received) in [(Reason::VERSION, Reason::VERSION), (Reason(4711), Reason::BAD_OFFER)] {
        let streams = connection();
        let netns = socket::netns_cookie(streams[0].as_raw_fd()).unwrap();
        let cookie = socket::cookie(streams[0].as_raw_fd()).unwrap();
        let listener = socket::listen_abstract(format!("motet/{netns:x}/{cookie:x}").as_bytes(), 4).unwrap();
        let mut far = Shm.connect(&pair_of(&streams[1], false)).unwrap();
        assert!(matches!(far.step(), Progress::Pending));
        let incoming = socket::accept(&listener).unwrap();
        socket::send_message(&incoming, &Refusal(reason).encode()).unwrap();
        assert!(matches!(far.step(), Progress::Rejected(why) if why == received), "{reason:?}");
    }
}

fn skip(test: &str, reason: &str) {
    eprintln!("SKIP {test}: {reason}");
    if let Some(log) = std::env::var_os("MOTET_SKIP_LOG") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log);
        let _ = file.and_then(|mut f| writeln!(f, "SKIP {test}: {reason}"));
    }
}

/// The attacker process: it sends one well-formed offer to the bootstrap socket in [`ATTACK`]. As a test it does nothing.
#[test]
fn attacker() {
    let Ok(role) = std::env::var(ATTACK) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let offer = Offer { netns: number(1), offerer: number(2), target: number(3), slot: 0, nonce: [9; 16] };
    let file = Memory::honest(&offer).make(&offer);
    match send_to_bootstrap(words[0].as_bytes(), &offer.encode(), &[&file]) {
        Ok(connection) => {
            println!("connected");
            let _ = socket::poll([(connection.as_raw_fd(), socket::READABLE_EVENTS)], Some(10_000_000_000));
        }
        Err(errno) => println!("refused {errno}"),
    }
}

fn attack(victim: &Victim, mut command: Command) -> std::io::Result<(std::process::Child, String)> {
    use std::io::BufRead;
    let o = &victim.honest;
    let name = String::from_utf8(victim.name.clone()).unwrap();
    command
        .args(["--exact", "attacker", "--nocapture"])
        .env(ATTACK, format!("{name} {} {} {}", o.netns, o.offerer, o.target));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let result =
        lines.map_while(Result::ok).find(|l| l.contains("connected") || l.contains("refused")).unwrap_or_default();
    Ok((child, result))
}

/// A copy of this program that another user may run and may not replace; it is removed with the folder.
fn copy_for_others() -> (tempfile::TempDir, std::path::PathBuf) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    let folder = tempfile::Builder::new().prefix("motet-others-").permissions(mode).tempdir().unwrap();
    let copy = folder.path().join("copy");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    (folder, copy)
}

#[test]
fn offer_of_another_user_is_ignored() {
    const TEST: &str = "offer_of_another_user_is_ignored";
    if motet_sys::thread::euid() != 0 {
        return skip(TEST, "needs root to become another user");
    }
    let (_folder, copy) = copy_for_others();
    let mut victim = victim();
    let mut command = Command::new(&copy);
    command.uid(65533).gid(65533).current_dir("/");
    let started = attack(&victim, command);
    let (mut child, attack_result) = match started {
        Ok(started) => started,
        Err(e) => return skip(TEST, &format!("cannot start a process as another user: {e}")),
    };
    let result = outcome(&mut victim);
    let _ = child.kill();
    let _ = child.wait();
    assert!(attack_result.contains("connected"), "the attacker reached the bootstrap socket: {attack_result}");
    assert_eq!(result, Ok("pending"), "an offer of another user is ignored");
    // The right offer is still accepted.
    let file = Memory::honest(&victim.honest).make(&victim.honest);
    let _connection = send_to_bootstrap(&victim.name, &victim.honest.encode(), &[&file]).unwrap();
    assert_eq!(outcome(&mut victim), Ok("up"));
}

/// Runs itself again as that user.
#[test]
fn processes_of_user_65534_stay_on_tcp_with_reason() {
    const TEST: &str = "processes_of_user_65534_stay_on_tcp_with_reason";
    if motet_sys::thread::euid() == 65534 {
        let streams = connection();
        for (stream, connected) in streams.iter().zip([true, false]) {
            assert_eq!(Shm.connect(&pair_of(stream, connected)).err(), Some(Reason::NOBODY));
        }
        return;
    }
    if motet_sys::thread::euid() != 0 {
        return skip(TEST, "needs root to become another user");
    }
    let (_folder, copy) = copy_for_others();
    let mut command = Command::new(&copy);
    let done = command.args(["--exact", TEST]).uid(65534).gid(65534).current_dir("/").output();
    match done {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout)),
        Err(e) => skip(TEST, &format!("cannot start a process as another user: {e}")),
    }
}

#[test]
fn another_network_namespace_cannot_connect() {
    const TEST: &str = "another_network_namespace_cannot_connect";
    let allowed = Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|s| s.success());
    if !allowed {
        return skip(TEST, "no network namespace can be made here (unshare --net)");
    }
    let mut victim = victim();
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe().unwrap());
    let (mut child, attack_result) = attack(&victim, command).unwrap();
    let _ = child.wait();
    assert!(attack_result.contains("refused"), "abstract names belong to a network namespace: {attack_result}");
    assert_eq!(outcome(&mut victim), Ok("pending"));
}

/// The offering end asks the kernel for the socket at the other end: without one, the peer is on another host.
#[test]
fn connection_without_peer_socket_stays_on_tcp() {
    let streams = connection();
    let mut pair = pair_of(&streams[1], false);
    pair.peer.set_port(if pair.peer.port() == 1 { 2 } else { 1 });
    assert_eq!(Shm.connect(&pair).err(), Some(Reason::OTHER_HOST));
}
