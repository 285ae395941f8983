//! The processes of a case, and the streams between its two ends.

use crate::Suite;
use crate::cases::{CASES, Case, warm_up};
use motet::{Path, Stream};
use motet_config::Config;
use motet_engine::driver::Driver;
use motet_engine::reason::Reason;
use motet_engine::{Engine, Options};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// `DRIVER CASE FAR_END` for a case process, `DRIVER CASE PORT` for the process of its far end.
const ROLE: &str = "MOTET_CONFORMANCE_ROLE";
/// The case of a forbidden driver, which is not in the table of cases.
pub const FORBIDDEN: &str = "forbidden";
/// A process that has not ended after this time hangs: it is aborted, so that the suite reports it.
const CASE_TIMEOUT: Duration = Duration::from_secs(40);

/// Where the far end of a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarEnd {
    /// In the process of the near end.
    SameProcess,
    /// In another process.
    OtherProcess,
}

/// The arguments of a case: its streams, and what to expect of them.
pub struct Ends {
    pub streams: Vec<Stream>,
    /// The driver under test brings up a wire.
    pub wire: bool,
    /// The other end is in this process.
    pub same_process: bool,
}

fn this_binary(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this binary"));
    command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Runs a case in a process of its own.
pub fn start(driver: &str, case: &str, far_end: FarEnd) -> Result<(), String> {
    let mut command = this_binary(&format!("{driver} {case} {far_end:?}"));
    if case == FORBIDDEN {
        command.env("MOTET_DRIVERS", "tcp");
    }
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("-- {driver}, {case}, {far_end:?}: {}\n{}", output.status, words.trim()))
}

/// The main function of a process of a case; in a test run it does nothing.
pub fn role(suite: impl Fn(&str) -> &'static Suite) {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [driver, case, place_or_port] = words[..] else { panic!("not a role: {role}") };
    abort_after_timeout();
    if case == FORBIDDEN {
        return forbidden();
    }
    let suite = suite(driver);
    Engine::start(|| options(suite.drivers)).expect("an engine");
    let case = CASES.iter().find(|c| c.name == case).expect("a case of the table");
    let wire = suite.drivers.iter().any(|d| d.streams().is_some());
    match place_or_port {
        "SameProcess" => run_both_ends(case, wire),
        "OtherProcess" => run_near_end(case, wire, &role),
        port => run_far_end(case, wire, port.parse().expect("a port")),
    }
}

/// Aborts the process if it hangs.
fn abort_after_timeout() {
    std::thread::spawn(|| {
        std::thread::sleep(CASE_TIMEOUT);
        eprintln!("hangs");
        std::process::abort();
    });
}

fn options(drivers: &'static [&'static dyn Driver]) -> Options {
    let mut options = motet::driver_table::options(Config::default());
    options.drivers = drivers;
    options.allowed.clear();
    options
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("its address").port();
    (listener, port)
}

fn connect(port: u16) -> Stream {
    Stream::connected(TcpStream::connect(("127.0.0.1", port)).expect("a connection")).expect("a stream")
}

fn accept(listener: &TcpListener) -> Stream {
    Stream::accepted(listener.accept().expect("a connection").0).expect("a stream")
}

fn run_both_ends(case: &Case, wire: bool) {
    let (listener, port) = listener();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..case.streams {
        far.push(connect(port));
        near.push(accept(&listener));
    }
    let (near, far) = [near, far].map(|streams| Ends { streams, wire, same_process: true }).into();
    std::thread::scope(|scope| {
        let far = scope.spawn(move || run_end(case, far, case.far));
        run_end(case, near, case.near);
        far.join().expect("the far end");
    });
}

fn run_near_end(case: &Case, wire: bool, role: &str) {
    let (listener, port) = listener();
    let mut peer = this_binary(&role.replace("OtherProcess", &port.to_string())).spawn().expect("a peer");
    let streams = (0..case.streams).map(|_| accept(&listener)).collect();
    run_end(case, Ends { streams, wire, same_process: false }, case.near);
    let status = peer.wait().expect("the peer's exit");
    assert!(status.success() || case.two_processes_only, "the far end: {status}");
}

fn run_far_end(case: &Case, wire: bool, port: u16) {
    let streams = (0..case.streams).map(|_| connect(port)).collect();
    run_end(case, Ends { streams, wire, same_process: false }, case.far);
}

fn run_end(case: &Case, ends: Ends, run: fn(Ends)) {
    if case.warm {
        let near = run as usize == case.near as usize;
        ends.streams.iter().for_each(|s| warm_up(s, near));
        for stream in &ends.streams {
            let stats = stream.stats().expect("statistics");
            assert_eq!(stats.path == Path::SharedMemory, ends.wire, "{}", motet::reason::text(stats.reason));
        }
    }
    run(ends);
}

fn forbidden() {
    let (listener, port) = listener();
    let far = connect(port);
    let near = accept(&listener);
    std::thread::scope(|scope| {
        scope.spawn(|| warm_up(&far, false));
        warm_up(&near, true);
    });
    for stream in [&near, &far] {
        let stats = stream.stats().expect("statistics");
        assert_eq!((stats.path, stats.reason), (Path::Tcp, Reason::FORBIDDEN.0));
    }
}
