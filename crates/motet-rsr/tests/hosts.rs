//! Startpoints that migrate over three hosts of this machine (scripts/hosts), and a host whose process is killed.
//!
//! Where the machine gives no namespaces, these tests are skipped with a message.
#![forbid(unsafe_code)]

mod scene;

use motet_rsr::{Buffer, Error, Handlers, Options, Reception, Request, Rsr, Startpoint};
use scene::{LIMIT, Process, attach_at, hear, say, word};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const NAMES: [&str; 3] = ["first", "second", "third"];

/// Three hosts; dropping them removes them.
struct Hosts {
    script: PathBuf,
    set: String,
}

impl Hosts {
    /// `None`, with a message, if they cannot be made here.
    fn up(test: &str) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/hosts");
        let set = format!("r{}-{}", std::process::id() % 1_000_000, COUNT.fetch_add(1, Ordering::Relaxed));
        let hosts = Self { script, set };
        let made = Command::new(&hosts.script).args(["--set", &hosts.set, "up"]).args(NAMES).output().unwrap();
        match made.status.code() {
            Some(0) => Some(hosts),
            Some(3) => {
                eprintln!("SKIPPED: {test}: {}", String::from_utf8_lossy(&made.stderr).trim());
                None
            }
            _ => panic!("scripts/hosts: {}", String::from_utf8_lossy(&made.stderr)),
        }
    }

    /// A process on each host that serves and obeys, with its startpoint.
    fn processes(&self) -> [(Process, String); 3] {
        std::array::from_fn(|at| {
            let mut command = Command::new(&self.script);
            command.args(["--set", &self.set, "exec", NAMES[at], "--"]).arg(std::env::current_exe().unwrap());
            let mut process = Process::start_by(command, "process_of_a_host", &format!("10.77.0.{}:0", at + 1));
            let text = process.line();
            (process, text)
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).args(["--set", &self.set, "down"]).output();
    }
}

static RSR: OnceLock<Rsr> = OnceLock::new();

/// Calls who is there, and says it with the driver.
fn call_and_say(what: &str, start: &Startpoint) {
    let rsr = RSR.get().unwrap();
    let said = match rsr.call(start, "who", &Buffer::new(), LIMIT) {
        Ok(reply) => {
            let driver = rsr.ways(start, LIMIT).remove(0).unwrap().driver;
            format!("{what} {} by {driver}", reply.reader().get_str().unwrap())
        }
        Err(error) => format!("{what} {error:?}"),
    };
    say(&said);
}

/// A process that serves `who`, `take` (calls the startpoint in the request), `relay` (lets another one answer), `add` and `sleep`; it obeys lines.
#[test]
fn process_of_a_host() {
    let Some(address) = word() else { return };
    let rsr = RSR.get_or_init(|| attach_at(address.parse().unwrap(), Options::default()));
    let (sum, who) = (AtomicU64::new(0), address);
    let handlers = Handlers::new()
        .on("who", move |request| request.reply(Buffer::new().put_str(&who)).unwrap())
        .on("add", move |request| {
            let mut reader = request.reader();
            let (number, block) = (reader.get::<u64>().unwrap(), reader.get_block().unwrap());
            let before = sum.fetch_add(1, Ordering::SeqCst);
            let is_right = before == number && block.iter().all(|byte| *byte == number as u8);
            if request.wants_reply() {
                request.reply(Buffer::new().put_bool(is_right).put(before)).unwrap();
            } else {
                assert!(is_right, "request {number} after {before}");
            }
        })
        .threaded("take", |request| call_and_say("took", &request.reader().get_startpoint().unwrap()))
        .threaded("relay", |request: &mut Request<'_>| {
            let to = request.reader().get_startpoint().unwrap();
            let reply_to = request.take_reply_startpoint().unwrap();
            RSR.get().unwrap().request(&to, "answer", Buffer::new().put_startpoint(&reply_to), LIMIT).unwrap();
        })
        .threaded("answer", |request| {
            let to = request.reader().get_startpoint().unwrap();
            RSR.get().unwrap().reply(&to, Buffer::new().put_str("the third answers")).unwrap();
        })
        .threaded("sleep", |_| std::thread::sleep(std::time::Duration::from_secs(600)));
    let endpoint = rsr.endpoint(handlers).unwrap();
    say(&endpoint.startpoint().unwrap().to_text());
    let start = |text: &str| text.parse::<Startpoint>().unwrap();
    while let Some(line) = hear() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["call", text] => call_and_say("called", &start(text)),
            ["pass", text, to] => {
                rsr.request(&start(to), "take", Buffer::new().put_startpoint(&start(text)), LIMIT).unwrap();
            }
            ["relay", by, text] => {
                let reply = rsr.call(&start(by), "relay", Buffer::new().put_startpoint(&start(text)), LIMIT).unwrap();
                say(reply.reader().get_str().unwrap());
            }
            ["stream", text] => {
                let (to, mut right) = (start(text), true);
                for number in 0..60u64 {
                    let block = vec![number as u8; [10, 40_000, 900_000, 3000][number as usize % 4]];
                    let mut buffer = Buffer::new();
                    buffer.put(number).put_block(&block);
                    if number % 7 == 6 {
                        let reply = rsr.call(&to, "add", &buffer, LIMIT).unwrap();
                        right &= reply.reader().get_bool().unwrap();
                    } else {
                        rsr.request(&to, "add", &buffer, LIMIT).unwrap();
                    }
                }
                say(&format!("in order: {right}"));
            }
            ["sleep", text] => {
                let error = rsr.call(&start(text), "sleep", &Buffer::new(), LIMIT).unwrap_err();
                say(&format!("{error:?}"));
            }
            ["die"] => {
                let _ = Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
            }
            _ => panic!("{line}"),
        }
    }
}

