//! The dashboard: one page, and the login of a browser. The page itself has no secret, and is served without a key.

use crate::auth::AuthError;
use crate::context::{Context, Failure};
use crate::origin;
use crate::peer::Peer;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use motet_session::api::Problem;
use motet_session::login::{LoggedIn, LoginToken};

/// The longest login request, bytes.
const MAX_LOGIN_BYTES: usize = 1024;
/// Nothing but the page's own files, no frames, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The files of the page: path, kind, contents. `scripts/dashboard` makes them from `dashboard/src`.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("../dashboard/dist/index.html")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../dashboard/dist/page.js")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../dashboard/dist/page.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../dashboard/dist/icon.svg")),
];

/// The routes that need no key.
pub fn public_routes() -> Router<Context> {
    let mut router = Router::new().route("/v1/login", post(login).layer(DefaultBodyLimit::max(MAX_LOGIN_BYTES)));
    for (path, kind, contents) in FILES {
        router = router.route(path, get(async move || ([(header::CONTENT_TYPE, kind)], contents)));
    }
    router.layer(middleware::from_fn(own_host))
}

/// The routes that need the key, or a process of the user.
pub fn routes() -> Router<Context> {
    Router::new().route("/v1/login/token", post(token))
}

/// Refuses what a page of a stranger may have sent, and forbids the page all that it does not need.
async fn own_host(request: Request, next: Next) -> Response {
    if !origin::is_own_host(request.headers()) {
        let why = "use the address that motet dashboard prints: another name of this host is not served";
        return Failure(StatusCode::MISDIRECTED_REQUEST, why.to_owned()).into_response();
    }
    let mut answer = next.run(request).await;
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A token with which one browser can log in
#[utoipa::path(post, path = "/v1/login/token", responses((status = 200, body = LoginToken), (status = 403, body = Problem)))]
pub(crate) async fn token(
    State(context): State<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Result<Json<LoginToken>, Failure> {
    // Neither a browser that is logged in nor another host makes further logins.
    let may = match peer {
        Peer::Local(_) => true,
        Peer::Remote => headers.contains_key(header::AUTHORIZATION),
        Peer::Gatekeeper => false,
    };
    if !may {
        let why = "motet dashboard makes the tokens for logins";
        return Err(Failure(StatusCode::FORBIDDEN, why.to_owned()));
    }
    let token = context.live.logins.token();
    let token = token.map_err(|error| Failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(Json(LoginToken { token }))
}

/// Logs a browser in: the answer carries a cookie, and the secret of the page
#[utoipa::path(post, path = "/v1/login", request_body = LoginToken,
    responses((status = 200, body = LoggedIn), (status = 401, body = Problem)))]
pub(crate) async fn login(
    State(context): State<Context>,
    headers: HeaderMap,
    Json(LoginToken { token }): Json<LoginToken>,
) -> Result<Response, Failure> {
    if !origin::is_same(&headers) {
        return Err(Failure(StatusCode::FORBIDDEN, "a login comes from the dashboard's own page".to_owned()));
    }
    let login = context.live.logins.log_in(&token);
    let login = login.map_err(|error| Failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    match context.key.attempts().judge(login).await {
        Ok(login) => {
            Ok(([(header::SET_COOKIE, login.set_cookie)], Json(LoggedIn { page: login.page })).into_response())
        }
        Err(AuthError) => {
            let why = "the token is wrong or was used before: motet dashboard prints a new one";
            Err(Failure(StatusCode::UNAUTHORIZED, why.to_owned()))
        }
    }
}
