//! Input that no client of Motet sends, and users that may not use the session.
#![forbid(unsafe_code)]

mod support;

use motet_session::api::Session;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;
use support::{Node, Raw, Running, hello, node_id, until};

/// The gatekeeper still works.
fn assert_works(session: &Running) {
    session.client().get::<Session>("/v1/session").unwrap();
}

#[test]
fn lines_that_are_no_lines_are_refused() {
    let session = Running::start();
    let long = vec![b'x'; 300 << 10];
    let deep = [b"[".repeat(100_000), b"\n".to_vec()].concat();
    for line in [&b"\n"[..], b"nonsense\n", b"{}\n", b"{\"hello\":{}}\n", b"\xff\xfe\n", &long, &deep] {
        let mut raw = Raw::upgraded(&session.paths);
        raw.write(line);
        let answer = raw.rest();
        assert!(answer.starts_with("{\"refused\":"), "{answer:?}");
    }
    assert_works(&session);
}

#[test]
fn connection_that_says_nothing_is_closed() {
    let session = Running::start();
    assert_eq!(Raw::upgraded(&session.paths).rest(), "");
}

#[test]
fn wrong_identities_are_refused() {
    let session = Running::start();
    for node in ["", "x", &"g".repeat(32), &"0".repeat(33)] {
        let mut raw = Raw::upgraded(&session.paths);
        raw.write(format!("{{\"hello\":{{\"node\":\"{node}\",\"address\":\"a\"}}}}\n").as_bytes());
        assert!(raw.rest().contains("32 hexadecimal digits"));
    }
    let mut raw = Raw::upgraded(&session.paths);
    raw.write(
        format!("{{\"hello\":{{\"node\":\"{}\",\"address\":\"{}\"}}}}\n", node_id(1), "a".repeat(5000)).as_bytes(),
    );
    assert!(raw.rest().contains("address is longer"));
}

#[test]
fn identity_of_another_process_is_refused() {
    let session = Running::start();
    let node = Node::attach(&session, 7);
    node.attachment.sender().join("g", None).unwrap();
    let script = format!(
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
         s.sendall(b'GET /v1/attach HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: motet-attach/1\\r\\n\\r\\n'); \
         s.recv(4096); s.sendall(b'{{\"hello\":{{\"node\":\"{}\",\"address\":\"a\"}}}}\\n'); print(s.recv(4096))",
        node_id(7)
    );
    let output = Command::new("python3").args(["-c", &script]).arg(session.paths.socket()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("another process has attached"), "{text} {}", String::from_utf8_lossy(&output.stderr));
    until("the node is still there", || node.last("g").is_some_and(|view| view.members.len() == 1));
}

#[test]
fn groups_with_wrong_names_are_refused() {
    let session = Running::start();
    let mut raw = Raw::upgraded(&session.paths);
    raw.write(&hello(1));
    for name in ["", "..", "a/b", &"n".repeat(65), &"n".repeat(10_000)] {
        raw.write(format!("{{\"join\":{{\"group\":\"{name}\",\"rank\":null}}}}\n").as_bytes());
    }
    raw.write(b"\"bye\"\n");
    assert_eq!(raw.rest().matches("is no name of a group").count(), 5);
    assert_eq!(session.client().get::<Vec<motet_session::api::View>>("/v1/groups").unwrap(), []);
    assert!(session.client().get::<()>("/v1/groups/..%2f..%2fkey").is_err());
}

#[test]
fn node_that_reads_nothing_is_disconnected() {
    let session = Running::start();
    let mut deaf = Raw::upgraded(&session.paths);
    deaf.write(&hello(1));
    deaf.write(b"{\"join\":{\"group\":\"g\",\"rank\":null}}\n");
    let sender = Node::attach(&session, 2);
    sender.attachment.sender().join("g", None).unwrap();
    until("both have joined", || sender.last("g").is_some_and(|view| view.members.len() == 2));
    let body = serde_json::Value::from("x".repeat(4000));
    until("the deaf one is out", || {
        for _ in 0..100 {
            sender.attachment.sender().send("g", &node_id(1), body.clone()).unwrap();
        }
        sender.last("g").is_some_and(|view| view.members.len() == 1)
    });
    assert_works(&session);
}

