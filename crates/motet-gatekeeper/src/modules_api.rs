//! The routes about modules. An operation is for one node of this host, or for all nodes of a group.
//!
//! On a group it happens at all members at the same time. Loading is all or nothing: if it fails at one member, the others unload again.

use crate::context::{Answer, Context, Failure};
use crate::default_node;
use crate::directory::check_group;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use motet_session::api::{Member, Problem};
use motet_session::modules::{
    DEFAULT_NODE, MAX_LOG_BYTES, ModuleAnswer, ModuleLog, ModuleQuestion, ModuleRequest, ModuleStatus, Operation,
    Outcome,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::task::JoinSet;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// The longest wait for an operation on one node.
const OPERATION_LIMIT: Duration = Duration::from_secs(60);
/// The longest wait for one on another host, which has the limit above.
const HOST_LIMIT: Duration = Duration::from_secs(70);
/// The longest outcome of another host, bytes.
const MAX_OUTCOME_BYTES: usize = 1 << 20;
/// The longest wait for the end of a log.
const LOG_LIMIT: Duration = Duration::from_secs(5);

/// The routes.
pub fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/modules", get(modules).post(operate))
        .route("/v1/modules/{node}/{module}/log", get(log))
        .route("/v1/nodes/{node}/modules", post(operate_on_node))
}

/// Their documentation.
#[derive(OpenApi)]
#[openapi(paths(modules, operate, log, operate_on_node))]
pub struct Documentation;

/// The modules of this host's nodes
#[utoipa::path(get, path = "/v1/modules", responses((status = 200, body = [ModuleStatus])))]
async fn modules(State(context): State<Context>) -> Json<Vec<ModuleStatus>> {
    Json(context.nodes.shared().modules.list())
}

