//! One request to the gatekeeper of this host, over its Unix socket.
//!
//! A request waits for at most [`LIMIT`]. The gatekeeper's answer is bounded and parsed like any other input.

use crate::api::Problem;
use crate::paths::SessionPaths;
use crate::unix_socket::connect_to;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The longest wait for an answer.
pub const LIMIT: Duration = Duration::from_secs(10);
/// How often, and after which pauses, a gatekeeper that has cut the connection is asked again.
const PAUSES_AFTER_A_CUT: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(20), Duration::from_millis(200)];
/// The longest answer, bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// The longest head of an answer, bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// Why a request has no result.
#[derive(Debug)]
pub enum ClientError {
    /// No gatekeeper listens: the session is not up.
    NotUp,
    /// The gatekeeper cannot be reached, or the connection broke.
    Io(io::Error),
    /// The answer is not one of a gatekeeper.
    Malformed(&'static str),
    /// The gatekeeper refused the request.
    Refused(u16, String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUp => f.write_str("no session is up on this host: start one with motet up"),
            Self::Io(error) => write!(f, "the gatekeeper does not answer: {error}"),
            Self::Malformed(what) => write!(f, "the gatekeeper's answer is not understood: {what}"),
            Self::Refused(_, why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::NotUp,
            _ => Self::Io(error),
        }
    }
}

/// A client of one gatekeeper.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    limit: Duration,
}

/// Connects to the gatekeeper of a session, after the session's folder was checked: a process of another user in its place gets nothing.
pub(crate) fn connect(paths: &SessionPaths) -> Result<UnixStream, ClientError> {
    match paths.check() {
        Ok(()) => Ok(connect_to(&paths.socket(), LIMIT)?),
        Err(_) if !paths.dir().exists() => Err(ClientError::NotUp),
        Err(error) => Err(ClientError::Io(io::Error::other(error))),
    }
}

impl Client {
    /// A client of this host's gatekeeper. Fails if the folder of the session is not this user's alone.
    pub fn of(paths: &SessionPaths) -> Result<Self, ClientError> {
        match paths.check() {
            Ok(()) => Ok(Self::at(&paths.socket())),
            Err(_) if !paths.dir().exists() => Err(ClientError::NotUp),
            Err(error) => Err(ClientError::Io(io::Error::other(error))),
        }
    }

    /// A client of the gatekeeper with this socket.
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), limit: LIMIT }
    }

    /// Sets the limit for an answer.
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// `GET`: the object at a path. A gatekeeper that ends meanwhile cuts the connection, so it is asked again.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let exchange = || self.exchange("GET", path, &[]);
        let mut answer = exchange();
        for pause in PAUSES_AFTER_A_CUT {
            if !matches!(&answer, Err(ClientError::Io(error)) if is_cut(error)) {
                break;
            }
            thread::sleep(pause);
            answer = exchange();
        }
        parse(&answer?)
    }

    /// `POST`: sends an object, and returns the answer.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Io(error.into()))?;
        parse(&self.exchange("POST", path, &body)?)
    }

    /// `DELETE`: removes the object at a path.
    pub fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.exchange("DELETE", path, &[]).map(drop)
    }

    /// Sends a request and returns the body of a successful answer. HTTP 1.0, so that the answer ends with the connection.
    fn exchange(&self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>, ClientError> {
        let mut stream = connect_to(&self.socket, self.limit)?;
        stream.set_read_timeout(Some(self.limit))?;
        stream.set_write_timeout(Some(self.limit))?;
        let mut request = head(method, path, &format!("Content-Length: {}\r\n", body.len()));
        request.extend_from_slice(body);
        stream.write_all(&request)?;
        let mut reader = BufReader::new(stream.take(MAX_ANSWER_BYTES));
        let status = read_head(&mut reader)?;
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer)?;
        match status {
            200..300 => Ok(answer),
            _ => Err(refusal(status, &answer)),
        }
    }
}

