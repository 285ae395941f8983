//! Clients and servers that break the protocol: the other side stays whole, and serves those that keep it.

use motet::node::{Channel, Context, Mode, Node, Outgoing, RecvFrom, Serve};
use motet_files::client::{Client, CompletionQueue, MAX_QUEUED, OperationMemory, Source, Submission, Transfer};
use motet_files::exports::{self, Query};
use motet_files::protocol::{
    Answer, Attributes, Change, Layout, LockKind, LockRange, LockWait, MAX_REQUEST_BYTES, OpenFlags, Operation, Reply,
    Request, Resumed, SERVICE, SLOTS, SessionKey, Target, VERSION, acknowledgement_tag, answer_tag, append, data_tag,
    parse_answer, parse_request, request_tag,
};
use motet_files::server::{Options, Server};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

/// A server, and the folder that it exports.
struct Scene {
    _server: Server,
    folder: TempDir,
    name: String,
}

impl Scene {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("hostile-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = folder.path().to_owned();
        let options = Options { name: name.clone(), directory: path, ..Options::default() };
        Self { _server: Server::start(options).expect("a server"), folder, name }
    }

    /// The server works for a client that keeps the protocol.
    fn works(&self) {
        let client = Client::connect(Source::Name(self.name.clone()), Some(Duration::from_secs(5))).expect("a client");
        let (file, _) =
            client.open_file(b"check", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE, 0o644).expect("a file");
        file.write_at(b"works", 0).expect("a write");
        assert_eq!(fs::read(self.folder.path().join("check")).expect("the file"), b"works");
        client.close();
    }
}

/// A client that sends what it likes.
struct Raw {
    node: Node,
    channel: Channel,
}

impl Raw {
    fn connect(scene: &Scene) -> Self {
        let address = exports::ask(&scene.name, &Query::default()).expect("the export").info.address;
        let node = Node::open("").expect("a node");
        let context: Context = node.context().expect("a context");
        let link = node.connect(&address, LIMIT).expect("a link");
        let channel = node.open_channel(link, SERVICE, Serve::Tagged(context), LIMIT).expect("a channel");
        Self { node, channel }
    }

    fn attached(scene: &Scene) -> Self {
        Self::with_session(scene).0
    }

    fn with_session(scene: &Scene) -> (Self, SessionKey) {
        let raw = Self::connect(scene);
        raw.request(0, 0, 0, Operation::Attach { version: VERSION, resume: None });
        match raw.answer(0) {
            Some(Ok(Reply::Attached { key, .. })) => (raw, key),
            answer => panic!("{answer:?}"),
        }
    }

    fn send(&self, tag: u64, bytes: &[u8]) {
        // The server may have ended the link already.
        let _ = self.node.send(self.channel, tag, bytes, LIMIT);
    }

    fn request(&self, slot: u16, sequence: u32, data: u32, operation: Operation<'_>) {
        let mut bytes = Vec::new();
        append(&Request { slot, sequence, data, identity: None, operation }, &mut bytes);
        self.send(request_tag(slot), &bytes);
    }

    /// The answer in a slot; `None`: the server has ended the link.
    fn answer(&self, slot: u16) -> Option<Result<Reply, i32>> {
        let (mut headers, mut body) = (Vec::new(), vec![0; 1 << 20]);
        let from = RecvFrom::Channel(self.channel);
        self.node.receive_with(from, answer_tag(slot), 0, &mut headers, &mut body, LIMIT).ok()?;
        Some(parse_answer(&headers).expect("an answer").result)
    }
}

