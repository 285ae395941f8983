//! The hosts of a session, in the gatekeeper's API.

use crate::api::Containers;
use crate::etcd_address::EtcdAddress;
use crate::paths::check_name;
use crate::process::Process;
use serde::{Deserialize, Serialize};

/// The name of the protocol on the connection between two gatekeepers, in the `Upgrade` header.
pub const LINK_PROTOCOL: &str = "motet-hosts/1";
/// The header that names the host of the gatekeeper that connects.
pub const HOST_HEADER: &str = "motet-host";
/// The header with the identity of the session.
pub const SESSION_HEADER: &str = "motet-session";
/// The name in the certificate of the session's primary gatekeeper.
pub const SERVER_NAME: &str = "primary.motet";
/// The most addresses of a primary gatekeeper.
const MAX_ADDRESSES: usize = 64;

/// A host of the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its gatekeeper.
    pub gatekeeper: Process,
    /// Whether the other gatekeepers are connected to this one.
    pub primary: bool,
    /// Whether its gatekeeper answers. One that does not for too long loses its nodes and programs.
    pub up: bool,
}

/// What a host needs to join a session. It holds the session's key, so it passes through pipes and private files only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinConfig {
    /// The session's name.
    pub session: String,
    /// The session's key.
    pub key: String,
    /// The certificate of the session's authority, PEM.
    pub authority: String,
    /// The addresses of the primary gatekeeper, each `HOST:PORT`.
    pub addresses: Vec<String>,
    /// The name of the host that joins. `None`: the system's.
    #[serde(default)]
    pub host: Option<String>,
    /// The etcd that holds the directory, if it is in one. Its files are at the same paths on all hosts.
    #[serde(default)]
    pub directory: Option<EtcdAddress>,
    /// Whether containers of the host that joins share memory.
    #[serde(default)]
    pub containers: Containers,
}

impl std::fmt::Debug for JoinConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinConfig({} at {:?})", self.session, self.addresses)
    }
}

impl JoinConfig {
    /// Parses and checks the text that another host has sent.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let config: Self = serde_json::from_slice(text).map_err(|error| format!("no join configuration: {error}"))?;
        check_name("session", &config.session).map_err(|error| error.to_string())?;
        if let Some(host) = &config.host {
            check_name("host", host).map_err(|error| error.to_string())?;
        }
        if config.addresses.is_empty() || config.addresses.len() > MAX_ADDRESSES {
            return Err(format!("a join configuration has 1 to {MAX_ADDRESSES} addresses"));
        }
        if let Some(directory) = &config.directory {
            directory.parts()?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_configurations_are_checked_and_hide_their_key() {
        let text = br#"{"session":"s","key":"0123","authority":"pem","addresses":["a:1"]}"#;
        let config = JoinConfig::parse(text).unwrap();
        assert!(!format!("{config:?}").contains("0123"));
        for wrong in [
            &br#"{"session":"../s","key":"k","authority":"","addresses":["a:1"]}"#[..],
            br#"{"session":"s","key":"k","authority":"","addresses":[]}"#,
            br#"{"session":"s","key":"k","authority":"","addresses":["a:1"],"host":"-x"}"#,
            br#"{"session":"s","key":"k","authority":"","addresses":["a:1"],"directory":{"url":"file:///"}}"#,
            b"{}",
            b"\xff",
        ] {
            assert!(JoinConfig::parse(wrong).is_err());
        }
    }
}
