//! One gatekeeper, from its start to its end.

use crate::api;
use crate::auth::{SessionKey, random_hex};
use crate::context::Context;
use crate::directory::{Directory, SESSION_ID};
use crate::ending;
use crate::hidden;
use crate::hosts::Hosts;
use crate::hosts_api::expect_back;
use crate::link::Delivery;
use crate::live::Live;
use crate::meetings;
use crate::nodes::Nodes;
use crate::options::{Containers, Kept};
use crate::peer::Peer;
use crate::presence::Presence;
use crate::programs;
use crate::registrations;
use crate::remote_port::RemotePort;
use crate::store::{Embedded, Etcd, Expected, Remote as RemoteStore, Store, StoreError};
use crate::tcp_port;
use crate::uplink::{self, Uplink};
use crate::views::Views;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use motet_session::etcd_address::EtcdAddress;
use motet_session::hosts::JoinConfig;
use motet_session::notes::note;
use motet_session::paths::{SessionPaths, check_name};
use motet_session::process::Process;
use motet_session::registration::{Announcement, own_pid_namespace};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

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
    /// The etcd that holds the directory. `None`: the one of the gatekeeper before this one, or the embedded store.
    pub directory: Option<EtcdAddress>,
    /// Whether containers of this host share memory. `None`: as with the primary gatekeeper or the one before this one; by default those of the
    /// session's user do.
    pub containers: Option<Containers>,
}

/// A gatekeeper that listens.
#[derive(Debug)]
pub struct Gatekeeper {
    context: Context,
    end: watch::Receiver<bool>,
    local: Local,
    registrations: UnixListener,
    remote: TcpListener,
    /// Keeps the link to the primary gatekeeper; ends when the session has ended there.
    uplink: Option<JoinHandle<()>>,
    /// Locked as long as this gatekeeper runs.
    _lock: File,
}

impl Gatekeeper {
    /// Takes the session's folder, connects to the primary gatekeeper if there is another one, reads the directory and listens. Fails if another
    /// gatekeeper has the session on this host.
    pub async fn start(options: Options) -> io::Result<Self> {
        let paths = options.paths;
        raise_descriptor_limit();
        paths.create().map_err(io::Error::other)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(paths.lock())?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let why = format!("a gatekeeper of session {} runs on this host already", paths.name());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let join = join_config(&paths)?;
        let kept = Kept::load(&paths);
        let of_session = join.as_ref().map(|join| join.containers);
        let containers = options.containers.or(of_session).unwrap_or(kept.containers);
        let host = options.host.or(join.as_ref().and_then(|join| join.host.clone())).or(kept.host.clone());
        let host = host.map_or_else(own_name, Ok)?;
        let remote = listen(options.listen, kept.listen).await?;
        let address = remote.local_addr()?;
        let in_etcd = options.directory.or(kept.directory.clone());
        let in_etcd = join.as_ref().map_or(in_etcd, |join| join.directory.clone());
        let instance = kept.instance.clone().map_or_else(random_hex::<16>, Ok)?;
        let etcd = match &in_etcd {
            None => None,
            Some(etcd) => Some(Etcd::open(etcd, paths.name()).await.map_err(io::Error::other)?),
        };
        let known_nodes = Arc::new(OnceLock::new());
        let (hosts, directory, session_id, uplink) = match join {
            Some(config) => {
                let connected = uplink::connect(&config, &host, None).await.map_err(io::Error::other)?;
                let session_id = connected.session_id.clone();
                let hosts = Hosts::secondary(&host);
                let remote = || Store::Remote(RemoteStore::new(hosts.clone()));
                let store = etcd.clone().map_or_else(remote, Store::Etcd);
                let directory = Directory::new(store);
                let nodes = known_nodes.clone();
                let uplink = Uplink { hosts: hosts.clone(), directory: directory.clone(), nodes, config };
                (hosts, directory, session_id, Some(tokio::spawn(uplink.keep(connected))))
            }
            None => {
                let store = etcd.clone().map_or_else(|| embedded(&paths), |etcd| Ok(Store::Etcd(etcd)))?;
                let session_id = session_id(&store).await?;
                (Hosts::primary(&host), Directory::new(store), session_id, None)
            }
        };
        let presence = match &etcd {
            None => None,
            Some(etcd) => Some(Presence::announce(etcd, &host, &instance, hosts.is_primary()).await?),
        };
        Kept::update(&paths, |kept| {
            (kept.host, kept.listen) = (Some(host.clone()), Some(address));
            (kept.directory, kept.instance) = (in_etcd, Some(instance));
            kept.containers = containers;
        })?;
        meetings::prepare(&paths, containers)?;
        let views = Views::follow(&directory).await.map_err(io::Error::other)?;
        let nodes =
            Nodes::new(&hosts, &session_id, directory.clone(), views, paths.nodes()).await.map_err(io::Error::other)?;
        let _ = known_nodes.set(nodes.clone());
        let live = Live::start(&host, &session_id, &directory, &nodes).await.map_err(io::Error::other)?;
        programs::take_over(&directory, &host).await.map_err(io::Error::other)?;
        let key = Arc::new(SessionKey::open(&paths)?);
        if let Some(presence) = presence {
            presence.keep(&hosts, &directory);
        }
        let namespace = own_pid_namespace().unwrap_or(0);
        Announcement { id: session_id.clone(), pid_namespace: namespace }.write(&paths)?;
        let registrations = bind(&paths.programs_socket())?;
        let local = Local(bind(&paths.socket())?);
        let (sender, end) = watch::channel(false);
        let context = Context {
            session: paths.name().to_owned(),
            host,
            session_id,
            directory,
            hosts,
            remote_port: RemotePort::default(),
            nodes,
            started: Instant::now(),
            listen: address,
            containers,
            paths,
            key,
            live,
            end: sender,
        };
        let gatekeeper = Self { context, end, local, registrations, remote, uplink, _lock: lock };
        gatekeeper.meet_hosts(kept.remote).await;
        Ok(gatekeeper)
    }

