//! The HTTP API, version 1. `GET /v1/openapi.json` describes it.

use crate::connection;
use crate::context::{Answer, Context, Failure, upgraded};
use crate::dashboard;
use crate::ending;
use crate::exports_api;
use crate::hosts_api;
use crate::modules_api;
use crate::peer::Peer;
use crate::places::Place;
use crate::programs;
use crate::watch_api;
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::TokioIo;
use motet_session::api::{ATTACH_PROTOCOL, Problem, Program, Session, View};
use motet_session::circuits::Circuit;
use motet_session::process::Process;
use std::fmt::Write;
use utoipa::OpenApi;

/// The routes of the gatekeeper's own host: the API, and the dashboard.
pub fn router(context: Context) -> Router {
    private_routes(&context).merge(dashboard::public_routes()).with_state(context)
}

/// The routes for other hosts, which all need the key.
pub fn router_for_hosts(context: Context) -> Router {
    private_routes(&context).with_state(context)
}

fn private_routes(context: &Context) -> Router<Context> {
    Router::new()
        .route("/v1/session", get(session).delete(end))
        .route("/v1/groups", get(groups))
        .route("/v1/groups/{group}", get(group))
        .route("/v1/circuits", get(circuits))
        .route("/v1/programs", get(list_programs).post(add_program))
        .route("/v1/attach", get(attach))
        .route("/v1/openapi.json", get(openapi))
        .route("/metrics", get(metrics))
        .merge(hosts_api::routes())
        .merge(watch_api::routes())
        .merge(dashboard::routes())
        .merge(modules_api::routes())
        .merge(exports_api::routes())
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(context.clone(), authorise))
}

/// Lets through: local peers and other gatekeepers, remote ones that know the key, and browsers that have logged in.
async fn authorise(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes().to_vec());
    let is_admitted = match (peer, &authorization) {
        (Peer::Local(_) | Peer::Gatekeeper, _) => true,
        (Peer::Remote, None) if context.live.logins.admits(request.method(), request.headers()) => true,
        (Peer::Remote, key) => context.key.check(key.as_deref()).await,
    };
    if !is_admitted {
        return Failure(StatusCode::UNAUTHORIZED, "the session's key is missing or wrong".to_owned()).into_response();
    }
    if let Some(place) = request.extensions().get::<Place>() {
        place.admit();
    }
    next.run(request).await
}

async fn not_found() -> Failure {
    Failure(StatusCode::NOT_FOUND, "there is nothing at this path; GET /v1/openapi.json lists what there is".to_owned())
}

/// The session
#[utoipa::path(get, path = "/v1/session", responses((status = 200, body = Session)))]
async fn session(State(context): State<Context>) -> Json<Session> {
    Json(Session {
        name: context.session,
        host: context.host,
        gatekeeper: Process::this(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_s: context.started.elapsed().as_secs(),
        id: context.session_id,
        listen: context.listen.to_string(),
        address: context.hosts.address(),
        containers: context.containers,
    })
}

/// The hosts that a request ends.
#[derive(Debug, Default, serde::Deserialize)]
struct EndQuery {
    /// Only the host of this gatekeeper.
    #[serde(default)]
    only_here: bool,
    /// All hosts but this one.
    except: Option<String>,
}

/// Ends the session on all hosts: its programs get SIGTERM, then SIGKILL; the answer comes when they have ended, and is their number
#[utoipa::path(delete, path = "/v1/session", responses((status = 200, body = usize), (status = 500, body = Problem)))]
async fn end(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(query): Query<EndQuery>,
) -> Answer<usize> {
    let spared = match peer {
        Peer::Local(process) => Some(process),
        Peer::Remote | Peer::Gatekeeper => None,
    };
    // In a task of its own: the session ends even if the client does not wait for it.
    let ending = tokio::spawn(async move {
        if query.only_here {
            ending::end_here(&context, spared).await
        } else {
            ending::end_everywhere(&context, spared, query.except.as_deref()).await
        }
    });
    let failed = |why: String| Failure(StatusCode::INTERNAL_SERVER_ERROR, why);
    let ended = ending.await.map_err(|error| failed(error.to_string()))?;
    Ok(Json(ended.map_err(failed)?))
}

/// A view without the addresses, which are secrets of the members.
fn without_addresses(mut view: View) -> View {
    view.members.iter_mut().for_each(|member| member.address.clear());
    view
}

/// All groups
#[utoipa::path(get, path = "/v1/groups", responses((status = 200, body = [View])))]
async fn groups(State(context): State<Context>) -> Answer<Vec<View>> {
    Ok(Json(context.directory.groups().await?.0.into_iter().map(without_addresses).collect()))
}

/// A group
#[utoipa::path(get, path = "/v1/groups/{group}", params(("group" = String, Path)),
    responses((status = 200, body = View), (status = 404, body = Problem)))]
