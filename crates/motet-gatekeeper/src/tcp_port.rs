//! A port that other users or other hosts can reach: HTTP for who shows a secret, over TLS or without it.

use crate::limited::Limited;
use crate::peer::Peer;
use crate::places::{Place, Places, Stay};
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// The handshake of TLS has to come within this time. What follows has the limits of `places` and `limited`.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a failure to accept, such as for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address of this host on the connection of a request.
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress(pub IpAddr);

/// Serves a port, for ever. A request carries its [`Place`] and [`LocalAddress`].
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let places = Places::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (tls, router) = (tls.clone(), router.clone());
        let (place, stay) = places.take(peer.ip());
        tokio::spawn(serve_one(stream, tls, router, place, stay));
    }
}

/// Serves a connection as long as it may stay.
async fn serve_one(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, place: Place, stay: Stay) {
    let _ = stream.set_nodelay(true);
    let Ok(address) = stream.local_addr() else { return };
    let address = LocalAddress(address.ip());
    let stream = Limited::new(stream);
    let serving = async {
        match tls {
            Some(tls) => match tokio::time::timeout(HANDSHAKE_LIMIT, tls.accept(stream)).await {
                Ok(Ok(stream)) => answer(stream, router, place, address).await,
                Ok(Err(error)) => Err(error),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            },
            None => answer(stream, router, place, address).await,
        }
    };
    tokio::select! {
        _ = serving => {}
        () = stay.over() => {}
    }
}

/// Answers requests.
async fn answer<S>(stream: S, router: Router, place: Place, address: LocalAddress) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, mut request): (_, Request) = (router.clone(), request.map(Body::new));
        request.extensions_mut().insert(ConnectInfo(Peer::Remote));
        request.extensions_mut().insert(address);
        request.extensions_mut().insert(place.clone());
        router.oneshot(request)
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    connection.with_upgrades().await.map_err(io::Error::other)
}
