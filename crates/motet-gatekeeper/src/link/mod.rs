//! The link between two gatekeepers: one connection that carries requests of HTTP in both directions, and messages between nodes.
//!
//! Only the secondary gatekeeper connects, so its host needs no open port. Requests are answered by the gatekeeper's own routes, at the same time and
//! in parts, so a long answer delays no other one. Messages between nodes stay in order. A link that is silent is closed.

mod frame;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, header};
use frame::{Frame, MAX_BODY_BYTES, Message, PART_BYTES};
use http_body_util::BodyExt;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tower::ServiceExt;

use crate::limited::Limited;
use crate::peer::Peer;

/// Each side sends something at least this often.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// A link on which nothing arrives, or nothing can be sent, for this time is closed.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Frames that wait to be sent.
const MAX_QUEUE: usize = 4096;
/// Requests of the peer at a time.
const MAX_REQUESTS: usize = 256;
/// Bytes of an answer that wait for the one who wants it. An answer that is taken too slowly is cancelled.
const MAX_BUFFERED_BYTES: usize = 32 << 20;

/// Why a request over a link has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkError {
    /// The link broke.
    Broken,
    /// The answer did not come in time.
    TimedOut,
    /// The answer is longer than the caller wants.
    TooLong,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broken => "the connection to its gatekeeper broke",
            Self::TimedOut => "its gatekeeper does not answer in time",
            Self::TooLong => "its gatekeeper's answer is too long",
        })
    }
}

impl std::error::Error for LinkError {}

/// A message of a node to a node of another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The receiver's host.
    pub host: String,
    /// The group that both are in.
    pub group: String,
    /// The sender's identity.
    pub from: String,
    /// The receiver's identity.
    pub to: String,
    /// The message.
    pub body: serde_json::Value,
}

/// Takes messages between nodes.
pub type Deliver = Box<dyn Fn(Delivery) + Send + Sync>;

/// What links do with what their peers say. Before both are set requests are refused, and messages have no receiver.
#[derive(Clone, Default)]
pub struct Handler {
    /// Answers requests.
    pub router: Arc<OnceLock<Router>>,
    /// Takes messages between nodes.
    pub deliver: Arc<OnceLock<Deliver>>,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler(..)")
    }
}

