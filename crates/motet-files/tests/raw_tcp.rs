//! Clients that speak to a server over plain TCP connections and misbehave: other clients are served meanwhile, and nothing of the bad ones stays.

mod scene;
mod wire;

use motet_files::client::{Client, Source};
use motet_files::exports::{self, Query};
use motet_files::protocol::{
    LockKind, LockRange, LockWait, MAX_DATA_BYTES, OpenFlags, Operation, Reply, Resumed, SLOTS, SessionKey, Target,
    VERSION, acknowledgement_tag, data_tag, request_tag,
};
use motet_files::server::{Options, Server};
use motet_proto::message::packet::{Head, Hello, Kind};
use motet_proto::message::slab::SlabId;
use scene::Scene;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};
use wire::{ORDINARY, Wire, tcp_part};

/// A client that is waited for is given up after 10 s, and no earlier. Who is served before that has not waited for it.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// How long anything may take on a loaded host.
const LIMIT: Duration = Duration::from_secs(60);
const NEW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::CREATE);

impl Scene {
    /// A client that keeps the protocol has its requests executed: short ones, and data of several lengths both ways.
    fn serve_another(&self) {
        let address = tcp_part(&self.address());
        let client = Client::connect(Source::Address(address), Some(LIMIT)).expect("a client");
        let (file, _) = client.open_file(b"good", NEW, 0o644).expect("a file");
        for length in [10, 40_000, MAX_DATA_BYTES] {
            let bytes: Vec<_> = (0..length).map(|at| (at * 7 + length) as u8).collect();
            assert_eq!(file.write_at(&bytes, 0).expect("a write"), length);
            let mut read = vec![0; length];
            assert_eq!(file.read_at(&mut read, 0).expect("a read"), length);
            assert!(read == bytes, "{length} bytes");
        }
        client.mkdir(b"directory", 0o755).expect("a directory");
        client.unlink(b"directory", true).expect("removed");
        drop(file);
        client.close();
    }

    /// Whether another client is served although these clients misbehave. Each round has new ones, which could be given up during a slow round.
    fn serves_beside<T>(&self, misbehave: impl Fn() -> T) {
        for _ in 0..5 {
            let began = Instant::now();
            let bad = misbehave();
            self.serve_another();
            let elapsed = began.elapsed();
            drop(bad);
            self.is_free();
            if elapsed < GIVEN_UP_AFTER {
                return;
            }
        }
        panic!("others are served only when the bad clients have been given up");
    }

