//! Very short connections, ten thousand at once, exhausted tables and memory, peers of another version, and properties of the shared memory.

use motet_tests::programs::skip;
use motet_tests::{Mode, Outcome, Program, Running, engine, folder};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time limit of runs with thousands of connections on a busy machine.
const BUSY_TIMEOUT: Duration = Duration::from_secs(120);
const CONNECTION_COUNT: usize = 10_000;

/// The counters of a run's processes, from one line of JSON each.
struct Counts(Vec<serde_json::Value>);

impl Counts {
    fn of(run: &Outcome) -> Self {
        Self(run.counts.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect())
    }

    /// The largest value of a counter: that of the process to which all others are connected.
    fn most(&self, name: &str) -> u64 {
        self.0.iter().map(|line| line[name].as_u64().unwrap()).max().unwrap_or(0)
    }

    fn sum(&self, name: &str) -> u64 {
        self.0.iter().map(|line| line[name].as_u64().unwrap()).sum()
    }

    /// Connections of all processes that stayed on TCP for a reason.
    fn on_tcp(&self, reason: u32) -> u64 {
        self.0.iter().map(|line| line["stayed_on_tcp"][reason.to_string()].as_u64().unwrap_or(0)).sum()
    }
}

/// Held by tests with ten thousand connections: one at a time needs at most one and a half gigabytes.
static MANY_AT_ONCE: Mutex<()> = Mutex::new(());

/// Runs a program without and with Motet, with these environment variables. Returns the counters of the run under Motet.
fn counted(program: Program, environment: &[(&str, &str)]) -> (Outcome, Counts) {
    let program = environment.iter().fold(program, |program, (name, value)| program.with(name, value));
    let outcome = program.counted().same_both_ways();
    let counts = Counts::of(&outcome);
    (outcome, counts)
}

/// The command `motet` beside the engine; `None` if either is not built.
fn motet() -> Option<PathBuf> {
    let found = engine().map(|engine| engine.with_file_name("motet")).filter(|path| path.exists());
    if found.is_none() {
        skip::<()>("motet", "libmotet.so.0 and motet are not built in one folder (make build)");
    }
    found
}

