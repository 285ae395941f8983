//! The routes that concern other hosts: the list of hosts, the way to their gatekeepers, links, and the store for secondary gatekeepers.

use crate::context::{Answer, Context, Failure, upgraded};
use crate::directory::Directory;
use crate::hosts::{ANSWER_LIMIT, HostError, Hosts};
use crate::link;
use crate::options::Kept;
use crate::peer::Peer;
use crate::store::remote::{Operation, Outcome};
use crate::store::{Change, StoreError};
use crate::tcp_port::LocalAddress;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures_util::stream;
use hyper_util::rt::TokioIo;
use motet_session::hosts::{HOST_HEADER, Host, JoinConfig, LINK_PROTOCOL, SESSION_HEADER};
use motet_session::paths::check_name;
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;
use tower::ServiceExt;

/// A host that is not connected for this time loses its nodes and programs.
pub const HOST_LIMIT: Duration = Duration::from_secs(10);
/// The wait for an answer of another host about an operation on modules.
const OPERATION_LIMIT: Duration = Duration::from_secs(90);
/// The longest body of a request to another host, or to the store, bytes.
const MAX_BODY_BYTES: usize = 8 << 20;
/// A change of the directory that fails is tried again after this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// What is not for clients of other hosts: connections, secrets, and the way through a host to the next one.
const NOT_FORWARDED: [&str; 6] = ["attach", "hosts", "join", "link", "login", "store"];

/// What is forwarded only for processes of the session, not for browsers: secrets.
const EXPORT_ADDRESSES: &str = "export-addresses";

/// The routes.
pub fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/hosts", get(hosts))
        .route("/v1/hosts/{host}/{*path}", any(forward))
        .route("/v1/join", post(join_config))
        .route("/v1/link", get(link))
        .route("/v1/store", post(store).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)))
        .route("/v1/store/watch", get(watch))
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        let status = match error {
            HostError::Away(_) => StatusCode::NOT_FOUND,
            HostError::Link(..) => StatusCode::BAD_GATEWAY,
        };
        Self(status, error.to_string())
    }
}

/// The hosts of the session
#[utoipa::path(get, path = "/v1/hosts", responses((status = 200, body = [Host])))]
pub async fn hosts(State(context): State<Context>) -> Answer<Vec<Host>> {
    Ok(Json(context.directory.hosts().await?))
}

/// Forwards a request to the gatekeeper of a host: `/v1/hosts/a/programs` is `/v1/programs` of host a
#[utoipa::path(get, path = "/v1/hosts/{host}/{path}", params(("host" = String, Path), ("path" = String, Path)),
    responses((status = 200), (status = 404, body = motet_session::api::Problem),
        (status = 502, body = motet_session::api::Problem)))]
pub async fn forward(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path((host, path)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    if NOT_FORWARDED.contains(&path.split('/').next().unwrap_or_default()) {
        return Err(Failure(StatusCode::FORBIDDEN, format!("/v1/{path} is not for other hosts")));
    }
    // The primary gatekeeper forwards what the gatekeeper of another host asks for its own processes.
    if path.starts_with(EXPORT_ADDRESSES) && matches!(peer, Peer::Remote) {
        return Err(Failure(StatusCode::FORBIDDEN, format!("/v1/{path} is only for processes of the session")));
    }
    // The path as the client wrote it: what is escaped in it stays so.
    let written = request.uri().path_and_query().map_or("", |path| path.as_str());
    let rest = written.splitn(5, '/').nth(4).unwrap_or_default();
    let path = format!("/v1/{rest}");
    if host == context.host {
        let router = context.hosts.router().cloned();
        // A new request: what the routes have noted in this one, such as parts of its path, is not for the next ones.
        let (old, body) = request.into_parts();
        let mut request = Request::new(body);
        *request.uri_mut() = path.parse().map_err(|_| Failure(StatusCode::BAD_REQUEST, "no path".to_owned()))?;
        (*request.method_mut(), *request.headers_mut()) = (old.method, old.headers);
        request.extensions_mut().insert(ConnectInfo(peer));
        let router = router.ok_or_else(|| Failure(StatusCode::SERVICE_UNAVAILABLE, "not ready yet".to_owned()))?;
        return match router.oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        };
    }
    let method = request.method().as_str().to_owned();
    let too_long = |_| Failure(StatusCode::PAYLOAD_TOO_LARGE, format!("more than {MAX_BODY_BYTES} bytes"));
    let body = to_bytes(request.into_body(), MAX_BODY_BYTES).await.map_err(too_long)?;
    let limit = if path.ends_with("/modules") { OPERATION_LIMIT } else { ANSWER_LIMIT };
    let answer = context.hosts.open(&host, &method, &path, body.into(), limit).await?;
    let mut response = Response::builder().status(answer.status);
    if let Some(content_type) = &answer.content_type {
        response = response.header(header::CONTENT_TYPE, content_type);
    }
    let parts = stream::unfold(Some(answer), async |answer| {
        let mut answer = answer?;
        match answer.next().await {
            Ok(part) => part.map(|part| (Ok(part), Some(answer))),
            Err(error) => Some((Err(error), None)),
        }
    });
    response.body(Body::from_stream(parts)).map_err(|error| Failure(StatusCode::BAD_GATEWAY, error.to_string()))
}

