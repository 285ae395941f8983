//! Two clients at a time.

use crate::scene::{MODES, Mode, Mounted, Second, can_mount, is_root};
use std::fs;
use std::io::ErrorKind;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn of_two_clients_that_want_a_name_exactly_one_gets_it() {
    const ROUNDS: usize = 200;
    if !can_mount("of_two_clients_that_want_a_name_exactly_one_gets_it") {
        return;
    }
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let second = Second::of(&mounted);
        for round in 0..ROUNDS {
            fs::write(mounted.exported(&format!("file-{round}")), round.to_string()).expect("a file");
        }
        let folders = [mounted.folder.path(), second.folder()];
        // Each counts the files that it has moved, and the names that it has made.
        let race = |client: usize| {
            let (folder, mut moved, mut made) = (folders[client], Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let to = folder.join(format!("moved-{round}-{client}"));
                match fs::rename(folder.join(format!("file-{round}")), to) {
                    Ok(()) => moved.push(round),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                }
                let mut options = fs::OpenOptions::new();
                match options.write(true).create_new(true).open(folder.join(format!("made-{round}"))) {
                    Ok(_) => made.push(round),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
                }
            }
            (moved, made)
        };
        let [one, two] = thread::scope(|scope| {
            let racers = [0, 1].map(|client| scope.spawn(move || race(client)));
            racers.map(|racer| racer.join().expect("a client"))
        });
        for (won, what) in [([&one.0, &two.0], "moved"), ([&one.1, &two.1], "made")] {
            let mut all: Vec<usize> = won.into_iter().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..ROUNDS).collect::<Vec<_>>(), "{mode:?}: {what} by exactly one");
        }
        for (client, moved) in [&one.0, &two.0].into_iter().enumerate() {
            for round in moved {
                let content = fs::read_to_string(mounted.exported(&format!("moved-{round}-{client}")));
                assert_eq!(content.expect("the file"), round.to_string());
            }
        }
        assert_eq!(fs::read_dir(mounted.exported.path()).expect("the directory").count(), 2 * ROUNDS);
    }
}

#[test]
fn records_that_two_clients_append_are_whole() {
    if !can_mount("records_that_two_clients_append_are_whole") {
        return;
    }
    // Part of a request, longer than one, and nearly as long as the kernel writes at once.
    const LENGTHS: [usize; 4] = [24, 3000, 40_000, 1_000_000];
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let second = Second::of(&mounted);
        let append = |path: &Path, client: u8| {
            let mut file = fs::OpenOptions::new().append(true).create(true).open(path).expect("the log");
            for round in 0..20_u8 {
                let length = LENGTHS[usize::from(round) % LENGTHS.len()];
                let mut record = vec![b'a' + client; length];
                record[..8].copy_from_slice(&(length as u64).to_le_bytes());
                record[8] = round;
                record[9] = client;
                assert_eq!(file.write(&record).expect("a write"), length, "a record is written at once");
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| append(&mounted.path("log"), 0));
            scope.spawn(|| append(&second.path("log"), 1));
        });
        let log = fs::read(mounted.exported("log")).expect("the log");
        let (mut rest, mut next) = (&log[..], [0_u8; 2]);
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().expect("8 bytes")) as usize;
            let (record, behind) = rest.split_at(length);
            let client = usize::from(record[9]);
            assert_eq!(record[8], next[client], "{mode:?}: each client's records are in order");
            assert!(
                record[10..].iter().all(|&byte| byte == b'a' + client as u8),
                "{mode:?}: a record of {length} bytes is whole"
            );
            next[client] += 1;
            rest = behind;
        }
        assert_eq!(next, [20, 20], "{mode:?}: no record is lost");
    }
}

