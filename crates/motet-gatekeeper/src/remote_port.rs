//! The address at which the primary gatekeeper listens for other hosts: TLS, then HTTP with the session's key. It is opened when the first host joins.

use crate::options::Kept;
use crate::tcp_port;
use crate::tls::Identity;
use axum::Router;
use motet_session::paths::SessionPaths;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

/// The most addresses of this host in a join configuration.
const MAX_ADDRESSES: usize = 16;

/// The port. A clone is another handle.
#[derive(Clone, Default)]
pub struct RemotePort {
    open: Arc<Mutex<Option<Open>>>,
}

impl std::fmt::Debug for RemotePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RemotePort(..)")
    }
}

struct Open {
    authority: String,
    address: SocketAddr,
    accepting: AbortHandle,
}

impl RemotePort {
    /// Listens, if it does not yet. Returns the certificate of the session's authority and the addresses of the port.
    pub async fn open(
        &self,
        paths: &SessionPaths,
        router: Router,
        listen: Option<SocketAddr>,
    ) -> io::Result<(String, Vec<String>)> {
        let mut open = self.open.lock().await;
        let open = match &mut *open {
            Some(open) => open,
            empty => empty.insert(Open::start(paths, router, listen).await?),
        };
        Ok((open.authority.clone(), addresses(open.address)))
    }

    /// Stops listening.
    pub async fn close(&self) {
        if let Some(open) = self.open.lock().await.take() {
            open.accepting.abort();
        }
    }
}

impl Open {
    async fn start(paths: &SessionPaths, router: Router, listen: Option<SocketAddr>) -> io::Result<Self> {
        let identity = Identity::open(paths)?;
        let listener = match listen {
            Some(listen) => TcpListener::bind(listen).await?,
            None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await {
                Ok(listener) => listener,
                Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await?,
            },
        };
        let address = listener.local_addr()?;
        Kept::update(paths, |kept| kept.remote = Some(address))?;
        let Identity { authority, acceptor } = identity;
        let accepting = tokio::spawn(tcp_port::serve(listener, Some(acceptor), router));
        Ok(Self { authority, address, accepting: accepting.abort_handle() })
    }
}

/// The addresses at which other hosts may reach a socket of this address.
fn addresses(bound: SocketAddr) -> Vec<String> {
    if !bound.ip().is_unspecified() {
        return vec![bound.to_string()];
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let mut found: Vec<IpAddr> = interfaces.iter().map(if_addrs::Interface::ip).filter(|ip| is_global(*ip)).collect();
    found.retain(|ip| bound.is_ipv6() || ip.is_ipv4());
    found.sort_by_key(IpAddr::is_ipv6); // IPv4 first: it works more often
    found.dedup();
    found.truncate(MAX_ADDRESSES);
    found.into_iter().map(|ip| SocketAddr::new(ip, bound.port()).to_string()).collect()
}

/// Whether other hosts can use an address: it is neither of the loopback interface, nor one that needs the name of an interface.
fn is_global(ip: IpAddr) -> bool {
    let is_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !is_local
}