/// Loads, starts, stops or unloads a module: at all members of a group, or at this host's default node; the answer has one outcome for each node
#[utoipa::path(post, path = "/v1/modules", request_body = ModuleRequest,
    responses((status = 200, body = [Outcome]), (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn operate(State(context): State<Context>, Json(request): Json<ModuleRequest>) -> Answer<Vec<Outcome>> {
    // In a task of its own: what has begun at all members also ends there, even if the client does not wait for it.
    let done = tokio::spawn(async move {
        let ModuleRequest { on, operation } = request;
        let modules = &context.nodes.shared().modules;
        let group = on.or_else(|| operation.module().and_then(|module| modules.group_of(module)));
        if let Some(group) = group {
            return on_group(&context, &group, operation).await;
        }
        let node = match modules.resolve(DEFAULT_NODE) {
            Some(node) => node,
            None if operation.module().is_none() => default_node::find_or_start(&context).await.map_err(unavailable)?,
            None => {
                let why = "this host has no default node yet: load a module, or name a node or group".to_owned();
                return Err(Failure(StatusCode::NOT_FOUND, why));
            }
        };
        match on_own_node(&context, &node, operation.clone(), false).await {
            Ok(Done::Outcome(outcome)) => Ok(vec![outcome]),
            Ok(Done::ForGroup(group)) => on_group(&context, &group, operation).await,
            Err(why) => Err(unavailable(why)),
        }
    });
    done.await.map_err(|error| Failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?.map(Json)
}

/// An operation on one node.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
struct NodeRequest {
    /// It is one of those of a group.
    #[serde(default)]
    in_group: bool,
    /// What to do.
    #[serde(flatten)]
    operation: Operation,
}

/// Loads, starts, stops or unloads a module at one node of this host, `default` or an identity
#[utoipa::path(post, path = "/v1/nodes/{node}/modules", params(("node" = String, Path)), request_body = NodeRequest,
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn operate_on_node(
    State(context): State<Context>,
    Path(node): Path<String>,
    Json(request): Json<NodeRequest>,
) -> Answer<Outcome> {
    let NodeRequest { in_group, operation } = request;
    let node = resolve(&context, &node)?;
    match on_own_node(&context, &node, operation, in_group).await.map_err(unavailable)? {
        Done::Outcome(outcome) => Ok(Json(outcome)),
        Done::ForGroup(group) => Err(Failure(
            StatusCode::CONFLICT,
            format!("the module is for all nodes of the group {group}: name no node"),
        )),
    }
}

/// What part of a log.
#[derive(Debug, Deserialize, IntoParams)]
struct Tail {
    /// At most so many bytes.
    tail: Option<usize>,
}

/// The end of a module's log
#[utoipa::path(get, path = "/v1/modules/{node}/{module}/log",
    params(("node" = String, Path), ("module" = String, Path), Tail),
    responses((status = 200, body = ModuleLog), (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn log(
    State(context): State<Context>,
    Path((node, module)): Path<(String, String)>,
    Query(Tail { tail }): Query<Tail>,
) -> Answer<ModuleLog> {
    let node = resolve(&context, &node)?;
    let question = ModuleQuestion::Log { module, tail: tail.unwrap_or(MAX_LOG_BYTES) };
    match ask(&context, &node, question, LOG_LIMIT).await {
        Ok(ModuleAnswer::Log(log)) => Ok(Json(log)),
        Ok(ModuleAnswer::Refused(why)) => Err(Failure(StatusCode::NOT_FOUND, why)),
        Ok(_) => Err(unavailable("the node answers something else".to_owned())),
        Err(why) => Err(unavailable(why)),
    }
}

fn unavailable(why: String) -> Failure {
    Failure(StatusCode::SERVICE_UNAVAILABLE, why)
}

fn resolve(context: &Context, node: &str) -> Result<String, Failure> {
    let found = context.nodes.shared().modules.resolve(node);
    found.ok_or_else(|| Failure(StatusCode::NOT_FOUND, "this host has no such module node".to_owned()))
}

/// Asks a module node of this host.
async fn ask(context: &Context, node: &str, question: ModuleQuestion, limit: Duration) -> Result<ModuleAnswer, String> {
    let say = |line| context.nodes.say(node, line);
    context.nodes.shared().modules.ask(say, node, question, limit).await
}

/// What a node has done.
enum Done {
    Outcome(Outcome),
    /// Nothing: the module is for a group.
    ForGroup(String),
}

/// Asks a node of this host. The error says why there is no outcome.
async fn on_own_node(context: &Context, node: &str, operation: Operation, in_group: bool) -> Result<Done, String> {
    let question = ModuleQuestion::Do { operation, in_group };
    match ask(context, node, question, OPERATION_LIMIT).await? {
        ModuleAnswer::Outcome(outcome) => Ok(Done::Outcome(outcome)),
        ModuleAnswer::ForGroup(group) if !in_group => Ok(Done::ForGroup(group)),
        ModuleAnswer::Refused(why) => Err(why),
        _ => Err("the node answers something else".to_owned()),
    }
}

/// Asks a member of a group, on any host.
async fn on_member(context: &Context, member: &Member, operation: Operation) -> Result<Outcome, String> {
    if member.host != context.host {
        return on_other_host(context, member, operation).await;
    }
    match on_own_node(context, &member.node, operation, true).await? {
        Done::Outcome(outcome) => Ok(outcome),
        Done::ForGroup(_) => Err("the node answers something else".to_owned()),
    }
}

/// Asks a member of a group through the gatekeeper of its host.
async fn on_other_host(context: &Context, member: &Member, operation: Operation) -> Result<Outcome, String> {
    let body = serde_json::to_vec(&NodeRequest { in_group: true, operation }).map_err(|error| error.to_string())?;
    let path = format!("/v1/nodes/{}/modules", member.node);
    let answer = context.hosts.open(&member.host, "POST", &path, body, HOST_LIMIT).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let status = answer.status;
    let body = answer.bytes(MAX_OUTCOME_BYTES, HOST_LIMIT).await.map_err(|error| error.to_string())?;
    match status {
        200 => serde_json::from_slice(&body).map_err(|_| format!("host {} answers something else", member.host)),
        _ => Err(serde_json::from_slice::<Problem>(&body).map_or_else(
            |_| format!("host {} answers with HTTP status {status}", member.host),
            |problem| problem.error,
        )),
    }
}

// ---- groups -------------------------------------------------------------------------------------------------------------

/// Does an operation at all members of a group.
async fn on_group(context: &Context, group: &str, operation: Operation) -> Result<Vec<Outcome>, Failure> {
    check_group(group)?;
    let _only = context.nodes.shared().modules.in_group.lock().await;
    let members = context.directory.group(group).await?.members;
    if members.is_empty() {
        return Err(Failure(StatusCode::NOT_FOUND, format!("the group {group} has no members")));
    }
    let Operation::Load { descriptor, start } = operation else {
        return Ok(at_all(context, &members, |_| Some(operation.clone())).await);
    };
    let load = Operation::Load { descriptor, start: false };
    let mut outcomes = at_all(context, &members, |_| Some(load.clone())).await;
    if start && outcomes.iter().all(|outcome| outcome.error.is_none()) {
        let modules: Vec<_> = outcomes.iter().map(|outcome| outcome.module.clone()).collect();
        let started = at_all(context, &members, |rank| Some(Operation::Start { module: modules[rank].clone() })).await;
        for (outcome, start) in outcomes.iter_mut().zip(started) {
            outcome.error = start.error;
        }
    }
    if outcomes.iter().any(|outcome| outcome.error.is_some()) {
        undo(context, &members, &mut outcomes).await;
    }
    Ok(outcomes)
}

/// Unloads what has been loaded, the last module first, at all members.
async fn undo(context: &Context, members: &[Member], outcomes: &mut [Outcome]) {
    while outcomes.iter().any(|outcome| !outcome.changed.is_empty()) {
        let next: Vec<_> = outcomes.iter_mut().map(|outcome| outcome.changed.pop()).collect();
        let unload = |rank: usize| Some(Operation::Unload { module: next[rank].clone()?, cascade: false });
        let undone = at_all(context, members, unload).await;
        for (outcome, undone) in outcomes.iter_mut().zip(undone) {
            if outcome.error.is_none() {
                let why = undone.error.map_or("unloaded again".to_owned(), |why| format!("not unloaded again: {why}"));
                outcome.error = Some(why);
            }
        }
    }
}

/// Asks all members at the same time, each by its rank; `None`: not this one. The outcomes are in the order of ranks.
async fn at_all(context: &Context, members: &[Member], operation: impl Fn(usize) -> Option<Operation>) -> Vec<Outcome> {
    let mut asked = JoinSet::new();
    let mut outcomes: Vec<_> = members.iter().enumerate().map(|(rank, member)| outcome_of(rank, member)).collect();
    for (rank, member) in members.iter().enumerate() {
        let Some(operation) = operation(rank) else { continue };
        let (context, member) = (context.clone(), member.clone());
        asked.spawn(async move { (rank, on_member(&context, &member, operation).await) });
    }
    while let Some(answered) = asked.join_next().await {
        let Ok((rank, answer)) = answered else { continue };
        match answer {
            Ok(Outcome { module, changed, error, .. }) => {
                outcomes[rank] = Outcome { module, changed, error, ..outcomes[rank].clone() };
            }
            Err(why) => outcomes[rank].error = Some(why),
        }
    }
    outcomes
}

/// The outcome of a member that has not answered yet.
fn outcome_of(rank: usize, member: &Member) -> Outcome {
    let (node, host, rank) = (member.node.clone(), member.host.clone(), u32::try_from(rank).ok());
    Outcome { node, host, rank, ..Outcome::default() }
}