/// What a host needs to join the session; opens the address for other hosts first. Only for processes of this host
async fn join_config(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(JoinRequest { listen }): Json<JoinRequest>,
) -> Answer<JoinConfig> {
    if !matches!(peer, Peer::Local(_)) {
        return Err(Failure(StatusCode::FORBIDDEN, "only a process of this host may add hosts".to_owned()));
    }
    if !context.hosts.is_primary() {
        let why = "this host has joined the session of another one: add hosts there".to_owned();
        return Err(Failure(StatusCode::CONFLICT, why));
    }
    let cannot_listen = |error: std::io::Error| {
        Failure(StatusCode::CONFLICT, format!("cannot listen for other hosts: {error}; choose another --listen"))
    };
    let router = context.hosts.router().cloned();
    let router = router.ok_or_else(|| Failure(StatusCode::SERVICE_UNAVAILABLE, "not ready yet".to_owned()))?;
    let (authority, addresses) =
        context.remote_port.open(&context.paths, router, listen).await.map_err(cannot_listen)?;
    let key = context.key.text().to_owned();
    let directory = Kept::load(&context.paths).directory;
    let (session, containers) = (context.session, context.containers);
    Ok(Json(JoinConfig { session, key, authority, addresses, host: None, directory, containers }))
}

/// Where to listen for other hosts.
#[derive(Debug, Deserialize)]
struct JoinRequest {
    listen: Option<SocketAddr>,
}

/// The connection of a secondary gatekeeper.
async fn link(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    mut request: Request,
) -> Result<Response, Failure> {
    if matches!(peer, Peer::Gatekeeper) {
        return Err(Failure(StatusCode::FORBIDDEN, "a link carries no link".to_owned()));
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    if text(header::UPGRADE.as_str()).as_deref() != Some(LINK_PROTOCOL) {
        return Err(Failure(StatusCode::BAD_REQUEST, format!("say Upgrade: {LINK_PROTOCOL}")));
    }
    if text(SESSION_HEADER).is_some_and(|id| id != context.session_id) {
        return Err(Failure(StatusCode::GONE, motet_session::api::ANOTHER_SESSION.to_owned()));
    }
    let host = text(HOST_HEADER).unwrap_or_default();
    check_name("host", &host).map_err(|error| Failure(StatusCode::BAD_REQUEST, error.to_string()))?;
    let (link, driver) = link::new();
    context.hosts.add(&host, &link).map_err(|why| Failure(StatusCode::CONFLICT, why))?;
    if let Some(LocalAddress(address)) = request.extensions().get() {
        context.hosts.set_address(*address);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let answer = [(HOST_HEADER, context.host.clone()), (SESSION_HEADER, context.session_id.clone())];
    tokio::spawn(async move {
        if let Ok(stream) = upgrade.await {
            driver.run(TokioIo::new(stream), context.hosts.handler().clone()).await;
        }
        context.hosts.remove(&host);
        while context.directory.host_is_down(&host).await.is_err() && !context.hosts.is_linked(&host) {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        expect_back(&context.hosts, &context.directory, &host).await;
    });
    Ok((answer, upgraded(LINK_PROTOCOL)).into_response())
}

/// Waits until a host connects again. If it does not, its nodes and programs leave the session.
pub async fn expect_back(hosts: &Hosts, directory: &Directory, host: &str) {
    let accepted = hosts.accepted_of(host);
    tokio::time::sleep(HOST_LIMIT).await;
    while hosts.accepted_of(host) == accepted && directory.remove_host(host).await.is_err() {
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// An operation on the store, for a secondary gatekeeper.
async fn store(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(operation): Json<Operation>,
) -> Answer<Outcome> {
    only_gatekeepers(peer)?;
    let store = context.directory.store();
    let result = match operation {
        Operation::Get { key } => store.get(&key).await.map(Outcome::Value),
        Operation::List { prefix } => store.list(&prefix).await.map(|(list, revision)| Outcome::List(list, revision)),
        Operation::Write { key, value, expected } => store.write(&key, value, expected).await.map(Outcome::Written),
    };
    Ok(Json(match result {
        Ok(outcome) => outcome,
        Err(StoreError::Conflict) => Outcome::Conflict,
        Err(error) => Outcome::Unavailable(error.to_string()),
    }))
}

/// The changes that a watcher wants.
#[derive(Debug, Deserialize)]
struct WatchQuery {
    prefix: String,
    revision: u64,
}

/// The changes of the store, for a secondary gatekeeper: a line of JSON for each list of changes.
async fn watch(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Failure> {
    only_gatekeepers(peer)?;
    let watch = context.directory.store().watch(&query.prefix, query.revision);
    let lines = stream::unfold(watch, async |mut watch| {
        let line = watch.next().await.map_err(std::io::Error::other).and_then(|changes: Vec<Change>| {
            let mut line = serde_json::to_vec(&changes)?;
            line.push(b'\n');
            Ok(line)
        });
        Some((line, watch))
    });
    Ok(Body::from_stream(lines).into_response())
}

/// Refuses everyone but the gatekeepers of other hosts.
fn only_gatekeepers(peer: Peer) -> Result<(), Failure> {
    match peer {
        Peer::Gatekeeper => Ok(()),
        Peer::Local(_) | Peer::Remote => Err(Failure(StatusCode::FORBIDDEN, "only for gatekeepers".to_owned())),
    }
}
