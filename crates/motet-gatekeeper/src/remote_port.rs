//! The address at which the primary gatekeeper listens for other hosts: TLS, then HTTP with the session's key. It is opened when the first host joins.

use crate::limited::{Limited, Place};
use crate::options::Kept;
use crate::peer::Peer;
use crate::tls::Identity;
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use motet_session::paths::SessionPaths;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::AbortHandle;
use tower::ServiceExt;

/// Connections at a time, without those of gatekeepers that have shown the key.
const MAX_CONNECTIONS: usize = 64;
/// The handshake of TLS, and the head of a request, have to come within this time.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a failure to accept, such as for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most addresses of this host in a join configuration.
const MAX_ADDRESSES: usize = 16;

/// The address of this host on the connection of a request.
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress(pub IpAddr);

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
        let accepting = tokio::spawn(async move {
            let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
            while let Ok(permit) = free.clone().acquire_owned().await {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let (acceptor, router) = (acceptor.clone(), router.clone());
                        tokio::spawn(async move { serve(stream, acceptor, router, Place::of(permit)).await });
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        });
        Ok(Self { authority, address, accepting: accepting.abort_handle() })
    }
}

/// Serves a connection.
async fn serve(stream: TcpStream, acceptor: tokio_rustls::TlsAcceptor, router: Router, place: Place) {
    let _ = stream.set_nodelay(true);
    let Ok(address) = stream.local_addr() else { return };
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await else { return };
    let stream = Limited::new(stream, place.clone());
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, mut request): (_, Request) = (router.clone(), request.map(Body::new));
        request.extensions_mut().insert(ConnectInfo(Peer::Remote));
        request.extensions_mut().insert(LocalAddress(address.ip()));
        request.extensions_mut().insert(place.clone());
        router.oneshot(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.with_upgrades().await;
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