/// The output of `motet ARGUMENTS --json`.
fn motet_json(motet: &Path, arguments: &[&str]) -> serde_json::Value {
    let output = Command::new(motet).args(arguments).arg("--json").env_remove("LD_PRELOAD").output().expect("motet");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn process(report: &serde_json::Value, pid: u32) -> Option<serde_json::Value> {
    report["processes"].as_array()?.iter().find(|process| process["pid"] == pid).cloned()
}

// ---- short connections ---------------------------------------------------------------------------------------------------

#[test]
fn connections_of_few_messages_never_reach_the_engine() {
    for messages in ["1", "3"] {
        let outcome = Program::c("short", &["300", messages]).same_both_ways();
        assert!(outcome.streams.is_empty(), "{} streams", outcome.streams.len());
    }
}

#[test]
fn repeated_short_connections_are_soon_left_on_tcp() {
    let (_, counts) = counted(Program::c("short", &["300", "10"]), &[]);
    assert!(counts.sum("streams") <= 2 * 8, "{} streams of 300 connections", counts.sum("streams"));
    // Connections that live longer continue to be upgraded.
    let (_, counts) = counted(Program::c("short", &["100", "100"]), &[]);
    if engine().is_some() {
        assert!(counts.sum("upgraded") >= 100, "{} of 100 connections", counts.sum("upgraded"));
    }
}

// ---- many connections ----------------------------------------------------------------------------------------------------

/// Returns whether a process may have so many descriptors.
fn may_open(count: usize) -> bool {
    let raised = Command::new("sh").args(["-c", &format!("ulimit -n {count}")]).stderr(Stdio::null()).status();
    raised.is_ok_and(|status| status.success())
}

/// Ten thousand connections, or as many as the descriptor limit allows.
fn many() -> usize {
    let found = [CONNECTION_COUNT, CONNECTION_COUNT / 4, CONNECTION_COUNT / 16]
        .into_iter()
        .find(|count| may_open(count + count / 4))
        .unwrap_or(200);
    if found < CONNECTION_COUNT {
        skip::<()>("ten thousand connections", &format!("the limit of descriptors allows {found}; those are made"));
    }
    found
}

fn all_upgraded(how: &str, count: usize, peers: usize) {
    let _one_at_a_time = MANY_AT_ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = Program::c("scale", &[how, &count.to_string(), &peers.to_string()]).within(BUSY_TIMEOUT);
    let (outcome, counts) = counted(program, &[]);
    if engine().is_none() {
        return;
    }
    assert_eq!(counts.0.len(), peers + 1);
    assert_eq!((counts.most("upgraded"), counts.sum("upgraded")), (count as u64, 2 * count as u64));
    assert_eq!(counts.most("links"), peers as u64);
    outcome.took_the_fast_path(count as u64);
}

#[test]
fn ten_thousand_connections_to_one_peer_are_all_upgraded() {
    all_upgraded("epoll", many(), 1);
}

#[test]
fn ten_thousand_connections_to_few_peers_are_all_upgraded() {
    all_upgraded("epoll", many(), 4);
}

#[test]
fn thousands_of_edge_and_one_shot_connections_are_upgraded() {
    all_upgraded("edge", 3000, 2);
    all_upgraded("oneshot", 3000, 2);
}

#[test]
fn motet_ps_and_why_show_ten_thousand_connections() {
    let Some(motet) = motet() else { return };
    let _one_at_a_time = MANY_AT_ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = many();
    let go = folder("scale").join("go");
    let _ = std::fs::remove_file(&go);
    let program = Program::c("scale", &["epoll", &count.to_string(), "2", go.to_str().unwrap()]).within(BUSY_TIMEOUT);
    let running = program.start(Mode::WithMotet);
    assert_eq!(running.first_line(), "open");
    let server = process(&motet_json(&motet, &["ps"]), running.pid()).expect("the server is listed");
    let pairs =
        process(&motet_json(&motet, &["why", &running.pid().to_string()]), running.pid()).expect("and explained");
    std::fs::write(&go, "").unwrap();
    let outcome = running.finish();
    assert!(outcome.succeeded, "{}", outcome.stderr);
    assert_eq!(server["streams"].as_array().unwrap().len(), count);
    // The path is where most bytes went; reason 0 says that the connection is upgraded.
    assert_eq!(pairs["pairs"].as_array().unwrap().iter().filter(|pair| pair["reason"] == 0).count(), count);
    // A page for the slot and two rings of at most 64 KiB; at most a hundred descriptors of the process are the engine's.
    let memory = server["memory"].as_u64().unwrap() / count as u64;
    assert!((4096..=140_000).contains(&memory), "{memory} bytes for each connection");
    assert!((1..=100).contains(&server["node"]["descriptors"].as_u64().unwrap()), "{}", server["node"]);
}

#[test]
fn memory_per_connection_follows_ring_size() {
    let Some(motet) = motet() else { return };
    let go = folder("scale").join("go-small");
    let _ = std::fs::remove_file(&go);
    let program = Program::c("scale", &["epoll", "300", "1", go.to_str().unwrap()]).with("MOTET_RING", "4KiB");
    let running = program.start(Mode::WithMotet);
    assert_eq!(running.first_line(), "open");
    let server = process(&motet_json(&motet, &["ps"]), running.pid()).expect("the server is listed");
    std::fs::write(&go, "").unwrap();
    assert!(running.finish().succeeded);
    let memory = server["memory"].as_u64().unwrap() / 300;
    assert!((4096..=3 * 4096 + 1000).contains(&memory), "{memory} bytes for each connection");
}

// ---- exhausted limits ----------------------------------------------------------------------------------------------------

#[test]
fn connections_beyond_the_table_stay_on_tcp_and_are_counted() {
    let (_, counts) = counted(Program::c("scale", &["epoll", "200", "1"]), &[("MOTET_STREAMS", "64")]);
    if engine().is_some() {
        assert_eq!(counts.0.iter().map(|line| line["streams"].as_u64().unwrap()).collect::<Vec<_>>(), [64, 64]);
        assert_eq!(counts.on_tcp(11), 2 * (200 - 64), "reason 11: the table is full");
    }
}

#[test]
fn connections_beyond_memory_limit_stay_on_tcp_at_both_ends() {
    // Room for segments of 1, 4 and 16 slots; the rest fits neither one of 16 nor one of 4 slots, but two of 1.
    let memory = (4096 * 5 + (1 + 4 + 16 + 2) * (4096 + 2 * 65536)).to_string();
    let (_, counts) = counted(Program::c("scale", &["epoll", "100", "1"]), &[("MOTET_MEMORY", &memory)]);
    if engine().is_some() {
        assert_eq!(counts.0.iter().map(|line| line["upgraded"].as_u64().unwrap()).collect::<Vec<_>>(), [23, 23]);
        assert_eq!(counts.on_tcp(26), 2 * (100 - 23), "reason 26: the limit of memory");
    }
}

#[test]
fn connections_beyond_tracked_descriptors_stay_on_tcp() {
    if !may_open(66_560) {
        return skip("too high descriptors", "the limit of descriptors cannot be raised to 66560").unwrap_or(());
    }
    let (_, counts) = counted(Program::c("high", &[]), &[]);
    if engine().is_some() {
        assert_eq!((counts.sum("upgraded"), counts.on_tcp(27)), (2, 1), "reason 27: the number is too high");
    }
}

// ---- other versions --------------------------------------------------------------------------------------------------------

/// An engine of the next version: the same sources, built with other layouts and their version numbers. `None`, with a message, without cargo.
fn next_engine() -> Option<&'static Path> {
    static NEXT: OnceLock<Option<PathBuf>> = OnceLock::new();
    NEXT.get_or_init(|| {
        engine()?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
        let target = folder("next-version");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(root)
            .args(["build", "--offline", "--locked", "-p", "motet-capi", "--target-dir"])
            .arg(&target);
        cargo
            .env("RUSTFLAGS", "--cfg motet_next_version")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("LD_PRELOAD");
        match cargo.output() {
            Ok(built) if built.status.success() => Some(target.join("debug/libmotet.so")),
            Ok(built) => panic!("the next version does not build: {}", String::from_utf8_lossy(&built.stderr)),
            Err(error) => skip("versions", &format!("no cargo to build another version with: {error}")),
        }
    })
    .as_deref()
}

