//! The secondary gatekeeper's side of its link: it connects to the primary one, and does so again whenever the link breaks.

use crate::directory::Directory;
use crate::hosts::Hosts;
use crate::hosts_api::HOST_LIMIT;
use crate::link;
use crate::nodes::Nodes;
use crate::tls;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use motet_session::api::Problem;
use motet_session::hosts::{HOST_HEADER, Host, JoinConfig, LINK_PROTOCOL, SESSION_HEADER};
use motet_session::process::Process;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The wait for a connection to one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// The wait for the handshake and the answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The pause before the first new attempt; it doubles with each one.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The longest pause between two attempts while the primary gatekeeper waits for this host, and later.
const MAX_RETRY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// The longest text of a refusal, bytes.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Why there is no link.
#[derive(Debug)]
pub enum UplinkError {
    /// The session has ended.
    Ended,
    /// The primary gatekeeper refuses this host.
    Refused(String),
    /// No address answers as the session's primary gatekeeper.
    Unreachable(String),
}

impl fmt::Display for UplinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the session of this host has ended"),
            Self::Refused(why) => write!(f, "the primary gatekeeper refuses this host: {why}"),
            Self::Unreachable(why) => write!(f, "the primary gatekeeper cannot be reached: {why}"),
        }
    }
}

impl std::error::Error for UplinkError {}

/// A connection that the primary gatekeeper has accepted.
pub struct Connected {
    /// The primary's host.
    pub primary: String,
    /// The session's identity.
    pub session_id: String,
    /// The address of this host on the connection.
    pub address: IpAddr,
    stream: TokioIo<Upgraded>,
}

/// Connects to the first address that answers. `session_id`: the session that this host is in already.
pub async fn connect(config: &JoinConfig, own: &str, session_id: Option<&str>) -> Result<Connected, UplinkError> {
    let mut why = String::new();
    for address in &config.addresses {
        match tokio::time::timeout(ANSWER_LIMIT, connect_to(config, address, own, session_id)).await {
            Ok(Err(UplinkError::Unreachable(error))) => why = format!("{address}: {error}"),
            Ok(result) => return result,
            Err(_) => why = format!("{address}: no answer in time"),
        }
    }
    Err(UplinkError::Unreachable(why))
}

async fn connect_to(
    config: &JoinConfig,
    primary: &str,
    own: &str,
    session_id: Option<&str>,
) -> Result<Connected, UplinkError> {
    let unreachable = |error: &dyn fmt::Display| UplinkError::Unreachable(error.to_string());
    let stream = match tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(primary)).await {
        Ok(stream) => stream.map_err(|error| unreachable(&error))?,
        Err(_) => return Err(unreachable(&"no connection in time")),
    };
    let _ = stream.set_nodelay(true);
    let address = stream.local_addr().map_err(|error| unreachable(&error))?.ip();
    let (connector, name) = tls::connector(&config.authority).map_err(|error| unreachable(&error))?;
    let stream = connector.connect(name, stream).await.map_err(|error| unreachable(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
    let connection = tokio::spawn(connection.with_upgrades());
    let mut request = Request::get("/v1/link")
        .header(header::HOST, "motet")
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, LINK_PROTOCOL)
        .header(header::AUTHORIZATION, format!("Bearer {}", config.key))
        .header(HOST_HEADER, own);
    if let Some(id) = session_id {
        request = request.header(SESSION_HEADER, id);
    }
    let request = request.body(Body::empty()).map_err(|error| unreachable(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    let text = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    match (answer.status(), text(HOST_HEADER), text(SESSION_HEADER)) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(primary), Some(session_id)) => {
            let stream = hyper::upgrade::on(answer).await.map_err(|error| unreachable(&error))?;
            Ok(Connected { primary, session_id, address, stream: TokioIo::new(stream) })
        }
        (StatusCode::GONE, ..) => Err(UplinkError::Ended),
        (status, ..) => {
            let body = Limited::new(answer.into_body(), MAX_REFUSAL_BYTES).collect().await;
            connection.abort();
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            let why = serde_json::from_slice::<Problem>(&body).map(|problem| problem.error);
            Err(UplinkError::Refused(why.unwrap_or_else(|_| format!("HTTP status {status}"))))
        }
    }
}

/// A link that is kept.
pub struct Uplink {
    /// The other hosts.
    pub hosts: Hosts,
    /// The directory.
    pub directory: Directory,
    /// The nodes of this host, once they are known.
    pub nodes: Arc<OnceLock<Nodes>>,
    /// How to connect.
    pub config: JoinConfig,
}

impl Uplink {
    /// Keeps the link, whose first connection is there. Returns when the session has ended at the primary gatekeeper.
    pub async fn keep(self, connected: Connected) {
        let session_id = connected.session_id.clone();
        self.run(connected).await;
        let (mut since, mut pause) = (Instant::now(), FIRST_RETRY);
        loop {
            match connect(&self.config, self.hosts.own(), Some(&session_id)).await {
                Ok(connected) => {
                    self.run(connected).await;
                    (since, pause) = (Instant::now(), FIRST_RETRY);
                }
                Err(UplinkError::Ended) => return,
                Err(UplinkError::Refused(_) | UplinkError::Unreachable(_)) => {}
            }
            tokio::time::sleep(pause).await;
            let [early, late] = MAX_RETRY;
            pause = (pause * 2).min(if since.elapsed() < HOST_LIMIT { early } else { late });
        }
    }

    /// Runs a connection until it ends. Then the nodes of this host attach again, because messages may have been lost.
    async fn run(&self, connected: Connected) {
        let (link, driver) = link::new();
        self.hosts.set_address(connected.address);
        self.hosts.set_uplink(Some((connected.primary, link)));
        let announcing = async {
            announce(&self.hosts, &self.directory).await;
            std::future::pending().await
        };
        tokio::select! {
            () = driver.run(connected.stream, self.hosts.handler().clone()) => {}
            () = announcing => {}
        }
        self.hosts.set_uplink(None);
        if let Some(nodes) = self.nodes.get() {
            nodes.disconnect_all();
        }
    }
}

/// Adds this host to the directory.
pub async fn announce(hosts: &Hosts, directory: &Directory) {
    let (name, primary) = (hosts.own().to_owned(), hosts.is_primary());
    let host = Host { name, gatekeeper: Process::this(), primary, up: true };
    while directory.add_host(&host).await.is_err() {
        tokio::time::sleep(MAX_RETRY[1]).await;
    }
}
