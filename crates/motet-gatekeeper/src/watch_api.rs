//! The routes for what watches the session: processes and events.

use crate::context::{Context, Failure};
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use motet_inspect::report::HostReport;
use motet_session::api::Problem;
use motet_session::events::SessionEvent;
use std::convert::Infallible;

/// The routes.
pub fn routes() -> Router<Context> {
    Router::new().route("/v1/processes", get(processes)).route("/v1/events", get(events))
}

/// The processes under Motet on this host, with their streams and links
#[utoipa::path(get, path = "/v1/processes", responses((status = 200, body = HostReport), (status = 500, body = Problem)))]
pub async fn processes(State(context): State<Context>) -> Result<Response, Failure> {
    let text = context.live.processes.report().await.map_err(|why| Failure(StatusCode::INTERNAL_SERVER_ERROR, why))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// What happens in the session, as server-sent events: those that are kept, then each as it happens
#[utoipa::path(get, path = "/v1/events",
    params(("Last-Event-ID" = Option<String>, Header, description = "only the events after this one"),
        ("after" = Option<String>, Query, description = "the same"),
        ("follow" = Option<bool>, Query, description = "false: the answer ends after the events that are kept")),
    responses((status = 200, body = SessionEvent, content_type = "text/event-stream"), (status = 503, body = Problem)))]
pub async fn events(
    State(context): State<Context>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let query = query.unwrap_or_default();
    let named = query.split('&').find_map(|part| part.strip_prefix("after="));
    let after = headers.get("last-event-id").and_then(|id| id.to_str().ok()).or(named);
    let too_many = || Failure(StatusCode::SERVICE_UNAVAILABLE, "too many clients follow the events".to_owned());
    let follower = context.live.events.follow(after.filter(|id| !id.is_empty())).ok_or_else(too_many)?;
    let end = context.end.subscribe();
    let is_short = query.split('&').any(|part| part == "follow=false");
    let events = stream::unfold((follower, end), move |(mut follower, mut end)| async move {
        let event = match follower.missed() {
            Some(event) => event,
            None if is_short => return None,
            None => tokio::select! {
                event = follower.next() => event?,
                _ = end.wait_for(|ended| *ended) => return None,
            },
        };
        let text = serde_json::to_string(&*event).ok()?;
        Some((Ok::<_, Infallible>(Event::default().id(&event.id).data(text)), (follower, end)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}