#[test]
fn requests_that_are_no_http_are_closed() {
    let session = Running::start();
    for request in [&b"nonsense\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", &b"A".repeat(1 << 20)] {
        let mut raw = Raw::connect(&session.paths);
        raw.write(request);
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        let answer = raw.rest();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let mut raw = Raw::connect(&session.paths);
    raw.write(b"POST /v1/programs HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{");
    let _ = raw.0.shutdown(std::net::Shutdown::Write);
    assert!(!raw.rest().starts_with("HTTP/1.0 200"));
    assert_works(&session);
}

/// Sends a request over TCP; returns the answer.
fn over_tcp(session: &Running, authorization: &str) -> String {
    let mut stream = TcpStream::connect(session.address.unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(format!("GET /v1/session HTTP/1.0\r\n{authorization}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn tcp_needs_the_key() {
    let session = Running::start();
    let key = std::fs::read_to_string(session.paths.key()).unwrap();
    for wrong in
        ["", "Authorization: Bearer \r\n", "Authorization: Bearer 0123\r\n", &format!("Authorization: {key}\r\n")]
    {
        let answer = over_tcp(&session, wrong);
        assert!(answer.starts_with("HTTP/1.0 401") && !answer.contains(&key), "{answer}");
    }
    let answer = over_tcp(&session, &format!("Authorization: Bearer {key}\r\n"));
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("\"name\":\"test\""), "{answer}");
}

/// Asks for what needs no key; whether there is an answer.
fn ask_for_the_icon(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4096];
    let asked = stream.write_all(b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n");
    asked.is_ok() && stream.read(&mut answer).is_ok_and(|length| length > 0)
}

#[test]
fn connections_without_the_key_do_not_keep_others_out() {
    let session = Running::start();
    let connect = || {
        let stream = TcpStream::connect(session.address.unwrap()).unwrap();
        stream.set_read_timeout(Some(support::LIMIT)).unwrap();
        stream
    };
    let mut strangers: Vec<_> = (0..100).map(|_| connect()).collect();
    assert!(ask_for_the_icon(strangers.last_mut().unwrap()), "the last one has a place");
    let key = std::fs::read_to_string(session.paths.key()).unwrap();
    let answer = over_tcp(&session, &format!("Authorization: Bearer {key}\r\n"));
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    // One that is never idle does not stay either.
    let mut stranger = connect();
    until("it is closed", || !ask_for_the_icon(&mut stranger));
    assert_works(&session);
}

#[test]
fn other_users_are_not_served() {
    let session = Running::start();
    if !rustix::process::getuid().is_root() {
        return motet_skip("other_users_are_not_served", "needs root to act as another user");
    }
    // Even with open doors: the folder and the socket let everybody in.
    for path in session.paths.dir().ancestors().take(3) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::set_permissions(session.paths.socket(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                  try:\n s.sendall(b'GET /v1/session HTTP/1.0\\r\\n\\r\\n')\n print(len(s.recv(4096)))\n\
                  except ConnectionError: print(0)";
    let as_user = |user: &str| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", user, "--regid", user, "--clear-groups", "/usr/bin/python3", "-c", script])
            .arg(session.paths.socket());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().parse::<usize>().unwrap()
    };
    assert_eq!(as_user("65534"), 0, "another user gets no answer");
    assert!(as_user("0") > 0);
}

/// Says that a test is skipped, in the log that the runner reads.
fn motet_skip(test: &str, why: &str) {
    println!("SKIP {test}: {why}");
    if let Some(path) = std::env::var_os("MOTET_SKIP_LOG")
        && let Ok(mut log) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = writeln!(log, "SKIP {test}: {why}");
    }
}
