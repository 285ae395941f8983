//! What watches a session: processes, events, and the login of browsers, over real sockets.
#![forbid(unsafe_code)]

mod support;

use motet_inspect::report::HostReport;
use motet_session::SESSION_ID_VARIABLE;
use motet_session::api::{Program, Session, View};
use motet_session::events::{SessionEvent, What};
use motet_session::login::{self, LoginToken};
use motet_session::process::Process;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;
use support::{LIMIT, Node, Raw, Running, node_id, until};

/// A request over TCP, with these headers. Returns status and whole answer.
fn over_tcp(session: &Running, request: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(session.address.unwrap()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head =
        format!("{request} HTTP/1.1\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

/// A browser that has logged in: its host, cookie and page.
struct Browser<'a> {
    session: &'a Running,
    host: String,
    cookie: String,
    page: String,
}

fn log_in<'a>(session: &'a Running, token: &str) -> Result<Browser<'a>, u16> {
    let host = session.address.unwrap().to_string();
    let body = format!("{{\"token\":\"{token}\"}}");
    let origin = format!("http://{host}");
    let headers = [("Host", &host[..]), ("Origin", &origin), ("Content-Type", "application/json")];
    let (status, answer) = over_tcp(session, "POST /v1/login", &headers, &body);
    if status != 200 {
        return Err(status);
    }
    let line = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(line.contains("; HttpOnly; SameSite=Strict; Path=/v1"), "{line}");
    let page = answer.split("\"page\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    Ok(Browser { session, host, cookie: line.split(';').next().unwrap().to_owned(), page })
}

fn token(session: &Running) -> String {
    session.client().post::<LoginToken>("/v1/login/token", &()).unwrap().token
}

impl Browser<'_> {
    /// The status of a request, some of whose headers are others.
    fn status(&self, request: &str, others: &[(&str, &str)]) -> u16 {
        let own = [("Host", &self.host[..]), ("Cookie", &self.cookie), (login::PAGE_HEADER, &self.page)];
        let kept = own.into_iter().filter(|(name, _)| others.iter().all(|(other, _)| other != name));
        let headers: Vec<_> = kept.chain(others.iter().copied()).filter(|(_, value)| !value.is_empty()).collect();
        over_tcp(self.session, request, &headers, "").0
    }
}

#[test]
fn browser_logs_in_once_and_stays() {
    let session = Running::start();
    let token = token(&session);
    let browser = log_in(&session, &token).unwrap();
    assert_eq!(log_in(&session, &token).err(), Some(401), "the token is void");
    assert_eq!(log_in(&session, &"0".repeat(64)).err(), Some(401));
    assert_eq!(log_in(&session, "").err(), Some(401));
    for path in ["/v1/session", "/v1/groups", "/v1/processes", "/v1/hosts", "/v1/hosts/here/processes"] {
        assert_eq!(browser.status(&format!("GET {path}"), &[]), 200, "{path}");
    }
    assert_eq!(browser.status("GET /v1/session", &[("Cookie", "")]), 401);
    assert_eq!(browser.status("GET /v1/session", &[(login::PAGE_HEADER, "")]), 401, "a cookie alone is not enough");
    assert_eq!(browser.status("GET /v1/session", &[(login::PAGE_HEADER, &"0".repeat(64))]), 401);
    assert_eq!(browser.status("GET /v1/session", &[("Host", "evil.example")]), 401, "DNS rebinding");
}

#[test]
fn changes_by_cookie_need_the_own_origin() {
    let session = Running::start();
    let browser = log_in(&session, &token(&session)).unwrap();
    let own = format!("http://{}", browser.host);
    for origin in ["", "null", "http://evil.example", "http://127.0.0.1:1"] {
        assert_eq!(browser.status("DELETE /v1/session", &[("Origin", origin)]), 401, "{origin}");
    }
    assert_eq!(browser.status("POST /v1/login/token", &[("Origin", &own)]), 403, "a browser makes no logins");
    assert_eq!(browser.status("POST /v1/hosts/here/login/token", &[("Origin", &own)]), 403);
    assert_eq!(browser.status("DELETE /v1/session", &[("Origin", &own)]), 200);
}

#[test]
fn page_is_served_to_its_own_host_alone() {
    let session = Running::start();
    let host = session.address.unwrap().to_string();
    for path in ["/", "/page.js", "/page.css", "/icon.svg"] {
        let (status, answer) = over_tcp(&session, &format!("GET {path}"), &[("Host", &host)], "");
        assert_eq!(status, 200, "{path}");
        assert!(answer.contains("default-src 'none'; script-src 'self'"), "{answer}");
        assert_eq!(over_tcp(&session, &format!("GET {path}"), &[("Host", "evil.example")], "").0, 421);
    }
    let headers = [("Host", &host[..]), ("Content-Type", "application/json")];
    let body = format!("{{\"token\":\"{}\"}}", token(&session));
    assert_eq!(over_tcp(&session, "POST /v1/login", &headers, &body).0, 403, "a login without an origin");
    let long = format!("{{\"token\":\"{}\"}}", "0".repeat(5000));
    assert_eq!(over_tcp(&session, "POST /v1/login", &headers, &long).0, 413);
}