fn of_version(program: Program, next: Option<&Path>) -> Program {
    match next {
        Some(path) => program.with("MOTET_LIBRARY", path.to_str().expect("UTF-8")),
        None => program,
    }
}

/// Starts a server and a client of these versions, with open gates, that exchange `rounds` messages.
fn exchange(server: Option<&Path>, client: Option<&Path>, rounds: &str) -> (Running, Running) {
    let server = of_version(Program::c("ping_pong", &["serve", "4"]).with_open_gates(), server).start(Mode::WithMotet);
    let calling = Program::c("ping_pong", &["call", "4", &server.first_line(), rounds, "3000"]).with_open_gates();
    let calling = of_version(calling, client).start(Mode::WithMotet);
    (server, calling)
}

#[test]
fn unequal_versions_stay_on_tcp_with_reason_at_both_ends() {
    let Some(next) = next_engine() else { return };
    let printed = |(server, client): (Running, Running)| {
        let (client, server) = (client.finish(), server.finish());
        assert!(client.succeeded && server.succeeded, "{} {}", client.stderr, server.stderr);
        let streams: Vec<_> =
            server.streams.iter().chain(&client.streams).map(|s| (s.reason, s.sent_fast > 0)).collect();
        (client.printed, streams)
    };
    let (reference, _) = printed(exchange(None, None, "300"));
    for version in [None, Some(next)] {
        let (printed, streams) = printed(exchange(version, version, "300"));
        assert_eq!(printed, reference);
        assert_eq!(streams, [(0, true); 2], "one version, both ends over shared memory");
    }
    for (server, client) in [(None, Some(next)), (Some(next), None)] {
        let (printed, streams) = printed(exchange(server, client, "300"));
        assert_eq!(printed, reference, "every byte in its place");
        assert_eq!(streams, [(5, false); 2], "reason 5, at both ends: the peer's version");
    }
}