#[test]
fn a_startpoint_migrates_over_three_hosts() {
    let Some(hosts) = Hosts::up("migration over three hosts") else { return };
    let [(mut one, of_one), (mut two, of_two), (mut three, of_three)] = hosts.processes();
    // From the first host through this process to the second, and from there in a request to the third.
    two.tell(&format!("call {of_one}"));
    let line = two.line();
    assert!(line.starts_with("called 10.77.0.1:0 by tcp"), "{line}");
    two.tell(&format!("pass {of_one} {of_three}"));
    let line = three.line();
    assert!(line.starts_with("took 10.77.0.1:0 by tcp"), "{line}");
    // A call to the second, which the third answers.
    one.tell(&format!("relay {of_two} {of_three}"));
    assert_eq!(one.line(), "the third answers");
    // Requests of all lengths between hosts, in order.
    three.tell(&format!("stream {of_two}"));
    assert_eq!(three.line(), "in order: true");
}

#[test]
fn a_call_to_a_host_whose_process_is_killed_ends() {
    let Some(hosts) = Hosts::up("a killed process of another host") else { return };
    let [(mut one, of_one), (mut two, of_two), (mut three, _)] = hosts.processes();
    for process in [&mut two, &mut three] {
        process.tell(&format!("call {of_one}"));
        assert!(process.line().contains("10.77.0.1"));
    }
    two.tell(&format!("sleep {of_one}"));
    one.tell("die");
    assert_eq!(two.line(), format!("{:?}", Error::PeerGone));
    two.tell(&format!("call {of_one}"));
    let line = two.line();
    assert!(line.starts_with("called NoRoute") || line.starts_with("called PeerGone"), "{line}");
    // The others go on.
    three.tell(&format!("call {of_two}"));
    assert!(three.line().starts_with("called 10.77.0.2:0 by tcp"));
}

#[test]
fn a_program_without_threads_calls_another_host() {
    let Some(hosts) = Hosts::up("another host, without threads") else { return };
    let [(_one, of_one), ..] = hosts.processes();
    let mut command = Command::new(&hosts.script);
    command.args(["--set", &hosts.set, "exec", NAMES[2], "--"]).arg(std::env::current_exe().unwrap());
    let mut caller = Process::start_by(command, "caller_of_a_host", &of_one);
    assert_eq!(caller.line(), "10.77.0.1:0 1");
}

/// A process without threads for requests.
#[test]
fn caller_of_a_host() {
    let Some(text) = word() else { return };
    let rsr = attach_at("10.77.0.3:0".parse().unwrap(), scene::with(Reception::Caller));
    let start: Startpoint = text.parse().unwrap();
    let reply = rsr.call(&start, "who", &Buffer::new(), LIMIT).unwrap();
    say(&format!("{} {}", reply.reader().get_str().unwrap(), rsr.node().links().unwrap().len()));
}