#[test]
fn login_is_void_after_a_restart() {
    let mut session = Running::start();
    let browser = log_in(&session, &token(&session)).unwrap();
    let (cookie, page) = (browser.cookie, browser.page);
    session.kill();
    session.start_again();
    let host = session.address.unwrap().to_string();
    let headers = [("Host", &host[..]), ("Cookie", &cookie), (login::PAGE_HEADER, &page)];
    assert_eq!(over_tcp(&session, "GET /v1/session", &headers, "").0, 401);
}

#[test]
fn processes_of_the_user_are_reported() {
    let session = Running::start();
    let report = session.client().get::<HostReport>("/v1/processes").unwrap();
    assert_eq!(report.host, "here");
    let through = session.client().get::<HostReport>("/v1/hosts/here/processes").unwrap();
    assert_eq!(through.at_ms, report.at_ms, "one scan serves all that ask within a second");
}

/// A client of the events, and what it has read.
struct Events(BufReader<std::os::unix::net::UnixStream>, Vec<SessionEvent>);

impl Events {
    fn follow(session: &Running, after: &str) -> Self {
        let mut raw = Raw::connect(&session.paths);
        raw.write(
            format!("GET /v1/events HTTP/1.1\r\nHost: motet\r\nConnection: close\r\nLast-Event-ID: {after}\r\n\r\n")
                .as_bytes(),
        );
        Self(BufReader::new(raw.0), Vec::new())
    }

    /// The next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<SessionEvent> {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < LIMIT, "no event comes after {:?}", self.1.last());
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }

    /// An event, whether it has come already or is the next one: those of nodes, groups and programs come in no order among each other.
    fn find(&mut self, wanted: impl Fn(&What) -> bool) -> SessionEvent {
        loop {
            if let Some(event) = self.1.iter().find(|event| wanted(&event.what)) {
                return event.clone();
            }
            let event = self.next().expect("the stream goes on");
            self.1.push(event);
        }
    }
}

#[test]
fn events_tell_of_nodes_groups_and_programs() {
    let session = Running::start();
    let node = Node::attach(&session, 1);
    node.attachment.sender().join("fluid", None).unwrap();
    let mut events = Events::follow(&session, "");
    let me = std::process::id();
    events.find(|what| matches!(what, What::NodeAttached { place, node } if place.pid == me && *node == node_id(1)));
    let joined =
        events.find(|what| matches!(what, What::View { group, joined, .. } if group == "fluid" && joined[0].pid == me));
    drop(node);
    events.find(|what| matches!(what, What::View { group, left_count: 1, members: 0, .. } if group == "fluid"));
    events.find(|what| matches!(what, What::NodeGone { place, .. } if place.pid == me));
    let about = session.client().get::<Session>("/v1/session").unwrap();
    let mut child = Command::new("cat").env(SESSION_ID_VARIABLE, about.id).stdin(Stdio::piped()).spawn().unwrap();
    let process = Process::of(child.id()).unwrap();
    let program = Program {
        host: String::new(),
        process,
        command: vec!["cat".to_owned()],
        group: Some("g".to_owned()),
        rank: None,
    };
    session.client().post::<Program>("/v1/programs", &program).unwrap();
    events.find(|what| matches!(what, What::ProgramStarted { place, .. } if place.pid == child.id()));
    drop(child.stdin.take());
    child.wait().unwrap();
    let last = events.find(|what| matches!(what, What::ProgramEnded { place, .. } if place.pid == child.id()));
    // A client that returns gets what it has missed, and no more.
    let missed: Vec<_> = events.1.iter().skip_while(|event| event.id != joined.id).skip(1).cloned().collect();
    assert_eq!(missed.last(), Some(&last));
    let mut again = Events::follow(&session, &joined.id);
    for event in missed {
        assert_eq!(again.next(), Some(event));
    }
}

#[test]
fn client_of_events_that_does_not_read_is_cut_off() {
    let session = Running::start();
    let mut deaf = Events::follow(&session, "");
    let node = Node::attach(&session, 1);
    node.attachment.sender().join("other", None).unwrap();
    until("the client has been served", || deaf.next().is_some());
    // More than the buffers of the socket and the queue hold. In portions, because a node that is too far ahead of the views is disconnected.
    for portion in 1..=12 {
        for number in 0..500 {
            let group = format!("g{}", number % 2);
            node.attachment.sender().join(&group, None).unwrap();
            node.attachment.sender().leave(&group).unwrap();
        }
        until("the views of this portion", || {
            let groups: Vec<View> = session.client().get("/v1/groups").unwrap();
            groups.iter().any(|view| view.group == "g1" && view.number >= 500 * portion)
        });
    }
    let events: Vec<_> = std::iter::from_fn(|| deaf.next()).collect();
    assert!(events.len() < 12000, "{}", events.len());
    session.client().get::<Session>("/v1/session").unwrap();
}