#[test]
fn messages_that_are_no_requests_end_the_link() {
    let scene = Scene::new();
    let mut long = Vec::new();
    let path = vec![b'x'; 100_000];
    let too_long = Operation::GetAttributes(Target::Path(&path));
    append(&Request { slot: 1, sequence: 1, data: 0, identity: None, operation: too_long }, &mut long);
    assert!(long.len() > MAX_REQUEST_BYTES);
    for (tag, bytes) in [
        (request_tag(1), vec![]),
        (request_tag(1), vec![0xff; 300]),
        (request_tag(1), long),
        (request_tag(1), {
            // The slot in the tag is another one than that in the request.
            let mut bytes = Vec::new();
            append(
                &Request { slot: 2, sequence: 1, data: 0, identity: None, operation: Operation::Statfs },
                &mut bytes,
            );
            bytes
        }),
    ] {
        let raw = Raw::attached(&scene);
        raw.send(tag, &bytes);
        assert_eq!(raw.answer(1), None, "{} bytes", bytes.len());
    }
    scene.works();
}

#[test]
fn requests_outside_of_a_session_or_of_its_order_end_the_link() {
    let scene = Scene::new();
    let raw = Raw::connect(&scene);
    raw.request(1, 1, 0, Operation::Statfs);
    assert_eq!(raw.answer(1), None, "before a session");
    for (slot, sequence) in [(SLOTS, 1), (u16::MAX, 1), (1, 2), (1, u32::MAX), (3, 0x8000_0000)] {
        let raw = Raw::attached(&scene);
        raw.request(slot, sequence, 0, Operation::Statfs);
        assert_eq!(raw.answer(slot), None, "slot {slot}, sequence {sequence}");
    }
    let raw = Raw::attached(&scene);
    raw.request(0, 0, 0, Operation::Attach { version: VERSION, resume: None });
    assert!(matches!(raw.answer(0), Some(Err(_)) | None), "a second session on one channel");
    let raw = Raw::connect(&scene);
    raw.request(0, 0, 0, Operation::Attach { version: VERSION + 1, resume: None });
    assert_eq!(raw.answer(0), Some(Err(93)), "EPROTONOSUPPORT");
    let raw = Raw::connect(&scene);
    raw.request(0, 0, 0, Operation::Attach { version: VERSION, resume: Some(SessionKey([7; 16])) });
    assert!(
        matches!(raw.answer(0), Some(Ok(Reply::Attached { resumed: Resumed::Nothing, .. }))),
        "a key that is guessed"
    );
    scene.works();
}

#[test]
fn arguments_that_are_out_of_range_are_errors() {
    let scene = Scene::new();
    let raw = Raw::attached(&scene);
    let mut sequence = 0;
    let mut asked = |operation: Operation<'_>| {
        sequence += 1;
        raw.request(1, sequence, 0, operation);
        raw.answer(1).expect("an answer")
    };
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    let Ok(Reply::Opened { file, .. }) = asked(Operation::Open { path: b"file", flags, mode: 0o600 }) else {
        panic!("no file")
    };
    let range = |start, end| LockRange { kind: LockKind::Exclusive, start, end, process: 0 };
    for operation in [
        Operation::Read { file, offset: 0, length: u32::MAX },
        Operation::Read { file: 4711, offset: 0, length: 10 },
        Operation::Read { file, offset: u64::MAX, length: 10 },
        Operation::Write { file: u32::MAX, offset: 0 },
        Operation::Lock { file, owner: 1, range: range(10, 5), wait: LockWait::OfProcess },
        Operation::StopWaiting { file, owner: 1, range: range(10, 5) },
        Operation::Lock { file, owner: 1, range: range(u64::MAX, u64::MAX), wait: LockWait::No },
        Operation::Fallocate { file, mode: u32::MAX, offset: 0, length: 1 },
        Operation::Fallocate { file, mode: 0, offset: u64::MAX, length: u64::MAX },
        Operation::Seek { file, offset: u64::MAX, data: true },
        Operation::Open { path: b"x", flags: OpenFlags::from_bits_retain(u32::MAX), mode: u32::MAX },
        Operation::Readdir { file, cookie: u64::MAX, length: 0, attributes: true },
        Operation::Mknod { path: b"device", mode: 0o060_666, device: 1 << 8 },
        Operation::SetAttributes(Target::File(file), Change { size: Some(u64::MAX), ..Change::default() }),
    ] {
        assert!(asked(operation.clone()).is_err(), "{operation:?}");
    }
    assert_eq!(asked(Operation::Close { file }), Ok(Reply::Done));
    assert!(asked(Operation::Close { file }).is_err());
    scene.works();
}

