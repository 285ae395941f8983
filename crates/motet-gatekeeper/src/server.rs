//! One gatekeeper, from its start to its end.

use crate::api::{self, Context, Peer};
use crate::auth::{SessionKey, random_hex};
use crate::directory::Directory;
use crate::limited::Limited;
use crate::nodes::Nodes;
use crate::programs;
use crate::store::{Embedded, Expected, Store};
use crate::views::Views;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use motet_session::paths::{SessionPaths, check_name};
use motet_session::process::Process;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

/// The key of the store under which the session's identity lies.
const SESSION_ID: &str = "session/id";
/// Connections over TCP at a time.
const MAX_REMOTE: usize = 64;
/// Pause after a failure to accept, such as for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After the end was requested, answers under way may take so long.
const SHUT_DOWN_LIMIT: Duration = Duration::from_millis(500);

/// How a gatekeeper is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The session's files.
    pub paths: SessionPaths,
    /// The name of this host. `None`: the one of the gatekeeper before this one, or the system's.
    pub host: Option<String>,
    /// The address for clients that know the session's key. `None`: the one of the gatekeeper before this one, or any on the loopback interface.
    pub listen: Option<SocketAddr>,
}

/// What a later gatekeeper of the session takes over.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Kept {
    host: Option<String>,
    listen: Option<SocketAddr>,
}

/// A gatekeeper that listens.
#[derive(Debug)]
pub struct Gatekeeper {
    context: Context,
    end: watch::Receiver<bool>,
    local: Local,
    remote: TcpListener,
    paths: SessionPaths,
    /// Locked as long as this gatekeeper runs.
    _lock: File,
}

impl Gatekeeper {
    /// Takes the session's folder, reads the directory and listens. Fails if another gatekeeper has the session.
    pub async fn start(options: Options) -> io::Result<Self> {
        let paths = options.paths;
        raise_descriptor_limit();
        paths.create().map_err(io::Error::other)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(paths.lock())?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let why = format!("a gatekeeper of session {} runs on this host already", paths.name());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let key = Arc::new(SessionKey::open(&paths)?);
        let kept: Kept =
            std::fs::read(paths.options()).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let host = options.host.or(kept.host).map_or_else(own_name, Ok)?;
        let remote = match (options.listen, kept.listen) {
            (Some(listen), _) => TcpListener::bind(listen).await?,
            // The address may be in use by now.
            (None, Some(listen)) => match TcpListener::bind(listen).await {
                Ok(listener) => listener,
                Err(_) => TcpListener::bind((listen.ip(), 0)).await?,
            },
            (None, None) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?,
        };
        let kept = Kept { host: Some(host.clone()), listen: Some(remote.local_addr()?) };
        std::fs::write(paths.options(), serde_json::to_vec(&kept)?)?;
        let (store, damage) = Embedded::open(&paths.journal()).map_err(io::Error::other)?;
        if let Some(damage) = damage {
            eprintln!("motet: {damage}");
        }
        let store = Store::Embedded(store);
        let session_id = session_id(&store).await?;
        let directory = Directory::new(store);
        let views = Views::follow(&directory).await.map_err(io::Error::other)?;
        let nodes = Nodes::new(&host, &session_id, directory.clone(), views).await.map_err(io::Error::other)?;
        programs::take_over(&directory, &host).await.map_err(io::Error::other)?;
        let local = Local(bind(&paths)?);
        let (sender, end) = watch::channel(false);
        let session = paths.name().to_owned();
        let started = Instant::now();
        let (own_paths, listen) = (paths.clone(), remote.local_addr()?);
        let context = Context {
            session,
            host,
            session_id,
            directory,
            nodes,
            started,
            listen,
            paths: own_paths,
            key,
            end: sender,
        };
        Ok(Self { context, end, local, remote, paths, _lock: lock })
    }

    /// The address of the TCP socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.remote.local_addr()
    }

    /// Serves until the session ends, or until `stop` does. In the second case the session's files stay, so a later gatekeeper continues.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Self { context, mut end, local, remote, paths, _lock } = self;
        let router = api::router(context).into_make_service_with_connect_info::<Peer>();
        let mut ended = end.clone();
        let local = tokio::spawn(
            axum::serve(local, router.clone())
                .with_graceful_shutdown(async move { drop(ended.wait_for(|ended| *ended).await) })
                .into_future(),
        );
        let free = Arc::new(Semaphore::new(MAX_REMOTE));
        let remote = tokio::spawn(axum::serve(Remote { listener: remote, free }, router).into_future());
        let is_over = tokio::select! {
            _ = end.wait_for(|ended| *ended) => true,
            () = stop => false,
        };
        remote.abort();
        if is_over {
            // The answer to the request that ends the session is under way.
            let _ = tokio::time::timeout(SHUT_DOWN_LIMIT, local).await;
        } else {
            local.abort();
            std::fs::remove_file(paths.socket())?;
        }
        Ok(())
    }
}

/// The name of this host.
fn own_name() -> io::Result<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let named = check_name("host", &name).map_err(|error| io::Error::other(format!("{error}, with --host")));
    named.map(|()| name)
}

/// A node takes two descriptors, a program one: allows as many as the system lets this process have.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The session's identity, which lives as long as its directory.
async fn session_id(store: &Store) -> io::Result<String> {
    if let Some((_, id)) = store.get(SESSION_ID).await.map_err(io::Error::other)? {
        return Ok(id);
    }
    let id = random_hex::<16>()?;
    store.write(SESSION_ID, Some(id.clone()), Expected::Absent).await.map_err(io::Error::other)?;
    Ok(id)
}

/// Binds the Unix socket. The lock shows that a socket that is there belongs to no gatekeeper that runs.
fn bind(paths: &SessionPaths) -> io::Result<UnixListener> {
    match std::fs::remove_file(paths.socket()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(paths.socket())
}

/// The Unix socket. It accepts processes of the session's user.
#[derive(Debug)]
struct Local(UnixListener);

impl Listener for Local {
    type Io = UnixStream;
    type Addr = Process;

    async fn accept(&mut self) -> (UnixStream, Process) {
        loop {
            let Ok((stream, _)) = self.0.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(credentials) = stream.peer_cred() else { continue };
            let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok());
            if credentials.uid() == rustix::process::getuid().as_raw()
                && let Some(process) = pid.and_then(Process::of)
            {
                return (stream, process);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Process> {
        Ok(Process::this())
    }
}

/// The TCP socket, which any user of the host can reach: it accepts a limited number of connections at a time.
#[derive(Debug)]
struct Remote {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl Listener for Remote {
    type Io = Limited;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Limited, SocketAddr) {
        loop {
            let Ok(place) = self.free.clone().acquire_owned().await else { return std::future::pending().await };
            match self.listener.accept().await {
                Ok((stream, address)) => return (Limited::new(stream, place), address),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, Local>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Local>) -> Self {
        Self::Local(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, Remote>> for Peer {
    fn connect_info(_: IncomingStream<'_, Remote>) -> Self {
        Self::Remote
    }
}
