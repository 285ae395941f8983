//! Servers that are killed in the middle of a transfer, and a peer on the data port that keeps to no protocol.

use crate::{Channel, LIMIT, Server, Site, same, succeeded};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BYTES: usize = 192 << 20;
/// Kills of one transfer, and transfers until one was hit by a kill.
const KILLS: u64 = 4;
const TRANSFERS: u32 = 10;

/// Kills the processes of a server that serve a client.
fn kill_children(server: &Server) -> bool {
    let children = server.children();
    !children.is_empty()
        && Command::new("kill").arg("-KILL").args(&children).status().is_ok_and(|status| status.success())
}

#[test]
fn a_transfer_goes_on_after_its_servers_are_killed() {
    let Some(site) = Site::new("kill -9") else { return };
    let servers = [site.serve(Channel::Motet), site.serve(Channel::Motet)];
    let source = site.file("source", BYTES);
    let target = site.path("out/target");
    let urls = [servers[0].url(&source), servers[1].url(&target)];
    let words = ["-rst", "-rst-retries", "60", "-rst-interval", "1", "-p", "2", &urls[0], &urls[1]];
    let mut seed: u64 = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.subsec_nanos().into());
    for _ in 0..TRANSFERS {
        let mut copy = site.copy_command(&words).spawn().expect("globus-url-copy");
        let (mut killed, began) = (0, Instant::now());
        // The transfer may be over before the last kill.
        while killed < KILLS && copy.try_wait().expect("its status").is_none() && began.elapsed() < LIMIT {
            seed = seed * 48_271 % 2_147_483_647 + 1;
            thread::sleep(Duration::from_millis(20 + seed % 200));
            killed += u64::from(kill_children(&servers[(seed / 7 % 2) as usize]));
        }
        succeeded(&copy.wait_with_output().expect("globus-url-copy"));
        assert!(same(&source, &target), "the copy differs after {killed} kills");
        fs::remove_file(&target).expect("the copy");
        if killed > 0 {
            return;
        }
    }
    panic!("no server was killed in {TRANSFERS} transfers");
}

/// What a server holds: its descriptors, and the processes that serve clients.
fn held(server: &Server) -> (usize, usize) {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", server.child.id())).map_or(0, Iterator::count);
    (descriptors, server.children().len())
}

#[test]
fn a_transfer_that_is_interrupted_leaves_nothing() {
    let Some(site) = Site::new("cancellation") else { return };
    let servers = [site.serve(Channel::Motet), site.serve(Channel::Motet)];
    let source = site.file("source", BYTES);
    let target = site.path("out/target");
    let urls = [servers[0].url(&source), servers[1].url(&target)];
    site.copy(&["-p", "2", &urls[0], &urls[1]]);
    let before = servers.each_ref().map(|server| settled(server, None));
    let (mut interrupted, began) = (0, Instant::now());
    while interrupted < 3 {
        assert!(began.elapsed() < 2 * LIMIT, "no transfer was interrupted within");
        fs::remove_file(&target).expect("the copy");
        // A client that has Motet on neither end of its own: SIGINT reaches it alone, and it cancels the transfer between the servers.
        let mut client = site.command("globus-url-copy");
        let mut client = client.args(["-p", "2", &urls[0], &urls[1]]).spawn().expect("globus-url-copy");
        let is_within = || fs::metadata(&target).is_ok_and(|data| data.len() > 0);
        while !is_within() && client.try_wait().expect("its status").is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = Command::new("kill").args(["-INT", &client.id().to_string()]).status();
        let since = Instant::now();
        let status = loop {
            if let Some(status) = client.try_wait().expect("its status") {
                break status;
            }
            if since.elapsed() > LIMIT {
                let _ = client.kill().and_then(|()| client.wait());
                panic!("the client does not end");
            }
            thread::sleep(Duration::from_millis(5));
        };
        interrupted += u32::from(!status.success()); // a transfer may have ended before
    }
    for (server, before) in servers.iter().zip(before) {
        assert_eq!(settled(server, Some(before)), before, "a server keeps descriptors or processes");
    }
    site.copy(&["-p", "2", &urls[0], &urls[1]]);
    assert!(same(&source, &target));
}

/// What a server holds when it serves no client any more: waits for that, and for `expected`.
fn settled(server: &Server, expected: Option<(usize, usize)>) -> (usize, usize) {
    let began = Instant::now();
    loop {
        let now = held(server);
        if expected.map_or(now.1 == 0, |expected| now == expected) || began.elapsed() > LIMIT {
            return now;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A control connection that speaks FTP.
struct Control(BufReader<TcpStream>);

impl Control {
    fn login(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).expect("the control port");
        stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
        let mut control = Self(BufReader::new(stream));
        control.reply();
        for (command, code) in [("USER anonymous", "331"), ("PASS x@y", "230"), ("TYPE I", "200")] {
            assert!(control.ask(command).starts_with(code), "{command}");
        }
        control
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        while line.as_bytes().get(3) != Some(&b' ') {
            line.clear();
            assert!(self.0.read_line(&mut line).expect("a reply") > 0, "the server closed the control connection");
        }
        line
    }

    fn ask(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("a command");
        self.reply()
    }

    /// Connects to the data port that PASV names.
    fn passive(&mut self) -> TcpStream {
        let reply = self.ask("PASV");
        let numbers: Vec<u16> = reply.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        let [.., high, low] = numbers[..] else { panic!("{reply}") };
        TcpStream::connect(("127.0.0.1", high * 256 + low)).expect("the data port")
    }
}

#[test]
fn a_hostile_peer_on_the_data_port_harms_no_other_client() {
    let Some(site) = Site::new("hostile peer") else { return };
    let server = site.serve(Channel::Motet);
    let source = site.file("source", 8 << 20);
    // Blocks of mode E with lengths and offsets that no file has, and bytes that are no block.
    let blocks = [
        vec![0xff; 17 * 50],
        [vec![0x40], vec![0x7f; 16]].concat(),
        vec![0; 1 << 20],
        (0..=255).cycle().take(100_000).collect(),
    ];
    for (round, block) in blocks.iter().enumerate() {
        let mut control = Control::login(&server);
        assert!(control.ask("MODE E").starts_with("200"));
        let mut data = control.passive();
        let target = site.path(&format!("out/hostile-{round}"));
        control.0.get_mut().write_all(format!("STOR {}\r\n", target.display()).as_bytes()).expect("a command");
        // The server may reset the connection at any byte.
        let _ = data.write_all(block);
        drop(data);
        drop(control);
    }
    // A reader that goes away in the middle, and one that never reads.
    let mut control = Control::login(&server);
    let mut data = control.passive();
    control.0.get_mut().write_all(format!("RETR {}\r\n", source.display()).as_bytes()).expect("a command");
    data.read_exact(&mut [0; 1000]).expect("some of the file");
    drop(data);
    let mut idle = Control::login(&server);
    let _never_read = idle.passive();
    idle.0.get_mut().write_all(format!("RETR {}\r\n", source.display()).as_bytes()).expect("a command");
    // Another client is served all the same.
    let target = site.path("out/target");
    site.copy(&[&server.url(&source), &format!("file://{}", target.display())]);
    assert!(same(&source, &target));
    assert!(fs::metadata(site.path("out")).is_ok());
}