#[test]
fn announced_data_that_do_not_come_delay_no_other_client() {
    let scene = Scene::new();
    let raws: Vec<_> = (0..4).map(|_| Raw::attached(&scene)).collect();
    for raw in &raws {
        // Each keeps a thread of the server waiting.
        raw.request(1, 1, 1 << 20, Operation::Write { file: 0, offset: 0 });
        raw.request(2, 1, u32::MAX, Operation::Write { file: 0, offset: 0 });
    }
    let (done, finished) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            scene.works();
            done.send(())
        });
        finished.recv_timeout(Duration::from_secs(5)).expect("others are served meanwhile");
    });
    // Data of another length than announced.
    let raw = Raw::attached(&scene);
    raw.request(1, 1, 1000, Operation::Write { file: 0, offset: 0 });
    raw.send(data_tag(1), &[0; 999]);
    assert_eq!(raw.answer(1), None);
}

#[test]
fn a_request_that_comes_twice_is_executed_once() {
    let scene = Scene::new();
    let raw = Raw::attached(&scene);
    for _ in 0..3 {
        raw.request(1, 1, 0, Operation::Mkdir { path: b"folder", mode: 0o755 });
        assert!(matches!(raw.answer(1), Some(Ok(Reply::Attributes(_)))), "the answer is repeated");
    }
    raw.request(1, 2, 0, Operation::Mkdir { path: b"folder", mode: 0o755 });
    assert_eq!(raw.answer(1), Some(Err(17)), "EEXIST");
}

#[test]
fn nonsense_at_the_socket_of_an_export_is_refused() {
    let scene = Scene::new();
    let path = motet_session::paths::exports_folder().expect("the folder").join(format!("{}.sock", scene.name));
    for bytes in [&b""[..], b"\n", b"{\n", b"[1]\n", b"{\"listen\":\"nowhere\"}\n", &[0xff; 100_000]] {
        let mut stream = UnixStream::connect(&path).expect("the socket");
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{bytes:?}");
    }
    let info = exports::ask(&scene.name, &Query { root: true, listen: None }).expect("the export");
    assert!(info.root.is_none(), "the directory itself is not for clients of this export");
    scene.works();
}

/// A server that answers each request as `answer` says: headers and body; without headers it does not.
fn hostile_server(answer: impl Fn(&Request<'_>) -> (Vec<u8>, Vec<u8>) + Send + 'static) -> String {
    let node = Node::open("").expect("a node");
    let address = node.address().expect("its address");
    let context = node.context().expect("a context");
    node.serve(SERVICE, Serve::Tagged(context)).expect("a service");
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let Ok(received) = node.receive_tagged(RecvFrom::Any(context), 0, u64::MAX, &mut buffer, LIMIT) else {
                return;
            };
            let Some((request, _)) = parse_request(&buffer[..received.length]) else { continue };
            let (headers, body) = match request.operation {
                Operation::Attach { resume, .. } => {
                    let (key, resumed) =
                        (SessionKey([1; 16]), if resume.is_some() { Resumed::Whole } else { Resumed::Nothing });
                    let result =
                        Ok(Reply::Attached { key, read_only: false, resumed, identities: false, boot: [2; 16] });
                    let mut headers = Vec::new();
                    append(&Answer { sequence: 0, result }, &mut headers);
                    (headers, Vec::new())
                }
                _ => answer(&request),
            };
            if headers.is_empty() {
                continue;
            }
            let (channel, tag) = (received.channel, answer_tag(request.slot));
            let message = Outgoing { channel, tag, headers: &headers, mode: Mode::Automatic };
            let _ = node.send_with(&message, &[&body], LIMIT);
        }
    });
    address
}