/// The sending half of a link. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    out: mpsc::Sender<Frame>,
    next_id: AtomicU64,
    /// The requests without an answer so far. `None`: the link has ended.
    waiting: Mutex<Option<HashMap<u64, Waiting>>>,
    /// Closed when the link must end.
    abort: Mutex<Option<oneshot::Sender<()>>>,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Waiting {
    head: Option<oneshot::Sender<(u16, Option<String>)>>,
    parts: mpsc::UnboundedSender<Part>,
    buffered_bytes: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Part {
    Data(Vec<u8>),
    End { complete: bool },
}

/// The other half of a link, which has to be run.
pub struct Driver {
    link: Link,
    queue: mpsc::Receiver<Frame>,
    aborted: oneshot::Receiver<()>,
}

/// A link that is not connected yet.
pub fn new() -> (Link, Driver) {
    let (out, queue) = mpsc::channel(MAX_QUEUE);
    let (abort, aborted) = oneshot::channel();
    let (waiting, abort) = (Mutex::new(Some(HashMap::new())), Mutex::new(Some(abort)));
    let link = Link { shared: Arc::new(Shared { out, next_id: AtomicU64::new(1), waiting, abort }) };
    (link.clone(), Driver { link, queue, aborted })
}

impl Link {
    /// Sends a request, and waits for the head of its answer.
    pub async fn request(&self, method: &str, path: &str, body: Vec<u8>, limit: Duration) -> Result<Answer, LinkError> {
        if body.len() > MAX_BODY_BYTES {
            return Err(LinkError::TooLong);
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (head, answered) = oneshot::channel();
        let (sender, parts) = mpsc::unbounded_channel();
        let buffered_bytes = Arc::new(AtomicUsize::new(0));
        let waiting = Waiting { head: Some(head), parts: sender, buffered_bytes: buffered_bytes.clone() };
        self.waiting().as_mut().ok_or(LinkError::Broken)?.insert(id, waiting);
        let mut answer = Answer { status: 0, content_type: None, link: self.clone(), id, parts, buffered_bytes };
        let message = Message::Request { id, method: method.to_owned(), path: path.to_owned() };
        let exchange = async {
            self.shared.out.send(Frame { message, body }).await.map_err(|_| LinkError::Broken)?;
            answered.await.map_err(|_| LinkError::Broken)
        };
        let (status, content_type) = tokio::time::timeout(limit, exchange).await.map_err(|_| LinkError::TimedOut)??;
        (answer.status, answer.content_type) = (status, content_type);
        Ok(answer)
    }

    /// Sends a message of a node. One that cannot be sent ends the link, so that the nodes learn of the loss.
    pub fn deliver(&self, delivery: &Delivery) {
        let Delivery { host, group, from, to, body } = delivery.clone();
        let Ok(body) = serde_json::to_vec(&body) else { return };
        let message = Message::Deliver { host, group, from, to };
        if self.shared.out.try_send(Frame { message, body }).is_err() {
            self.close();
        }
    }

    /// Ends the link.
    pub fn close(&self) {
        self.shared.abort.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether two handles are of one link.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, Waiting>>> {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a part of an answer to the one who waits for it.
    fn take_part(&self, id: u64, part: Part) {
        let mut waiting = self.waiting();
        let Some(waiting) = waiting.as_mut() else { return };
        let Some(request) = waiting.get(&id) else { return };
        let (is_end, bytes) = match &part {
            Part::Data(data) => (false, data.len()),
            Part::End { .. } => (true, 0),
        };
        let too_much = request.buffered_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_BUFFERED_BYTES;
        if !too_much {
            let _ = request.parts.send(part);
        }
        if is_end || too_much {
            waiting.remove(&id); // an answer that ends without its end is broken
        }
    }
}

/// An answer, whose body comes in parts. Dropping it before its end cancels the request.
#[derive(Debug)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// The type of the body.
    pub content_type: Option<String>,
    link: Link,
    id: u64,
    parts: mpsc::UnboundedReceiver<Part>,
    buffered_bytes: Arc<AtomicUsize>,
}

impl Answer {
    /// The next part of the body. `None`: there is no more.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        match self.parts.recv().await {
            Some(Part::Data(data)) => {
                self.buffered_bytes.fetch_sub(data.len(), Ordering::Relaxed);
                Ok(Some(data))
            }
            Some(Part::End { complete: true }) => Ok(None),
            Some(Part::End { complete: false }) | None => Err(LinkError::Broken),
        }
    }

    /// The whole body.
    pub async fn bytes(mut self, max: usize, limit: Duration) -> Result<Vec<u8>, LinkError> {
        let reading = async {
            let mut bytes = Vec::new();
            while let Some(part) = self.next().await? {
                if bytes.len() + part.len() > max {
                    return Err(LinkError::TooLong);
                }
                bytes.extend(part);
            }
            Ok(bytes)
        };
        tokio::time::timeout(limit, reading).await.map_err(|_| LinkError::TimedOut)?
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let unfinished = self.link.waiting().as_mut().and_then(|waiting| waiting.remove(&self.id)).is_some();
        if unfinished {
            let _ = self.link.shared.out.try_send(Frame::of(Message::Cancel { id: self.id }));
        }
    }
}

/// The requests of the peer that are being answered. Dropping it stops them.
#[derive(Debug, Default, Clone)]
struct Running(Arc<Mutex<HashMap<u64, AbortHandle>>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop_all(&self) {
        self.lock().drain().for_each(|(_, task)| task.abort());
    }
}

impl Driver {
    /// Runs the link over a connection, until that ends.
    pub async fn run(self, stream: impl AsyncRead + AsyncWrite, handler: Handler) {
        let Self { link, mut queue, aborted } = self;
        // A long frame may take its time on a slow network: silence is that no byte passes.
        let (reader, writer) = tokio::io::split(stream);
        let mut writer = Limited::within(writer, SILENCE_LIMIT);
        let running = Running::default();
        let reading = async {
            let mut reader = BufReader::new(Limited::within(reader, SILENCE_LIMIT));
            while let Ok(frame) = Frame::read(&mut reader).await {
                take(&link, &handler, &running, frame);
            }
        };
        let writing = async {
            loop {
                let frame = match tokio::time::timeout(ALIVE_INTERVAL, queue.recv()).await {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return,
                    Err(_) => Frame::of(Message::Alive),
                };
                writer.touch();
                if frame.write(&mut writer).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => {}
            _ = aborted => {}
        }
        link.waiting().take();
        running.stop_all();
    }
}

/// Does what a frame of the peer says.
fn take(link: &Link, handler: &Handler, running: &Running, Frame { message, body }: Frame) {
    match message {
        Message::Alive => {}
        Message::Answer { id, status, content_type } => {
            let mut waiting = link.waiting();
            let head = waiting.as_mut().and_then(|waiting| waiting.get_mut(&id)).and_then(|one| one.head.take());
            if let Some(head) = head {
                let _ = head.send((status, content_type));
            }
        }
        Message::Part { id } => link.take_part(id, Part::Data(body)),
        Message::End { id, complete } => link.take_part(id, Part::End { complete }),
        Message::Cancel { id } => drop(running.lock().remove(&id).map(|task| task.abort())),
        Message::Deliver { host, group, from, to } => {
            if let (Ok(body), Some(deliver)) = (serde_json::from_slice(&body), handler.deliver.get()) {
                deliver(Delivery { host, group, from, to, body });
            }
        }
        Message::Request { id, method, path } => {
            let mut tasks = running.lock();
            let is_full = tasks.len() >= MAX_REQUESTS || tasks.contains_key(&id);
            let router = handler.router.get().filter(|_| !is_full).cloned();
            let (out, own) = (link.shared.out.clone(), running.clone());
            let task = tokio::spawn(async move {
                let response = match router {
                    Some(router) => respond(router, &method, &path, body).await,
                    None => Err(503),
                };
                send_answer(&out, id, response).await;
                own.lock().remove(&id);
            });
            if !is_full {
                tasks.insert(id, task.abort_handle());
            }
        }
    }
}

/// The answer of this gatekeeper's routes. The error is a status.
async fn respond(router: Router, method: &str, path: &str, body: Vec<u8>) -> Result<axum::response::Response, u16> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .extension(ConnectInfo(Peer::Gatekeeper))
        .body(Body::from(body))
        .map_err(|_| 400u16)?;
    router.oneshot(request).await.map_err(|_| 500)
}

/// Sends an answer in parts. An error of the link ends it.
async fn send_answer(out: &mpsc::Sender<Frame>, id: u64, response: Result<axum::response::Response, u16>) {
    let send = |message, body| async move { out.send(Frame { message, body }).await.is_ok() };
    let (status, content_type, body) = match response {
        Ok(response) => {
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
            (response.status().as_u16(), content_type, Some(response.into_body()))
        }
        Err(status) => (status, None, None),
    };
    if !send(Message::Answer { id, status, content_type }, Vec::new()).await {
        return;
    }
    let mut complete = true;
    if let Some(mut body) = body {
        while let Some(part) = body.frame().await {
            let Ok(part) = part else {
                complete = false;
                break;
            };
            let Ok(data) = part.into_data() else { continue };
            for piece in data.chunks(PART_BYTES) {
                if !send(Message::Part { id }, piece.to_vec()).await {
                    return;
                }
            }
        }
    }
    send(Message::End { id, complete }, Vec::new()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// A network that passes a byte a second: no frame comes within the limit, but bytes do.
    #[tokio::test(start_paused = true)]
    async fn frame_may_take_longer_than_a_silence() {
        let (_link, driver) = new();
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let handler = Handler::default();
        let (give, mut delivered) = mpsc::unbounded_channel();
        let _ = handler.deliver.set(Box::new(move |delivery: Delivery| drop(give.send(delivery.group))));
        let running = tokio::spawn(driver.run(near, handler));
        let message = Message::Deliver { host: "h".into(), group: "g".into(), from: "f".into(), to: "t".into() };
        for byte in message.frame(b"[1, 2]").unwrap() {
            far.write_all(&[byte]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(delivered.recv().await.as_deref(), Some("g"));
        // Half a frame and no more bytes is silence.
        far.write_all(&[1]).await.unwrap();
        running.await.unwrap();
    }
}
