//! What a later gatekeeper of the session takes over from this one: a small file in the session's folder.

pub use motet_session::api::Containers;
use motet_session::etcd_address::EtcdAddress;
use motet_session::paths::SessionPaths;
use motet_session::private_file::write_private;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;

/// The options that are kept.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Kept {
    /// The name of this host.
    pub host: Option<String>,
    /// The address of the API for clients of this host.
    pub listen: Option<SocketAddr>,
    /// The address for other hosts, if there are any.
    #[serde(default)]
    pub remote: Option<SocketAddr>,
    /// The etcd that holds the directory, if it is in one.
    #[serde(default)]
    pub directory: Option<EtcdAddress>,
    /// Whether containers of this host share memory.
    #[serde(default)]
    pub containers: Containers,
    /// Distinguishes the gatekeepers of this folder from others of the same host name, in an etcd.
    #[serde(default)]
    pub instance: Option<String>,
}

impl Kept {
    /// The options of the gatekeeper before this one. Those that cannot be read are the default ones.
    pub fn load(paths: &SessionPaths) -> Self {
        std::fs::read(paths.options()).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Changes the kept options.
    pub fn update(paths: &SessionPaths, change: impl FnOnce(&mut Self)) -> io::Result<Self> {
        let mut kept = Self::load(paths);
        change(&mut kept);
        write_private(&paths.options(), &serde_json::to_vec(&kept)?)?;
        Ok(kept)
    }
}