    /// Waits until the server has neither clients nor open files.
    fn is_free(&self) {
        let until = Instant::now() + LIMIT;
        loop {
            let info = exports::ask(&self.name, &Query::default()).expect("the export").info;
            if (info.clients, info.open_files, info.locks) == (0, 0, 0) {
                return;
            }
            assert!(Instant::now() < until, "{} clients, {} open files", info.clients, info.open_files);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Another server takes the place of this one, with the name and the folder.
    fn restart(&mut self) {
        let (name, directory) = (self.name.clone(), self.folder.path().to_owned());
        let free =
            Server::start(Options { name: format!("{name}-x"), directory: directory.clone(), ..Options::default() });
        drop(std::mem::replace(&mut self.server, free.expect("a server")));
        let listen = Some("127.0.0.1:0".parse().expect("an address"));
        let options = Options { name, directory, listen, ..Options::default() };
        self.server = Server::start(options).expect("a server");
    }

    /// Removes what the server has noted of clients that have lost their locks.
    fn forget(self) {
        let folder = motet_session::paths::exports_folder().expect("the folder of exports");
        fs::remove_file(folder.join(format!("{}.lost", self.name))).expect("the file");
    }

    /// A file with this content.
    fn file(&self, name: &str, length: usize) {
        fs::write(self.folder.path().join(name), vec![7; length]).expect("a file");
    }
}

/// Opens a file; returns its number.
fn open(wire: &mut Wire, (slot, sequence): (u16, u32), path: &[u8]) -> u32 {
    wire.request(slot, sequence, 0, Operation::Open { path, flags: NEW, mode: 0o600 });
    match wire.answer(slot) {
        Some(Ok(Reply::Opened { file, .. })) => file,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn packets_that_are_none_end_the_connection() {
    let scene = Scene::new();
    let address = scene.address();
    type Break = fn(&mut Wire);
    let breaks: [(&str, Break); 12] = [
        ("a message shorter than its head", |wire| wire.packet(Kind::Message, &[0; 3])),
        ("a message without a tag", |wire| wire.packet(Kind::Message, &wire.head().write())),
        ("an announcement that is cut off", |wire| wire.packet(Kind::Rts, &[1; 20])),
        ("an unknown kind", |wire| {
            let frame = wire.frame_at(wire.put, 99, &[0; 16]);
            wire.raw(&frame);
        }),
        ("a frame longer than any", |wire| {
            let mut frame = wire.frame_at(wire.put, Kind::Message as u8, &[0; 16]);
            frame[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
            wire.raw(&frame);
        }),
        ("a frame that overlaps the one before", |wire| {
            let frame = wire.frame_at(wire.put - 5, Kind::Message as u8, &[0; 100]);
            wire.raw(&frame);
        }),
        ("an acknowledgement of what was not sent", |wire| {
            wire.taken += 1 << 20;
            wire.packet(Kind::Grant, &wire.head().write());
        }),
        ("no frame at all", |wire| wire.raw(&[0xff; 4096])),
        ("a piece of nothing", |wire| wire.piece(9, 0, &[1; 100])),
        ("data with an impossible number", |wire| wire.announce_data(1, 100, 0xf_ffff)),
        ("two announcements of one number", |wire| {
            wire.announce_data(1, 100, 1);
            wire.announce_data(2, 100, 1);
        }),
        ("a request to send what was not announced", |wire| {
            wire.packet(Kind::Cts, &Head { to: SlabId(77), own: 0, grant: 0 }.write_word(1000));
        }),
    ];
    for (what, break_protocol) in breaks {
        let (mut wire, _) = Wire::attached(&address);
        open(&mut wire, (1, 1), b"open");
        break_protocol(&mut wire);
        assert!(wire.is_ended(), "{what}");
    }
    scene.serve_another();
    scene.is_free();
}

#[test]
fn requests_with_wrong_slots_numbers_and_lengths_end_the_connection() {
    let scene = Scene::new();
    let address = scene.address();
    let write = |file| Operation::Write { file, offset: 0 };
    type Break = fn(&mut Wire, u32);
    let statfs = |slot, sequence| Wire::request_bytes(slot, sequence, 0, Operation::Statfs);
    for (slot, sequence) in [(SLOTS, 1), (u16::MAX, 1), (2, 2), (2, u32::MAX), (1, 0)] {
        let (mut wire, _) = Wire::attached(&address);
        open(&mut wire, (1, 1), b"open");
        wire.message(request_tag(slot), &statfs(slot, sequence));
        assert!(wire.is_ended(), "slot {slot}, number {sequence}");
    }
    let breaks: [(&str, Break); 8] = [
        ("a slot that is not that of the message", |wire, _| {
            wire.message(request_tag(3), &Wire::request_bytes(2, 1, 0, Operation::Statfs));
        }),
        ("half a request", |wire, _| {
            let bytes = Wire::request_bytes(2, 1, 0, Operation::GetAttributes(Target::Path(b"open")));
            wire.message(request_tag(2), &bytes[..bytes.len() / 2]);
        }),
        ("data behind a request that has none", |wire, _| {
            let mut bytes = Wire::request_bytes(2, 1, 0, Operation::Statfs);
            bytes.push(1);
            wire.message(request_tag(2), &bytes);
        }),
        ("more data than are ever taken", |wire, file| {
            wire.request(2, 1, MAX_DATA_BYTES as u32 + 1, Operation::Write { file, offset: 0 });
        }),
        ("data of an operation that has none", |wire, _| wire.request(2, 1, 1000, Operation::Statfs)),
        ("fewer data than announced", |wire, file| {
            wire.request(2, 1, 1000, Operation::Write { file, offset: 0 });
            wire.message(data_tag(2), &[1; 999]);
        }),
        ("more data than announced", |wire, file| {
            wire.request(2, 1, 1000, Operation::Write { file, offset: 0 });
            wire.message(data_tag(2), &[1; 1001]);
        }),
        ("a longer message than announced", |wire, file| {
            wire.request(2, 1, 1000, Operation::Write { file, offset: 0 });
            wire.announce_data(2, 1 << 40, 5);
            if let Some(end) = wire.clear_to_send() {
                wire.piece(5, 0, &vec![1; end as usize]);
            }
        }),
    ];
    for (what, break_protocol) in breaks {
        let (mut wire, _) = Wire::attached(&address);
        let file = open(&mut wire, (1, 1), b"open");
        break_protocol(&mut wire, file);
        assert!(wire.is_ended(), "{what}");
    }
    let (mut wire, _) = Wire::attached(&address);
    for sequence in 1..200 {
        // More requests than slots, of a client that is waited for.
        wire.request(2, sequence, 1000, write(0));
    }
    assert!(wire.is_ended(), "more requests than slots");
    assert_eq!(fs::read(scene.folder.path().join("open")).expect("the file"), b"", "nothing was written");
    scene.serve_another();
    scene.is_free();
}

#[test]
fn what_is_sent_twice_is_executed_once() {
    let scene = Scene::new();
    let (mut wire, key) = Wire::attached(&scene.address());
    // The frame comes twice: the session drops the second one.
    let body = Wire::request_bytes(1, 1, 0, Operation::Mkdir { path: b"one", mode: 0o755 });
    let packet = wire.message_packet(request_tag(1), &body);
    let before = wire.put;
    wire.packet(Kind::Message, &packet);
    let again = wire.frame_at(before, Kind::Message as u8, &packet);
    wire.raw(&again);
    assert!(matches!(wire.answer(1), Some(Ok(Reply::Attributes(_)))));
    // The request comes twice: the answer is repeated.
    for _ in 0..3 {
        wire.request(1, 1, 0, Operation::Mkdir { path: b"one", mode: 0o755 });
        assert!(matches!(wire.answer(1), Some(Ok(Reply::Attributes(_)))), "the answer is repeated");
    }
    wire.request(1, 2, 0, Operation::Mkdir { path: b"one", mode: 0o755 });
    assert_eq!(wire.answer(1), Some(Err(17)), "EEXIST");
    // Data come twice.
    let file = open(&mut wire, (2, 1), b"appended");
    for _ in 0..2 {
        wire.request(3, 1, 5000, Operation::Write { file, offset: 0 });
        wire.message(data_tag(3), &[9; 5000]);
        assert_eq!(wire.answer(3), Some(Ok(Reply::Count(5000))));
    }
    // Another connection goes on with the session: the first one has lost it, and its requests are not executed.
    let mut second = Wire::connect(&scene.address(), ORDINARY);
    second.request(0, 0, 0, Operation::Attach { version: VERSION, resume: Some(key) });
    assert!(matches!(second.answer(0), Some(Ok(Reply::Attached { resumed: Resumed::Whole, .. }))));
    second.request(1, 2, 0, Operation::Mkdir { path: b"one", mode: 0o755 });
    assert_eq!(second.answer(1), Some(Err(17)), "the answer is repeated there");
    wire.request(1, 3, 0, Operation::Mkdir { path: b"two", mode: 0o755 });
    assert!(wire.is_ended());
    assert!(!scene.folder.path().join("two").exists());
    // A session that does not exist.
    let mut guess = Wire::connect(&scene.address(), ORDINARY);
    guess.request(0, 0, 0, Operation::Subscribe { session: SessionKey([3; 16]) });
    assert!(guess.is_ended());
    drop((wire, second, guess));
    scene.serve_another();
    scene.is_free();
}

#[test]
fn what_was_executed_is_known_after_the_files_of_a_session_have_ended() {
    let scene = Scene::new();
    let (mut wire, key) = Wire::attached(&scene.address());
    let new = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::APPEND;
    let opened = |wire: &mut Wire, slot, flags| {
        wire.request(slot, 1, 0, Operation::Open { path: b"log", flags, mode: 0o644 });
        match wire.answer(slot) {
            Some(Ok(Reply::Opened { file, .. })) => file,
            answer => panic!("{answer:?}"),
        }
    };
    let file = opened(&mut wire, 1, new);
    let mkdir = Operation::Mkdir { path: b"made", mode: 0o755 };
    wire.request(2, 1, 0, mkdir.clone());
    assert!(matches!(wire.answer(2), Some(Ok(Reply::Attributes(_)))));
    let append = |wire: &mut Wire, sequence, file| {
        wire.request(3, sequence, 5000, Operation::Append { file });
        wire.message(data_tag(3), &[9; 5000]);
        wire.answer(3)
    };
    assert_eq!(append(&mut wire, 1, file), Some(Ok(Reply::Count(5000))));
    let exclusive = Operation::Open { path: b"new", flags: new | OpenFlags::EXCLUSIVE, mode: 0o644 };
    wire.request(4, 1, 0, exclusive.clone());
    assert!(matches!(wire.answer(4), Some(Ok(Reply::Opened { .. }))));
    drop(wire);
    scene.is_free();
    // The client is back after a long outage, and asks for all of it again.
    let mut wire = Wire::connect(&scene.address(), ORDINARY);
    wire.request(0, 0, 0, Operation::Attach { version: VERSION, resume: Some(key) });
    assert!(
        matches!(wire.answer(0), Some(Ok(Reply::Attached { resumed: Resumed::Answers, key: same, .. })) if same == key)
    );
    wire.request(2, 1, 0, mkdir);
    assert!(matches!(wire.answer(2), Some(Ok(Reply::Attributes(_)))), "it is not told that the directory exists");
    assert_eq!(append(&mut wire, 1, file), Some(Ok(Reply::Count(5000))));
    wire.request(4, 1, 0, exclusive);
    assert_eq!(wire.answer(4), Some(Err(5)), "EIO: it was made, and its number is lost");
    assert_eq!(append(&mut wire, 2, file), Some(Err(9)), "EBADF: the file is closed");
    let file = opened(&mut wire, 1, new);
    assert_eq!(append(&mut wire, 3, file), Some(Ok(Reply::Count(5000))));
    let log = fs::read(scene.folder.path().join("log")).expect("the file");
    assert_eq!(log.len(), 10_000, "the first one is there once");
    drop(wire);
    scene.serve_another();
    scene.is_free();
}

/// A client that was away for so long that its locks were released. Returns what it gets when it takes its lock again.
fn locked_again(scene: &Scene, key: SessionKey, expected: Resumed) -> Option<Result<Reply, i32>> {
    let mut wire = Wire::connect(&scene.address(), ORDINARY);
    wire.request(0, 0, 0, Operation::Attach { version: VERSION, resume: Some(key) });
    assert!(matches!(wire.answer(0), Some(Ok(Reply::Attached { resumed, .. })) if resumed == expected));
    let file = open(&mut wire, (5, 1), b"locked");
    wire.request(6, 1, 0, Operation::Lock { file, owner: 1, range: WHOLE, wait: LockWait::Again });
    wire.answer(6)
}

const WHOLE: LockRange = LockRange { kind: LockKind::Exclusive, start: 0, end: u64::MAX, process: 0 };

/// A client that locks a file and goes. Returns its session, whose files have ended.
fn locks_and_goes(scene: &Scene) -> SessionKey {
    let (mut wire, key) = Wire::attached(&scene.address());
    let file = open(&mut wire, (1, 1), b"locked");
    wire.request(2, 1, 0, Operation::Lock { file, owner: 1, range: WHOLE, wait: LockWait::No });
    assert_eq!(wire.answer(2), Some(Ok(Reply::Done)));
    drop(wire);
    scene.is_free();
    key
}

#[test]
fn a_lock_that_was_lost_in_an_outage_is_not_taken_again_if_another_client_has_had_it() {
    let scene = Scene::new();
    scene.file("locked", 1);
    let key = locks_and_goes(&scene);
    assert_eq!(locked_again(&scene, key, Resumed::Answers), Some(Ok(Reply::Done)), "no other client has had it");
    scene.is_free();
    let key = locks_and_goes(&scene);
    locks_and_goes(&scene);
    assert_eq!(locked_again(&scene, key, Resumed::Answers), Some(Err(116)), "ESTALE: it was another client's");
    scene.is_free();
    scene.forget();
}

#[test]
fn a_restarted_server_gives_no_lock_back_that_the_one_before_has_released() {
    let mut scene = Scene::new();
    scene.file("locked", 1);
    let (mut wire, held) = Wire::attached(&scene.address());
    let file = open(&mut wire, (1, 1), b"locked");
    let shared = LockRange { kind: LockKind::Shared, ..WHOLE };
    wire.request(2, 1, 0, Operation::Lock { file, owner: 1, range: shared, wait: LockWait::No });
    assert_eq!(wire.answer(2), Some(Ok(Reply::Done)));
    scene.restart();
    assert_eq!(locked_again(&scene, held, Resumed::Nothing), Some(Ok(Reply::Done)), "it was held until the restart");
    scene.is_free();
    let released = locks_and_goes(&scene);
    scene.restart();
    assert_eq!(locked_again(&scene, released, Resumed::Nothing), Some(Err(116)), "ESTALE");
    scene.is_free();
    scene.forget();
}

#[test]
fn announced_data_that_do_not_come_delay_no_other_client() {
    let scene = Scene::new();
    let write = Operation::Write { file: 0, offset: 0 };
    scene.serves_beside(|| {
        let (mut silent, _) = Wire::attached(&scene.address());
        let (mut announces, _) = Wire::attached(&scene.address());
        let (mut stops, _) = Wire::attached(&scene.address());
        for slot in 1..SLOTS {
            silent.request(slot, 1, 1 << 20, write.clone());
            announces.request(slot, 1, 1 << 20, write.clone());
            announces.announce_data(slot, 1 << 20, u32::from(slot));
            stops.request(slot, 1, 1 << 20, write.clone());
            stops.announce_data(slot, 1 << 20, u32::from(slot));
        }
        // It sends what was asked for, except for the last byte.
        if let Some(end) = stops.clear_to_send() {
            let bytes = vec![1; end.min(60_000) as usize - 1];
            stops.piece(1, 0, &bytes);
        }
        (silent, announces, stops)
    });
    // One that stays is given up.
    let (mut silent, _) = Wire::attached(&scene.address());
    silent.request(1, 1, 1 << 20, write.clone());
    assert!(silent.is_ended());
    scene.is_free();
}

/// A request is taken by any of the receives that the server has for those of all clients.
#[test]
fn requests_that_do_not_come_whole_delay_no_other_client() {
    let scene = Scene::new();
    scene.serves_beside(|| {
        [request_tag, |_| acknowledgement_tag()].map(|tag| {
            let (mut announces, _) = Wire::attached(&scene.address());
            let (mut stops, _) = Wire::attached(&scene.address());
            for number in 1..200 {
                announces.announce(tag(number % SLOTS), 8, u32::from(number));
                stops.begin(tag(number % SLOTS), 8, u32::from(number), &[1; 4]);
            }
            (announces, stops)
        })
    });
}

#[test]
fn answers_that_are_not_taken_delay_no_other_client() {
    let scene = Scene::new();
    scene.file("long", MAX_DATA_BYTES);
    scene.file("short", 20_000);
    // A client that never reads its connection; one whose server may send nothing but announcements, of which it takes no data; and one of a few answers.
    let hellos = [
        ORDINARY,
        Hello { window: 8, max_rendezvous: 8, channels: 1, requests: 0 },
        Hello { window: 64, max_rendezvous: 0, channels: 1, requests: 0 },
    ];
    scene.serves_beside(|| {
        hellos.map(|hello| {
            let mut wire = Wire::connect(&scene.address(), hello);
            wire.attach();
            for (slot, path) in [(1, &b"long"[..]), (2, b"short")] {
                wire.request(slot, 1, 0, Operation::Open { path, flags: OpenFlags::READ, mode: 0 });
            }
            // The numbers of the files are not known: those of other clients' files are none of it.
            for file in 0..4 {
                for slot in 3 + file * 15..18 + file * 15 {
                    let file = u32::from(file);
                    wire.request(slot, 1, 0, Operation::Read { file, offset: 0, length: 1 << 20 });
                }
            }
            wire
        })
    });
    // One that stays is given up, and its files are closed.
    let mut wire = Wire::connect(&scene.address(), ORDINARY);
    wire.attach();
    let file = open(&mut wire, (1, 1), b"long");
    for slot in 2..SLOTS {
        wire.request(slot, 1, 0, Operation::Read { file, offset: 0, length: 1 << 20 });
    }
    scene.is_free();
    drop(wire);
    // The server's first answer finds no room.
    let mut wire = Wire::connect(&scene.address(), Hello { window: 0, max_rendezvous: 0, channels: 1, requests: 0 });
    wire.request(0, 0, 0, Operation::Attach { version: VERSION, resume: None });
    assert!(wire.is_ended());
    scene.serve_another();
    scene.is_free();
}

/// What is sent of data before a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Nothing,
    Frame,
    Data,
}

#[test]
fn a_connection_that_ends_in_the_midst_of_data_leaves_nothing() {
    let scene = Scene::new();
    scene.file("file", 1000);
    for cut in [Cut::Nothing, Cut::Frame, Cut::Data] {
        for breaks_off in [false, true] {
            let (mut wire, _) = Wire::attached(&scene.address());
            let file = open(&mut wire, (1, 1), b"file");
            wire.request(2, 1, 200_000, Operation::Write { file, offset: 0 });
            wire.announce_data(2, 200_000, 3);
            let end = wire.clear_to_send().expect("the server asks for the data");
            let bytes = vec![1; end.min(60_000) as usize];
            // Reads under way as well: their answers have nowhere to go.
            for slot in 3..20 {
                wire.request(slot, 1, 0, Operation::Read { file, offset: 0, length: 1000 });
            }
            match cut {
                Cut::Nothing => {}
                Cut::Data => wire.piece(3, 0, &bytes),
                Cut::Frame => {
                    let packet =
                        [&Head { to: SlabId(1 << 20 | 3), own: 0, grant: 0 }.write_word(0)[..], &bytes].concat();
                    let frame = wire.frame_at(wire.put, Kind::Piece as u8, &packet);
                    wire.raw(&frame[..frame.len() / 2]);
                }
            }
            if breaks_off {
                wire.break_off();
            }
        }
        scene.serve_another();
    }
    scene.is_free();
    assert_eq!(fs::read(scene.folder.path().join("file")).expect("the file"), [7; 1000]);
}

#[test]
fn many_bad_clients_delay_no_other_one() {
    let scene = Scene::new();
    scene.file("long", MAX_DATA_BYTES);
    scene.serves_beside(|| {
        (0..24)
            .map(|number| {
                let (mut wire, _) = Wire::attached(&scene.address());
                let file = open(&mut wire, (1, 1), b"long");
                for slot in 2..SLOTS {
                    if number % 2 == 0 {
                        wire.request(slot, 1, 1 << 20, Operation::Write { file, offset: 0 });
                    } else {
                        wire.request(slot, 1, 0, Operation::Read { file, offset: 0, length: 1 << 20 });
                    }
                }
                wire
            })
            .collect::<Vec<_>>()
    });
}
