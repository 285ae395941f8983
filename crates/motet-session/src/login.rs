//! The login of a browser: a token that is good for one login, in the address of the dashboard.

use crate::client::{Client, ClientError};
use serde::{Deserialize, Serialize};

/// The header in which the page sends its own secret, beside the cookie.
pub const PAGE_HEADER: &str = "motet-page";

/// A token: 64 hexadecimal digits, good for one login.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginToken {
    /// The digits.
    pub token: String,
}

impl std::fmt::Debug for LoginToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoginToken(..)")
    }
}

/// The answer to a login; the cookie comes with it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoggedIn {
    /// What the page sends in the header [`PAGE_HEADER`]. A cookie alone is not enough, because browsers send it to every port of a host.
    pub page: String,
}

impl std::fmt::Debug for LoggedIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoggedIn(..)")
    }
}

/// The address of the dashboard with a new token. `listen`: the address of the gatekeeper's API over TCP.
pub fn dashboard(client: &Client, listen: &str) -> Result<String, ClientError> {
    let LoginToken { token } = client.post("/v1/login/token", &())?;
    let reachable = match listen.parse::<std::net::SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => format!("127.0.0.1:{}", address.port()),
        _ => listen.to_owned(),
    };
    Ok(format!("http://{reachable}/#{token}"))
}
