//! A hostile gatekeeper: it listens on a session's socket, and says to the nodes that attach whatever a test wants.
#![allow(dead_code)] // each test binary uses a part

use motet_session::api::{FromNode, ToNode};
use motet_session::paths::SessionPaths;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// Nothing takes so long.
pub const LIMIT: Duration = Duration::from_secs(60);
/// The answer to the request of a node.
pub const UPGRADED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: motet-attach/1\r\nConnection: Upgrade\r\n\r\n";

/// It listens from its start on.
pub struct FakeGatekeeper {
    pub paths: SessionPaths,
    listener: UnixListener,
    _dir: tempfile::TempDir,
}

/// The connection of a node.
pub struct Connection(pub UnixStream);

impl FakeGatekeeper {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "test").unwrap();
        paths.create().unwrap();
        let listener = UnixListener::bind(paths.socket()).unwrap();
        Self { paths, listener, _dir: dir }
    }

    /// The next connection of a node; its request has been read. A request for the session before that is answered.
    pub fn accept(&self) -> Connection {
        loop {
            let (mut stream, _) = self.listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.set_write_timeout(Some(LIMIT)).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            if head.starts_with(b"GET /v1/attach HTTP/1.1\r\n") {
                return Connection(stream);
            }
            assert!(head.starts_with(b"GET /v1/session HTTP/1.0\r\n"), "{}", String::from_utf8_lossy(&head));
            let session = serde_json::json!({
                "name": "test", "host": "h", "gatekeeper": { "pid": 1, "started": 1 }, "version": "0", "uptime_s": 0,
                "id": "one", "listen": "127.0.0.1:1",
            });
            stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{session}").as_bytes()).unwrap();
        }
    }

    /// The next connection, upgraded and welcomed to the session of this identity.
    pub fn welcome(&self, session: &str) -> Connection {
        let mut connection = self.accept();
        connection.write(UPGRADED);
        assert!(matches!(connection.line(), Some(FromNode::Hello { .. })));
        connection.say(&ToNode::Welcome { host: "h".to_owned(), session: session.to_owned() });
        connection
    }
}

impl Connection {
    /// Writes bytes. The node may have closed the connection already: false.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    pub fn say(&mut self, line: &ToNode) -> bool {
        let text = serde_json::to_string(line).unwrap() + "\n";
        self.write(text.as_bytes())
    }

    /// What the node says next; `None`: it has closed the connection.
    pub fn line(&mut self) -> Option<FromNode> {
        let mut line = String::new();
        // Byte by byte: what follows is for the next call.
        BufReader::with_capacity(1, &self.0).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}
