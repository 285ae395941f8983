//! The address for other hosts, and the links of gatekeepers, with peers that do not keep to the rules.
#![forbid(unsafe_code)]

mod support;

use motet_gatekeeper::tls;
use motet_session::api::Session;
use motet_session::hosts::{Host, JoinConfig};
use std::io::{Read, Write};
use std::net::TcpStream;
use support::{LIMIT, Running, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Stream = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

async fn connect(config: &JoinConfig) -> Stream {
    let (connector, name) = tls::connector(&config.authority).unwrap();
    let stream = tokio::net::TcpStream::connect(&config.addresses[0]).await.unwrap();
    connector.connect(name, stream).await.unwrap()
}

/// Sends a request; returns the status, and the connection behind the head of the answer.
async fn request(config: &JoinConfig, method: &str, path: &str, headers: &str) -> (u16, Stream) {
    let mut stream = connect(config).await;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(tokio::time::timeout(LIMIT, stream.read_u8()).await.expect("an answer").expect("a whole head"));
    }
    let status = String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap();
    (status, stream)
}

fn authorization(config: &JoinConfig) -> String {
    format!("Authorization: Bearer {}\r\n", config.key)
}

/// The headers of a host that connects.
fn link(config: &JoinConfig, host: &str) -> String {
    format!("{}Connection: Upgrade\r\nUpgrade: motet-hosts/1\r\nMotet-Host: {host}\r\n", authorization(config))
}

fn frame(message: &str, body: &[u8]) -> Vec<u8> {
    let lengths = [message.len() as u32, body.len() as u32].map(u32::to_le_bytes).concat();
    [&lengths, message.as_bytes(), body].concat()
}