    /// Makes requests of other hosts possible; a primary gatekeeper waits for those that it knows from before.
    async fn meet_hosts(&self, remote: Option<SocketAddr>) {
        let Context { hosts, directory, nodes, paths, .. } = &self.context;
        let nodes = nodes.clone();
        let deliver = move |Delivery { group, from, to, body, .. }| nodes.deliver_here(&group, &from, &to, body);
        let router = api::router_for_hosts(self.context.clone());
        hosts.set_handler(router.clone(), Box::new(deliver));
        if !hosts.is_primary() {
            return;
        }
        uplink::announce(hosts, directory).await;
        let Some(address) = remote else { return };
        if let Err(error) = self.context.remote_port.open(paths, router, Some(address)).await {
            note(format_args!("other hosts cannot connect again at {address}: {error}"));
        }
        for host in directory.hosts().await.unwrap_or_default().into_iter().filter(|host| host.name != hosts.own()) {
            let (hosts, directory) = (hosts.clone(), directory.clone());
            tokio::spawn(async move { expect_back(&hosts, &directory, &host.name).await });
        }
    }

    /// The address of the TCP socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.remote.local_addr()
    }

    /// Serves until the session ends. When `stop` ends, the session does so on all hosts.
    pub async fn run_in_front(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let context = self.context.clone();
        let end = async move {
            stop.await;
            if let Err(why) = ending::end_everywhere(&context, None, None).await {
                note(why);
            }
            std::future::pending().await
        };
        self.run(end).await
    }

    /// Serves until the session ends, or until `stop` does. In the second case the session's files stay, so a later gatekeeper continues.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Self { context, mut end, local, registrations, remote, uplink, _lock } = self;
        let (paths, hosts, remote_port) = (context.paths.clone(), context.hosts.clone(), context.remote_port.clone());
        let router = api::router(context.clone());
        let mut ended = end.clone();
        let local = tokio::spawn(
            axum::serve(local, router.clone().into_make_service_with_connect_info::<Peer>())
                .with_graceful_shutdown(async move { drop(ended.wait_for(|ended| *ended).await) })
                .into_future(),
        );
        let registrations = tokio::spawn(registrations::take(registrations, context.clone()));
        let remote = tokio::spawn(tcp_port::serve(remote, None, router));
        let ended_elsewhere = async {
            match uplink {
                Some(uplink) => drop(uplink.await),
                None => std::future::pending().await,
            }
            let _ = ending::end_here(&context, None).await;
        };
        let is_over = tokio::select! {
            _ = end.wait_for(|ended| *ended) => true,
            () = ended_elsewhere => true,
            () = stop => false,
        };
        remote.abort();
        registrations.abort();
        remote_port.close().await;
        if is_over {
            // The answer to the request that ends the session is under way, to a process of this host or to the primary gatekeeper.
            let _ = tokio::time::timeout(SHUT_DOWN_LIMIT, local).await;
            hosts.unlinked(SHUT_DOWN_LIMIT).await;
        } else {
            local.abort();
            std::fs::remove_file(paths.programs_socket())?;
            std::fs::remove_file(paths.socket())?;
        }
        Ok(())
    }
}

/// How this host reaches the primary gatekeeper, if that is on another one.
fn join_config(paths: &SessionPaths) -> io::Result<Option<JoinConfig>> {
    match std::fs::read(paths.join_config()) {
        Ok(text) => JoinConfig::parse(&text).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Listens at the address that is wanted, or at the one of the gatekeeper before this one, which may be in use by now.
async fn listen(wanted: Option<SocketAddr>, kept: Option<SocketAddr>) -> io::Result<TcpListener> {
    match (wanted, kept) {
        (Some(wanted), _) => TcpListener::bind(wanted).await,
        (None, Some(kept)) => match TcpListener::bind(kept).await {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind((kept.ip(), 0)).await,
        },
        (None, None) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await,
    }
}

/// The store in this process.
fn embedded(paths: &SessionPaths) -> io::Result<Store> {
    let (store, damage) = Embedded::open(&paths.journal()).map_err(io::Error::other)?;
    if let Some(damage) = damage {
        note(damage);
    }
    Ok(Store::Embedded(store))
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
    match store.write(SESSION_ID, Some(id.clone()), Expected::Absent).await {
        Ok(_) => Ok(id),
        // The gatekeeper of another host was quicker.
        Err(StoreError::Conflict) => {
            let found = store.get(SESSION_ID).await.map_err(io::Error::other)?;
            found.map(|(_, id)| id).ok_or_else(|| io::Error::other("the session has just ended"))
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Binds a Unix socket. The lock shows that a socket that is there belongs to no gatekeeper that runs.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(socket)
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
            let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
            if credentials.uid() == rustix::process::getuid().as_raw()
                && let Some(process) = pid.map_or_else(|| hidden::peer(&stream), Process::of)
            {
                return (stream, process);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Process> {
        Ok(Process::this())
    }
}

impl Connected<IncomingStream<'_, Local>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Local>) -> Self {
        Self::Local(*stream.remote_addr())
    }
}