/// Two mounts of one export, given as arguments: what one has mapped and written, the other sees.
const MAPPING: &str = r#"
import mmap, os, sys
one, two, at_once = sys.argv[1] + "/file", sys.argv[2] + "/file", sys.argv[3] == "at once"
with open(one, "wb") as file: file.write(b"." * 20000)
seen = open(two, "rb", buffering=0) if at_once else None
mapped_there = mmap.mmap(seen.fileno(), 0, prot=mmap.PROT_READ) if at_once else None
for round in range(20):
    with open(one, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        text = f"round {round}".encode()
        mapped[9000:9000 + len(text)] = text
        if at_once:
            assert mapped_there[9000:9000 + len(text)] == text, round
            assert os.pread(seen.fileno(), len(text), 9000) == text, round
        mapped.flush(); mapped.close()
    with open(two, "rb") as file: assert file.read()[9000:9000 + len(text)] == text, round
    with open(two, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        assert mapped[9000:9000 + len(text)] == text, round
        mapped[100:100 + len(text)] = text
        mapped.flush(); mapped.close()
    with open(one, "rb") as file: assert file.read()[100:100 + len(text)] == text, round
print("seen")
"#;

#[test]
fn mapped_memory_is_seen_by_the_other_client() {
    if !can_mount("mapped_memory_is_seen_by_the_other_client") {
        return;
    }
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let second = Second::of(&mounted);
        // The kernel reads and writes the files itself for root only (FUSE passthrough).
        let when = if mode == Mode::Direct && is_root() { "at once" } else { "after close" };
        let mut command = Command::new("python3");
        command.args(["-c", MAPPING]).arg(mounted.folder.path()).arg(second.folder()).arg(when);
        let output = command.output().expect("python3");
        assert_eq!(output.stdout, b"seen\n", "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_file_is_never_seen_half_replaced() {
    if !can_mount("a_file_is_never_seen_half_replaced") {
        return;
    }
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let second = Second::of(&mounted);
        let content = |round: u64| format!("{round:08}").repeat(500);
        fs::write(mounted.path("file"), content(0)).expect("a file");
        let (done, reads) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = 0;
                while done.load(Ordering::Acquire) == 0 {
                    let text = fs::read_to_string(second.path("file")).expect("the name is always there");
                    let round: u64 = text[..8].parse().expect("a number");
                    assert!(text == content(round) && round >= last, "{mode:?}: {round} after {last}");
                    last = round;
                    reads.fetch_add(1, Ordering::AcqRel);
                }
            });
            // At least this often, and until some were seen.
            let mut round = 0;
            while round < 150 || reads.load(Ordering::Acquire) < 20 {
                round += 1;
                fs::write(mounted.path("next"), content(round)).expect("a file");
                fs::rename(mounted.path("next"), mounted.path("file")).expect("renamed");
                if round % 50 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            done.store(1, Ordering::Release);
        });
    }
}

#[test]
fn a_name_that_is_replaced_all_the_time_is_always_there() {
    if !can_mount("a_name_that_is_replaced_all_the_time_is_always_there") {
        return;
    }
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let second = Second::asking(&mounted);
        fs::write(mounted.path("file"), "0").expect("a file");
        let (done, calls) = (AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
        thread::scope(|scope| {
            let repeat = |call: usize, make: &dyn Fn(&Path) -> std::io::Result<()>| {
                while done.load(Ordering::Acquire) == 0 {
                    make(&second.path("file")).unwrap_or_else(|error| panic!("{mode:?}: call {call}: {error}"));
                    calls[call].fetch_add(1, Ordering::AcqRel);
                }
            };
            scope.spawn(move || repeat(0, &|path| fs::read(path).map(drop)));
            scope.spawn(move || repeat(1, &|path| fs::metadata(path).map(drop)));
            // A failed call ends its thread, and is not waited for.
            let (mut round, limit) = (0, Instant::now() + Duration::from_secs(60));
            while round < 300 || calls.iter().any(|calls| calls.load(Ordering::Acquire) < 200) && Instant::now() < limit
            {
                round += 1;
                fs::write(mounted.path("next"), round.to_string()).expect("a file");
                fs::rename(mounted.path("next"), mounted.path("file")).expect("renamed");
            }
            done.store(1, Ordering::Release);
        });
        // A file that is replaced once is seen as the new one, with its number.
        let number = fs::metadata(mounted.path("file")).expect("the file").ino();
        assert_eq!(fs::metadata(second.path("file")).expect("the file").ino(), number, "{mode:?}");
    }
}