async fn group(State(context): State<Context>, Path(group): Path<String>) -> Answer<View> {
    Ok(Json(without_addresses(context.directory.group(&group).await?)))
}

/// The circuits that are open at nodes of this host, with their members here
#[utoipa::path(get, path = "/v1/circuits", responses((status = 200, body = [Circuit])))]
async fn circuits(State(context): State<Context>) -> Json<Vec<Circuit>> {
    Json(context.nodes.shared().circuits.list())
}

/// The programs of the session
#[utoipa::path(get, path = "/v1/programs", responses((status = 200, body = [Program])))]
async fn list_programs(State(context): State<Context>) -> Answer<Vec<Program>> {
    Ok(Json(context.directory.programs().await?))
}

/// Adds a process of this host to the session
#[utoipa::path(post, path = "/v1/programs", request_body = Program,
    responses((status = 200, body = Program), (status = 400, body = Problem)))]
async fn add_program(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(program): Json<Program>,
) -> Answer<Program> {
    if !matches!(peer, Peer::Local(_)) {
        return Err(Failure(StatusCode::FORBIDDEN, "programs are added on their own host".to_owned()));
    }
    Ok(Json(programs::add(&context.directory, &context.host, program).await?))
}

/// The connection of a node: after the answer 101, lines of JSON in both directions
#[utoipa::path(get, path = "/v1/attach", responses((status = 101), (status = 400, body = Problem)))]
async fn attach(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    mut request: Request,
) -> Result<Response, Failure> {
    let Peer::Local(process) = peer else {
        return Err(Failure(StatusCode::FORBIDDEN, "a node attaches to the gatekeeper of its host".to_owned()));
    };
    if headers.get(header::UPGRADE).is_none_or(|protocol| protocol != ATTACH_PROTOCOL) {
        return Err(Failure(StatusCode::BAD_REQUEST, format!("say Upgrade: {ATTACH_PROTOCOL}")));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let nodes = context.nodes;
    tokio::spawn(async move {
        if let Ok(stream) = upgrade.await {
            connection::serve(nodes, TokioIo::new(stream), process).await;
        }
    });
    Ok(upgraded(ATTACH_PROTOCOL))
}

/// Counters, in the text format of OpenMetrics
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String)))]
async fn metrics(State(context): State<Context>) -> Result<Response, Failure> {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: u64| {
        let _ = write!(text, "# TYPE motet_{name} gauge\n# HELP motet_{name} {help}\nmotet_{name} {value}\n");
    };
    let groups = context.directory.groups().await?.0;
    gauge("nodes_attached", "Nodes of this host that are attached.", context.nodes.count() as u64);
    gauge("groups", "Groups of the session.", groups.len() as u64);
    gauge("group_members", "Members of all groups.", groups.iter().map(|view| view.members.len() as u64).sum());
    gauge(
        "circuits",
        "Circuits that are open at nodes of this host.",
        context.nodes.shared().circuits.list().len() as u64,
    );
    gauge("programs", "Programs of the session.", context.directory.programs().await?.len() as u64);
    gauge("uptime_seconds", "Time since the gatekeeper started.", context.started.elapsed().as_secs());
    text.push_str("# EOF\n");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    let mut document = Documentation::openapi();
    document.merge(modules_api::Documentation::openapi());
    document.merge(exports_api::Documentation::openapi());
    Json(document)
}

/// The API of a session's gatekeeper
#[derive(OpenApi)]
#[openapi(paths(
    session,
    end,
    groups,
    group,
    circuits,
    list_programs,
    add_program,
    attach,
    metrics,
    hosts_api::hosts,
    hosts_api::forward,
    watch_api::processes,
    watch_api::events,
    dashboard::token,
    dashboard::login
))]
struct Documentation;