/// Whether the other end has closed the connection.
fn is_cut(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof)
}

/// The head of a request.
pub(crate) fn head(method: &str, path: &str, headers: &str) -> Vec<u8> {
    let version = if headers.contains("Upgrade") { "1.1" } else { "1.0" };
    format!("{method} {path} HTTP/{version}\r\nHost: motet\r\nContent-Type: application/json\r\n{headers}\r\n")
        .into_bytes()
}

/// Reads the head of an answer and nothing behind it; returns the status.
pub(crate) fn read_head(reader: &mut impl Read) -> Result<u16, ClientError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if head.len() >= MAX_HEAD_BYTES {
            return Err(ClientError::Malformed("a head without an end"));
        }
        reader.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut answer = httparse::Response::new(&mut headers);
    match answer.parse(&head) {
        Ok(httparse::Status::Complete(_)) => answer.code.ok_or(ClientError::Malformed("an answer without a status")),
        _ => Err(ClientError::Malformed("no HTTP")),
    }
}

/// The error that an answer describes.
pub(crate) fn refusal(status: u16, body: &[u8]) -> ClientError {
    let text = serde_json::from_slice::<Problem>(body)
        .map_or_else(|_| format!("the gatekeeper answers with HTTP status {status}"), |problem| problem.error);
    ClientError::Refused(status, text)
}

fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, ClientError> {
    let answer = if answer.is_empty() { b"null" } else { answer };
    serde_json::from_slice(answer).map_err(|_| ClientError::Malformed("another kind of object"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A gatekeeper that answers one request with these bytes.
    fn answering(answer: &'static [u8]) -> (tempfile::TempDir, Client) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer);
        });
        (dir, Client::at(&path).within(Duration::from_millis(500)))
    }

    #[test]
    fn answers_are_parsed() {
        let (_dir, client) = answering(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n[1,2]");
        assert_eq!(client.get::<Vec<u32>>("/v1/x").unwrap(), [1, 2]);
        let (_dir, client) = answering(b"HTTP/1.0 204 No Content\r\n\r\n");
        client.delete("/v1/x").unwrap();
    }

    #[test]
    fn refusals_carry_the_text() {
        let (_dir, client) = answering(b"HTTP/1.0 404 Not Found\r\n\r\n{\"error\":\"there is no such group\"}");
        let error = client.get::<()>("/v1/x").unwrap_err();
        assert_eq!(error.to_string(), "there is no such group");
        let (_dir, client) = answering(b"HTTP/1.0 500 Oops\r\n\r\n");
        assert!(client.get::<()>("/v1/x").unwrap_err().to_string().contains("500"));
    }

    #[test]
    fn hostile_answers_are_errors() {
        for answer in [&b""[..], b"nonsense\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n{", &[b'x'; 40_000]] {
            let (_dir, client) = answering(answer.to_vec().leak());
            assert!(client.get::<Vec<u32>>("/v1/x").is_err());
        }
    }

    #[test]
    fn gatekeeper_that_ends_while_it_is_asked_is_asked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let client = Client::at(&path).within(Duration::from_secs(30));
        let listener = UnixListener::bind(&path).unwrap();
        let ended = thread::spawn(move || {
            let stream = listener.accept().unwrap();
            drop(listener);
            drop(stream);
        });
        assert!(matches!(client.get::<()>("/v1/x").unwrap_err(), ClientError::NotUp));
        ended.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let restarted = thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n[1]");
        });
        assert_eq!(client.get::<Vec<u32>>("/v1/x").unwrap(), [1]);
        restarted.join().unwrap();
    }

    #[test]
    fn missing_gatekeeper_is_said() {
        let error = Client::at(Path::new("/does/not/exist")).get::<()>("/v1/x").unwrap_err();
        assert!(matches!(error, ClientError::NotUp) && error.to_string().contains("motet up"));
    }
}
