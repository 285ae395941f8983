//! The exports of this host. Their servers are asked when a client asks; the gatekeeper keeps nothing about them.

use crate::context::{Answer, Context, Failure};
use crate::peer::Peer;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use motet_files::exports::{self, Query};
use motet_files::uses;
use motet_session::api::{Export, ExportAddress, ExportUse, Problem};
use motet_session::paths::check_name;
use utoipa::OpenApi;

/// The routes.
pub fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/exports", get(list))
        .route("/v1/export-uses", get(export_uses))
        .route("/v1/export-addresses/{name}", get(address))
}

/// The exports of this host, which `motet export` serves
#[utoipa::path(get, path = "/v1/exports", responses((status = 200, body = [Export])))]
async fn list() -> Answer<Vec<Export>> {
    let found = waiting(|| exports::list(None)).await?;
    Ok(Json(found.into_iter().map(Export::from).collect()))
}

/// The mounts and disks of this host that use exports
#[utoipa::path(get, path = "/v1/export-uses", responses((status = 200, body = [ExportUse])))]
async fn export_uses() -> Answer<Vec<ExportUse>> {
    Ok(Json(waiting(|| Ok(uses::list())).await?))
}

/// The address of an export's server, with its secret; the server listens for other hosts from then on. Only for processes of the session's user
#[utoipa::path(get, path = "/v1/export-addresses/{name}", params(("name" = String, Path)),
    responses((status = 200, body = ExportAddress), (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn address(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<ExportAddress> {
    if matches!(peer, Peer::Remote) {
        return Err(Failure(StatusCode::FORBIDDEN, "only a process of the session may use an export".to_owned()));
    }
    check_name("export", &name).map_err(|error| Failure(StatusCode::BAD_REQUEST, error.to_string()))?;
    // A client of this host needs no address for other hosts.
    let listen = if matches!(peer, Peer::Gatekeeper) { context.hosts.address() } else { None };
    let found = waiting(move || exports::ask(&name, &Query { root: false, listen })).await?;
    Ok(Json(ExportAddress { address: found.info.address }))
}

/// Runs what waits for a server in a thread of its own.
async fn waiting<T: Send + 'static>(
    ask: impl FnOnce() -> motet_files::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let asked = tokio::task::spawn_blocking(ask).await;
    let asked = asked.map_err(|error| Failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    asked.map_err(|error| {
        let found = error.kind() != std::io::ErrorKind::NotFound;
        let status = if found { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::NOT_FOUND };
        Failure(status, if found { error.to_string() } else { "no such export on this host".to_owned() })
    })
}

/// Exports of this host
#[derive(OpenApi)]
#[openapi(paths(list, export_uses, address))]
pub struct Documentation;