#[test]
fn motet_names_the_other_version_of_peer_and_node_file() {
    let (Some(next), Some(motet)) = (next_engine(), motet()) else { return };
    let (server, client) = exchange(None, Some(next), "100000000");
    let begun = Instant::now();
    let (own, other) = loop {
        let report = motet_json(&motet, &["why"]);
        let own = process(&report, server.pid()).unwrap_or_default();
        if own["pairs"][0]["reason"] == 5 {
            break (own, process(&report, client.pid()).unwrap_or_default());
        }
        assert!(begun.elapsed() < BUSY_TIMEOUT, "the peer's version is not noticed: {own}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(own["node"]["stayed_on_tcp"][0]["text"], "the peer's Motet has another segment layout");
    let shm = own["pairs"][0]["drivers"].as_array().unwrap().iter().find(|driver| driver["driver"] == "shm").cloned();
    assert_eq!(shm.unwrap()["reason"], "the peer's Motet has another segment layout");
    assert_eq!(other["status"], "unreadable");
    let text = Command::new(&motet).arg("ps").output().expect("motet ps");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let line = text.lines().find(|line| line.trim_start().starts_with(&client.pid().to_string()));
    assert!(line.is_some_and(|line| line.contains("written by another version of Motet")), "{text}");
}

// ---- shared memory ---------------------------------------------------------------------------------------------------------

/// What each end printed of its segment: name, resident kB, huge kB, flags.
fn segments(how: &str, huge: &str) -> Vec<(String, u64, u64, Vec<String>)> {
    let outcome = Program::c("memory", &[how]).with("MOTET_HUGE_PAGES", huge).run(Mode::WithMotet);
    assert!(outcome.succeeded, "{}", outcome.stderr);
    if how == "small" {
        // A head, a page for the slot, and a ring each way.
        assert!(outcome.printed.contains("accepted file allocated=136\n"), "{}", outcome.printed);
    }
    let lines = outcome.printed.lines().filter(|line| line.contains(" motet-"));
    let memory: Vec<_> = lines
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].split_once('=').unwrap().1.parse().unwrap();
            let flags = words[4..].iter().map(ToString::to_string).collect::<Vec<_>>();
            assert!(flags.contains(&"dd".into()) && !flags.contains(&"lo".into()), "{line}");
            (words[..2].join(" "), number(2), number(3), flags)
        })
        .collect();
    assert!(memory.iter().any(|(name, ..)| name == "connected motet-node"));
    memory.into_iter().filter(|(name, ..)| name.ends_with("-segment")).collect()
}

/// Each end has only the slot's page and the ring that it receives from, so it touched that ring first.
#[test]
fn receiver_touches_memory_first_and_core_dumps_omit_it() {
    if engine().is_some() {
        let all = segments("small", "off");
        assert_eq!(all.iter().map(|(_, resident, huge, _)| (*resident, *huge)).collect::<Vec<_>>(), [(4 + 64, 0); 2]);
    }
}

#[test]
fn mlockall_does_not_lock_shared_memory() {
    if engine().is_some() {
        let all = segments("locked", "off");
        assert_eq!(all.iter().map(|(_, resident, ..)| *resident).collect::<Vec<_>>(), [4 + 64; 2]);
    }
}

#[test]
fn large_rings_use_huge_pages_where_available() {
    if engine().is_none() {
        return;
    }
    assert!(segments("bulk", "off").iter().all(|(.., huge, flags)| *huge == 0 && !flags.contains(&"hg".into())));
    let wanted: Vec<_> =
        segments("bulk", "try").into_iter().filter(|(.., flags)| flags.contains(&"hg".into())).collect();
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    if ["[advise]", "[within_size]", "[always]", "[force]"].iter().any(|word| setting.contains(word)) {
        assert_eq!(wanted.len(), 2, "one range of large rings each");
        assert!(wanted.iter().any(|(_, _, huge, _)| *huge > 0), "{wanted:?}");
    } else {
        skip::<()>("huge pages", "the system gives none to shared memory; that the rings work without was tested");
    }
}