fn answered(sequence: u32, result: Result<Reply, i32>) -> Vec<u8> {
    let mut headers = Vec::new();
    append(&Answer { sequence, result }, &mut headers);
    headers
}

/// A client of a server that opens files, and answers all else with `case`.
fn client_of_liar(
    case: impl Fn(&Request<'_>) -> (Vec<u8>, Vec<u8>) + Send + 'static,
    limit: Option<Duration>,
) -> Client {
    let address = hostile_server(move |request| match request.operation {
        Operation::Open { .. } => {
            let opened = Reply::Opened { file: 1, attributes: Attributes::default(), cached: None };
            (answered(request.sequence, Ok(opened)), vec![])
        }
        _ => case(request),
    });
    Client::connect(Source::Address(address), limit).expect("a session")
}

#[test]
fn layouts_of_a_server_that_lies_are_errors() {
    let layout = |unit, others: Vec<String>| {
        let mut bytes = Vec::new();
        append(&Layout { id: [1; 16], unit, others }, &mut bytes);
        bytes
    };
    let name = |text: &str| vec![text.to_owned()];
    let bodies = [
        vec![0xff; 100],
        vec![0; 4096],
        layout(0, name("parts")),
        layout(1, name("parts")),
        layout(65_536, vec![]),
        layout(65_536, vec!["parts".to_owned(); 16]),
        layout(65_536, name("../../other")),
        layout(65_536, name("host/x:parts")),
    ];
    for (number, body) in bodies.into_iter().enumerate() {
        let address = hostile_server(move |request| {
            let opened = Reply::Opened { file: 1, attributes: Attributes::default(), cached: None };
            (answered(request.sequence, Ok(opened)), body.clone())
        });
        let client = Client::connect(Source::Address(address), Some(Duration::from_millis(200))).expect("a session");
        assert!(client.open_file(b"x", OpenFlags::READ, 0).is_err(), "layout {number}");
    }
}

#[test]
fn a_client_of_a_server_that_lies_gets_errors() {
    let limit = Some(Duration::from_millis(200));
    // Answers that are none, of another request, of another kind, with too long a body, and with other counts.
    type Case = fn(&Request<'_>) -> (Vec<u8>, Vec<u8>);
    let cases: [Case; 5] = [
        |_| (vec![0xff; 200], vec![]),
        |request| (answered(request.sequence.wrapping_add(1), Ok(Reply::Done)), vec![]),
        |request| (answered(request.sequence, Ok(Reply::Done)), vec![]),
        |request| (answered(request.sequence, Ok(Reply::Count(10))), vec![1; 100_000]),
        |request| (answered(request.sequence, Ok(Reply::Count(u64::MAX))), vec![1; 5]),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let client = client_of_liar(case, limit);
        let (file, _) = client.open_file(b"x", OpenFlags::READ | OpenFlags::WRITE, 0).expect("a file");
        let mut buffer = [7; 10];
        assert!(file.read_at(&mut buffer, 0).is_err(), "case {number}");
        assert!(client.attributes(b"x").is_err(), "case {number}");
        if let Ok(written) = file.write_at(b"12345", 0) {
            assert!(written <= 5, "case {number}: no more is written than was asked for");
        }
        client.close();
    }
}

#[test]
fn a_completion_queue_of_a_server_that_lies_gets_errors() {
    let limit = Some(Duration::from_millis(200));
    type Case = fn(&Request<'_>) -> (Vec<u8>, Vec<u8>);
    let cases: [Case; 5] = [
        |_| (vec![0xff; 200], vec![]),
        |request| (answered(request.sequence.wrapping_add(1), Ok(Reply::Count(10))), vec![0; 10]),
        |request| (answered(request.sequence, Ok(Reply::Done)), vec![]),
        |request| (answered(request.sequence, Ok(Reply::Count(10))), vec![1; 100_000]),
        |request| (answered(request.sequence, Ok(Reply::Count(u64::MAX))), vec![1; 5]),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let client = client_of_liar(case, limit);
        let file = Arc::new(client.open_file(b"x", OpenFlags::READ | OpenFlags::WRITE, 0).expect("a file").0);
        let queue = CompletionQueue::new(&client, 4).expect("a queue");
        let read = Submission::Read { offset: 0, into: OperationMemory::Owned(vec![7; 10]) };
        queue.submit(&file, read, 1).expect("submitted");
        assert!(queue.wait(LIMIT).expect("a completion").result.is_err(), "case {number}");
        client.close();
    }
}

#[test]
fn a_completion_queue_of_a_server_that_is_silent_is_closed() {
    let address = hostile_server(|request| match request.operation {
        Operation::Open { .. } => (
            answered(request.sequence, Ok(Reply::Opened { file: 1, attributes: Attributes::default(), cached: None })),
            vec![],
        ),
        _ => loop {
            thread::sleep(Duration::from_secs(60));
        },
    });
    let client = Client::connect(Source::Address(address), None).expect("a session");
    let file = Arc::new(client.open_file(b"x", OpenFlags::READ | OpenFlags::WRITE, 0).expect("a file").0);
    let queue = CompletionQueue::new(&client, 4).expect("a queue");
    let read = Submission::Read { offset: 0, into: OperationMemory::Owned(vec![7; 10]) };
    let write = Submission::Write { offset: 0, data: OperationMemory::Owned(vec![7; 500_000]) };
    queue.submit(&file, read, 1).expect("submitted");
    queue.submit(&file, write, 2).expect("submitted");
    let waited = thread::scope(|scope| {
        let waiter = scope.spawn(|| queue.wait(None));
        queue.close();
        waiter.join().expect("the thread")
    });
    assert!(waited.is_err() && queue.outstanding() == 0);
    client.close();
}

/// A server that ends the connection at the first request of a kind, without an answer, and says of the next session what is left of it. Returns its address, and
/// the requests of that kind with their numbers.
fn server_that_ends(
    is_last: impl Fn(&Operation<'_>) -> bool + Send + 'static,
    left: Resumed,
) -> (String, Arc<Mutex<Vec<u32>>>) {
    let node = Node::open("").expect("a node");
    let address = node.address().expect("its address");
    let context = node.context().expect("a context");
    node.serve(SERVICE, Serve::Tagged(context)).expect("a service");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let numbers = Arc::clone(&seen);
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        let receive = |buffer: &mut [u8]| node.receive_tagged(RecvFrom::Any(context), 0, u64::MAX, buffer, LIMIT);
        while let Ok(received) = receive(&mut buffer) {
            let Some((request, _)) = parse_request(&buffer[..received.length]) else { continue };
            let ends = is_last(&request.operation) && {
                let mut numbers = numbers.lock().expect("the numbers");
                numbers.push(request.sequence);
                numbers.len() == 1
            };
            if ends {
                let _ = node.disconnect(received.channel.link);
                continue;
            }
            let reply = match request.operation {
                Operation::Attach { resume, .. } => {
                    let key = SessionKey([if left == Resumed::Nothing && resume.is_some() { 2 } else { 1 }; 16]);
                    let resumed = if resume.is_some() { left } else { Resumed::Nothing };
                    Reply::Attached { key, read_only: false, resumed, identities: false, boot: [2; 16] }
                }
                Operation::Open { .. } => Reply::Opened { file: 1, attributes: Attributes::default(), cached: None },
                Operation::Append { .. } | Operation::Write { .. } => Reply::Count(4),
                Operation::Mkdir { .. } | Operation::GetAttributes(_) => Reply::Attributes(Attributes::default()),
                _ => Reply::Done,
            };
            let headers = answered(request.sequence, Ok(reply));
            let (channel, tag) = (received.channel, answer_tag(request.slot));
            let message = Outgoing { channel, tag, headers: &headers, mode: Mode::Automatic };
            let _ = node.send_with(&message, &[&[]], LIMIT);
        }
    });
    (address, seen)
}

#[test]
fn what_may_have_been_executed_is_not_sent_to_a_server_that_has_forgotten_it() {
    let flags = OpenFlags::WRITE | OpenFlags::APPEND;
    for (left, expected) in [(Resumed::Nothing, Some(5)), (Resumed::Answers, None), (Resumed::Whole, None)] {
        let result = |failed: Option<std::io::Error>| failed.and_then(|error| error.raw_os_error());
        let (address, mkdirs) = server_that_ends(|operation| matches!(operation, Operation::Mkdir { .. }), left);
        let client = Client::connect(Source::Address(address), LIMIT).expect("a session");
        assert_eq!(result(client.mkdir(b"x", 0).err()), expected, "{left:?}");
        client.mkdir(b"y", 0).expect("the next one");
        let numbers = mkdirs.lock().expect("the numbers").clone();
        assert_eq!(numbers.len(), if left == Resumed::Nothing { 2 } else { 3 }, "{left:?}");
        if left != Resumed::Nothing {
            assert_eq!(numbers[0], numbers[1], "{left:?}: the number says that it is the same");
        }
        client.close();
        // Appended by a call, in a batch, and by a completion queue.
        for way in 0..3 {
            let (address, _) = server_that_ends(|operation| matches!(operation, Operation::Append { .. }), left);
            let client = Client::connect(Source::Address(address), LIMIT).expect("a session");
            let file = Arc::new(client.open_file(b"x", flags, 0).expect("a file").0);
            let failed = match way {
                0 => file.write_at(b"text", 0).err(),
                1 => file.transfer(&mut [Transfer::Write(0, b"text")]).remove(0).err(),
                _ => {
                    let queue = CompletionQueue::new(&client, 1).expect("a queue");
                    let data = OperationMemory::Owned(b"text".to_vec());
                    queue.submit(&file, Submission::Write { offset: 0, data }, 1).expect("submitted");
                    queue.wait(LIMIT).expect("a completion").result.err()
                }
            };
            assert_eq!(result(failed), expected, "{left:?}, way {way}");
            client.close();
        }
        // What says what the file becomes is made again.
        let (address, writes) = server_that_ends(|operation| matches!(operation, Operation::Write { .. }), left);
        let client = Client::connect(Source::Address(address), LIMIT).expect("a session");
        let (file, _) = client.open_file(b"x", OpenFlags::WRITE, 0).expect("a file");
        assert_eq!(file.write_at(b"text", 0).expect("a write"), 4, "{left:?}");
        assert_eq!(writes.lock().expect("the numbers").len(), 2, "{left:?}");
        client.close();
    }
}

/// A server that does not answer reads at first, as if they had been lost. Returns its address, whether it is silent, and how many requests were out of order.
fn forgetful_server() -> (String, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (is_silent, disorder) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (silent, wrong) = (Arc::clone(&is_silent), Arc::clone(&disorder));
    let last = Mutex::new([0; SLOTS as usize]);
    let address = hostile_server(move |request| {
        if silent.load(Ordering::SeqCst) && matches!(request.operation, Operation::Read { .. }) {
            return (vec![], vec![]);
        }
        let mut last = last.lock().expect("the numbers");
        let before = &mut last[usize::from(request.slot)];
        if request.sequence != *before && request.sequence != *before + 1 {
            wrong.fetch_add(1, Ordering::SeqCst);
        }
        *before = request.sequence;
        let reply = match request.operation {
            Operation::Open { .. } => Reply::Opened { file: 1, attributes: Attributes::default(), cached: None },
            Operation::Read { .. } => return (answered(request.sequence, Ok(Reply::Count(3))), vec![1; 3]),
            _ => Reply::Done,
        };
        (answered(request.sequence, Ok(reply)), vec![])
    });
    (address, is_silent, disorder)
}

/// Requests without an answer leave their slots with numbers that the server may know or not. The next ones in these slots are in order all the same.
#[test]
fn a_client_goes_on_in_the_slots_of_requests_without_an_answer() {
    let (address, is_silent, disorder) = forgetful_server();
    let client = Client::connect(Source::Address(address), Some(Duration::from_millis(200))).expect("a session");
    let file = Arc::new(client.open_file(b"x", OpenFlags::READ, 0).expect("a file").0);
    let read = || Submission::Read { offset: 0, into: OperationMemory::Owned(vec![7; 10]) };
    let queue = CompletionQueue::new(&client, MAX_QUEUED).expect("a queue");
    for number in 0..5 {
        queue.submit(&file, read(), number).expect("submitted");
    }
    for _ in 0..5 {
        assert!(queue.wait(LIMIT).expect("a completion").result.is_err());
    }
    let mut buffers = [[0; 10]; 4];
    assert!(file.read_at(&mut buffers[0], 0).is_err());
    let mut reads: Vec<_> = buffers.iter_mut().map(|buffer| Transfer::Read(0, buffer)).collect();
    assert!(file.transfer(&mut reads).iter().all(Result::is_err));
    is_silent.store(false, Ordering::SeqCst);
    for _ in 0..10 {
        assert_eq!(file.read_at(&mut [0; 10], 0).expect("read"), 3);
    }
    for read in file.transfer(&mut reads) {
        assert_eq!(read.expect("read"), 3);
    }
    for _ in 0..3 {
        for number in 0..MAX_QUEUED as u64 {
            queue.submit(&file, read(), number).expect("submitted");
        }
        for _ in 0..MAX_QUEUED {
            assert_eq!(queue.wait(LIMIT).expect("a completion").result.expect("read"), 3);
        }
    }
    assert_eq!(disorder.load(Ordering::SeqCst), 0);
    client.close();
}

#[test]
fn subscriptions_and_acknowledgements_out_of_order_end_the_link() {
    let scene = Scene::new();
    let acknowledge = |raw: &Raw, number: u32| {
        let mut bytes = Vec::new();
        append(&number, &mut bytes);
        raw.send(acknowledgement_tag(), &bytes);
    };
    let raw = Raw::connect(&scene);
    raw.request(0, 0, 0, Operation::Subscribe { session: SessionKey([9; 16]) });
    assert_eq!(raw.answer(0), None, "of no session");
    let raw = Raw::attached(&scene);
    acknowledge(&raw, 0);
    assert_eq!(raw.answer(1), None, "without a subscription");
    for message in [&[][..], &[0xff; 8], &[0xff; 100], &[5]] {
        let (raw, key) = Raw::with_session(&scene);
        let notices = Raw::connect(&scene);
        notices.request(0, 0, 0, Operation::Subscribe { session: key });
        assert_eq!(notices.answer(0), Some(Ok(Reply::Done)));
        notices.send(acknowledgement_tag(), message);
        assert_eq!(notices.answer(1), None, "{} bytes that acknowledge no notice", message.len());
        raw.request(1, 1, 0, Operation::Statfs);
        assert!(matches!(raw.answer(1), Some(Ok(Reply::Space(_)))), "the session goes on without notices");
    }
    let (raw, key) = Raw::with_session(&scene);
    raw.request(0, 0, 0, Operation::Subscribe { session: key });
    assert_eq!(raw.answer(0), None, "on the channel of the session");
    // A client that subscribes and never acknowledges delays a change by half a second, and is not waited for again.
    let (raw, key) = Raw::with_session(&scene);
    let notices = Raw::connect(&scene);
    notices.request(0, 0, 0, Operation::Subscribe { session: key });
    assert_eq!(notices.answer(0), Some(Ok(Reply::Done)));
    fs::write(scene.folder.path().join("check"), b"there").expect("a file");
    raw.request(1, 1, 0, Operation::GetAttributes(Target::Path(b"check")));
    assert!(matches!(raw.answer(1), Some(Ok(Reply::Attributes(_)))));
    scene.works();
    assert_eq!(notices.answer(1), None, "its subscription has ended");
}