/// What a link says until it is closed, or says `until`.
async fn rest(stream: &mut Stream, until: &str) -> String {
    let mut text = Vec::new();
    let mut bytes = [0; 4096];
    while until.is_empty() || !String::from_utf8_lossy(&text).contains(until) {
        match tokio::time::timeout(LIMIT, stream.read(&mut bytes)).await.expect("the link says something or ends") {
            Ok(length) if length > 0 => text.extend_from_slice(&bytes[..length]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Runs a test with a gatekeeper, and what a host needs to join it.
fn with_session(test: impl AsyncFnOnce(&Running, &JoinConfig)) {
    let session = Running::start();
    let config = session.join_config();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(&session, &config));
}

fn is_alive(session: &Running) {
    assert_eq!(session.client().get::<Session>("/v1/session").unwrap().name, "test");
}

#[test]
fn bytes_that_are_not_tls_end_the_connection() {
    let session = Running::start();
    let config = session.join_config();
    for bytes in [&b"GET /v1/session HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0x16; 70_000], b""] {
        let mut stream = TcpStream::connect(&config.addresses[0]).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer); // closed, at the latest after the limit of the handshake
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP"));
    }
    is_alive(&session);
}

#[test]
fn address_for_hosts_wants_the_key() {
    with_session(async |session, config| {
        let wrong = JoinConfig { key: "0".repeat(64), ..config.clone() };
        for (path, headers) in [("/v1/session", authorization(&wrong)), ("/v1/link", link(&wrong, "b"))] {
            assert_eq!(request(config, "GET", path, &headers).await.0, 401, "{path}");
        }
        assert_eq!(request(config, "GET", "/v1/session", &authorization(config)).await.0, 200);
        for (method, path) in
            [("GET", "/v1/attach"), ("POST", "/v1/store"), ("POST", "/v1/join"), ("POST", "/v1/programs")]
        {
            let headers = format!("{}Content-Type: application/json\r\n", authorization(config));
            let status = request(config, method, path, &headers).await.0;
            assert!([400, 403].contains(&status), "{method} {path}: {status}");
        }
        is_alive(session);
    });
}

#[test]
fn hosts_with_wrong_names_or_of_another_session_are_refused() {
    with_session(async |session, config| {
        for (host, more, status) in
            [("../x", "", 400), ("", "", 400), ("here", "", 409), ("b", "Motet-Session: 00\r\n", 410)]
        {
            assert_eq!(request(config, "GET", "/v1/link", &(link(config, host) + more)).await.0, status, "{host:?}");
        }
        let without_upgrade = format!("{}Motet-Host: b\r\n", authorization(config));
        assert_eq!(request(config, "GET", "/v1/link", &without_upgrade).await.0, 400);
        let (status, _kept) = request(config, "GET", "/v1/link", &link(config, "b")).await;
        assert_eq!(status, 101);
        assert_eq!(request(config, "GET", "/v1/link", &link(config, "b")).await.0, 409, "the name is taken");
        is_alive(session);
    });
}

#[test]
fn malformed_frames_end_the_link() {
    with_session(async |session, config| {
        let too_long = [u32::MAX.to_le_bytes(), [0; 4]].concat();
        let long_body = [2u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
        for bytes in [frame("{}", b""), frame("\"nonsense\"", b""), frame("\u{0}", b""), too_long, long_body] {
            let (status, mut stream) = request(config, "GET", "/v1/link", &link(config, "b")).await;
            assert_eq!(status, 101, "the name is free again");
            stream.write_all(&bytes).await.unwrap();
            rest(&mut stream, "").await;
            until("the host is down", || {
                let hosts: Vec<Host> = session.client().get("/v1/hosts").unwrap();
                hosts.iter().all(|host| host.name != "b" || !host.up)
            });
        }
        is_alive(session);
    });
}

#[test]
fn requests_over_a_link_are_checked() {
    with_session(async |session, config| {
        let (_, mut stream) = request(config, "GET", "/v1/link", &link(config, "b")).await;
        let mut ask = async |id: u32, method: &str, path: &str, body: &[u8]| {
            let message = serde_json::json!({ "request": { "id": id, "method": method, "path": path } });
            stream.write_all(&frame(&message.to_string(), body)).await.unwrap();
            rest(&mut stream, &format!("{{\"end\":{{\"id\":{id}")).await
        };
        let cases = [
            ("GET", "not a path", &b""[..], 400),
            ("\u{1}", "/v1/session", b"", 400),
            ("GET", "/v1/session", b"", 200),
            ("GET", "/v1/link", b"", 403),
            ("GET", "/v1/attach", b"", 403),
            ("POST", "/v1/join", b"{}", 403),
            ("POST", "/v1/store", b"\xff\xfe", 400),
            ("POST", "/v1/store", b"{\"write\":{\"key\":\"k\",\"value\":\"v\",\"expected\":\"never\"}}", 422),
        ];
        for (id, (method, path, body, status)) in cases.into_iter().enumerate() {
            let answer = ask(id as u32 + 1, method, path, body).await;
            assert!(answer.contains(&format!("\"status\":{status},")), "{method} {path}: {answer}");
        }
        // Messages for nodes and hosts that do not exist, answers to requests that were never made.
        for message in [
            r#"{"deliver":{"host":"here","group":"g","from":"x","to":"y"}}"#,
            r#"{"deliver":{"host":"nowhere","group":"g","from":"x","to":"y"}}"#,
            r#"{"answer":{"id":77,"status":200,"content_type":null}}"#,
            r#"{"part":{"id":77}}"#,
            r#"{"end":{"id":77,"complete":true}}"#,
            r#"{"cancel":{"id":77}}"#,
        ] {
            stream.write_all(&frame(message, b"1")).await.unwrap();
        }
        is_alive(session);
    });
}

#[test]
fn idle_connections_do_not_keep_hosts_out() {
    let session = Running::start();
    let config = session.join_config();
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(&config.addresses[0]).unwrap()).collect();
    let host = Running::join(&session, "b");
    assert_eq!(host.client().get::<Session>("/v1/hosts/here/session").unwrap().host, "here");
    drop(idle);
}

#[test]
fn strangers_do_not_keep_hosts_out() {
    with_session(async |session, config| {
        let (status, mut known) = request(config, "GET", "/v1/session", &authorization(config)).await;
        assert_eq!(status, 200);
        assert_eq!(request(config, "GET", "/icon.svg", "").await.0, 401, "nothing is for all");
        let mut strangers = Vec::new();
        for _ in 0..100 {
            let mut stranger = connect(config).await;
            stranger.write_all(b"GET /v1/session HTTP/1.1\r\n").await.unwrap();
            strangers.push(stranger);
        }
        let (status, _kept) = request(config, "GET", "/v1/link", &link(config, "b")).await;
        assert_eq!(status, 101);
        // A connection that has shown the key occupies no place, so the crowd does not close it.
        let again = format!("GET /v1/session HTTP/1.1\r\nHost: x\r\n{}\r\n", authorization(config));
        known.write_all(again.as_bytes()).await.unwrap();
        assert!(rest(&mut known, "200 OK").await.contains("200 OK"));
        is_alive(session);
    });
}
