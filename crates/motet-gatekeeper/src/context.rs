//! What all routes use: the parts of the gatekeeper, and the forms of their answers.

use crate::auth::SessionKey;
use crate::directory::{Directory, DirectoryError};
use crate::hosts::Hosts;
use crate::live::Live;
use crate::nodes::Nodes;
use crate::remote_port::RemotePort;
use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use motet_session::api::{Containers, Problem};
use motet_session::paths::SessionPaths;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// What the routes use.
#[derive(Debug, Clone)]
pub struct Context {
    /// The session's name.
    pub session: String,
    /// This host.
    pub host: String,
    /// The identity that the session's programs carry in their environment.
    pub session_id: String,
    /// The directory.
    pub directory: Directory,
    /// The other hosts.
    pub hosts: Hosts,
    /// The address for other hosts.
    pub remote_port: RemotePort,
    /// The connections of nodes.
    pub nodes: Nodes,
    /// When this gatekeeper started.
    pub started: Instant,
    /// The address of the TCP socket.
    pub listen: SocketAddr,
    /// Whether containers of this host share memory.
    pub containers: Containers,
    /// The session's files.
    pub paths: SessionPaths,
    /// The session's key.
    pub key: Arc<SessionKey>,
    /// Processes, events and logins of browsers.
    pub live: Live,
    /// Ends the gatekeeper.
    pub end: watch::Sender<bool>,
}

/// An error, as JSON.
#[derive(Debug)]
pub struct Failure(pub StatusCode, pub String);

/// An object, as JSON.
pub type Answer<T> = Result<Json<T>, Failure>;

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(Problem { error: self.1 })).into_response()
    }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        let status = match error {
            DirectoryError::Invalid(_) => StatusCode::BAD_REQUEST,
            DirectoryError::NotFound(_) => StatusCode::NOT_FOUND,
            DirectoryError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

/// The answer after which the connection has another protocol.
pub fn upgraded(protocol: &'static str) -> Response {
    let headers = [(header::CONNECTION, "Upgrade"), (header::UPGRADE, protocol)];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}
