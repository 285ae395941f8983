//! The server of one export.
//!
//! One thread at a time has the *turn*: it waits for requests and executes those that do not wait for a device itself. Before an operation that may
//! wait it gives the turn to another thread of the pool. So a short request costs no switch of threads, and a slow one keeps none waiting.
//! No thread waits for a client: data that were announced, and answers that are not taken, are operations of the engine.
//!
//! | module | what |
//! | --- | --- |
//! | this one | the server, and what its threads share |
//! | `work` | what its threads do |
//! | `arrivals` | channels that clients have opened |
//! | `receives` | the receives that are posted for requests |
//! | `requests` | a request, from the message to the answer |
//! | `patience` | what waits for clients |
//! | `backlog` | the requests of one client that are postponed meanwhile |
//! | `threads` | the threads that one client occupies |
//! | `resumable` | the sessions whose postponed requests may be executed |
//! | `sessions` | the sessions of all clients |
//! | `ended` | sessions whose clients were away for too long |
//! | `shares` | what one client may use of the descriptors and sessions |
//! | `session` | one session: slots, open files, notices |
//! | `ring_reads` | reads past the cache by io_uring |
//! | `members_part` | clients of other users of this host |
//! | `leases` | what clients may have cached |
//! | `notices` | tells clients what others have changed |
//! | `lost_locks` | sessions whose locks were released while their clients were away |
//! | `silent` | members of the group that changes do not wait for |
//!
//! The module `storage` executes the operations.

mod arrivals;
mod backlog;
mod ended;
mod leases;
mod lost_locks;
mod members_part;
mod notices;
mod patience;
mod receives;
mod requests;
mod resumable;
mod ring_reads;
mod session;
mod sessions;
mod shares;
mod silent;
mod threads;
mod work;

use crate::Result;
use crate::engine_error as failed;
pub use crate::exports::members::Group;
use crate::exports::{Exported, Info, Publication, members};
use crate::identity::Identities;
use crate::protocol::SERVICE;
pub use crate::storage::Striping;
use crate::storage::Tree;
use leases::Leases;
use lost_locks::LostLocks;
use members_part::{Reception, Tickets, node as members_node, options_for_members};
use motet::node::{Context, CqId, Node, Serve};
use patience::Patience;
use receives::Owed;
use resumable::{Resumable, WithoutThreads};
use ring_reads::RingReads;
pub use ring_reads::Storage;
use session::Session;
use sessions::Sessions;
use silent::Silent;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{self, JoinHandle};

/// Threads of a server. Those that wait for a device keep none of the others.
const THREADS: usize = 16;
/// Receives that are posted for requests.
const POSTED: usize = 64;
/// The user data of receives for requests. That of receives that watch a channel are larger.
const REQUESTS: u64 = 0;
/// The user data of receives for acknowledgements, and how many are posted.
const ACKNOWLEDGEMENTS: u64 = u64::MAX;
const ACKNOWLEDGEMENTS_POSTED: usize = 16;
/// Longest acknowledgement, bytes.
const MAX_ACKNOWLEDGEMENT_BYTES: usize = 8;

/// What is exported, and how.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The name of the export.
    pub name: String,
    /// The directory.
    pub directory: PathBuf,
    /// Changes are refused.
    pub read_only: bool,
    /// The address at which clients of other hosts connect. `None`: none, until a gatekeeper asks for one.
    pub listen: Option<SocketAddr>,
    /// Clients of this host and user may get the directory itself and use it without the server. Not if files are striped.
    pub direct: bool,
    /// How new files are striped over this and other exports. `None`: each file is in this export alone.
    pub striping: Option<Striping>,
    /// All requests are executed as the user of this process. Otherwise a server of root executes them as the users that they name.
    pub squash: bool,
    /// `O_DIRECT` has no effect at the server, as with NFS: all files are read and written through its page cache.
    pub ignore_o_direct: bool,
    /// What reads the storage of files that are open with `O_DIRECT`.
    pub storage: Storage,
    /// Members of this group may use the export on this host, too. They get to the server by messages only, and each request is executed as the user that the
    /// kernel says, or as the server's.
    pub group: Option<Group>,
}

/// A running server. Dropping it ends it: clients see a lost server.
#[derive(Debug)]
pub struct Server {
    _publication: Publication,
    _members_publication: Option<members::Publication>,
    _members: Option<Part>,
    part: Part,
}

/// A node with its threads. Dropping it ends it.
#[derive(Debug)]
struct Part {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a server share.
#[derive(Debug)]
struct Shared {
    options: Options,
    node: Node,
    tree: Tree,
    /// Of a part for members of a group: who may begin sessions.
    tickets: Option<Tickets>,
    /// The part for members, whose clients are counted with the others.
    members: OnceLock<Arc<Self>>,
    /// Of a part for members: the part for the server's user.
    owner: OnceLock<Weak<Self>>,
    silent: Silent,
    lost_locks: Arc<LostLocks>,
    sessions: Sessions,
    patience: Patience,
    resumable: Resumable,
    without_threads: WithoutThreads,
    leases: Leases,
    context: Context,
    cq: CqId,
    owed: Owed,
    boot: [u8; 16],
    /// Held by the thread that has the turn.
    turn: Mutex<()>,
    counters: Counters,
    ring_reads: RingReads,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// What a thread of a server runs.
type Task = fn(&Arc<Shared>);

/// The turn of a thread to receive requests.
struct Turn<'a> {
    held: Option<MutexGuard<'a, ()>>,
    /// For whose request the thread has given it away.
    given_for: Option<Arc<Session>>,
}

impl<'a> Turn<'a> {
    fn new(held: MutexGuard<'a, ()>) -> Self {
        Self { held: Some(held), given_for: None }
    }

    /// Lets another thread receive. This one is occupied by a client's request from now on.
    fn give(&mut self, session: &Arc<Session>) {
        if self.held.is_some() {
            session.threads().begin();
            self.given_for = Some(Arc::clone(session));
            self.held = None;
        }
    }
}

/// The buffers of a thread.
struct Buffers {
    /// What is read for an answer. A long one leaves with it.
    read: Vec<u8>,
    /// The headers of an answer.
    headers: Vec<u8>,
}

impl Server {
    /// Starts to serve. Fails if another server of this user has an export of this name on this host.
    pub fn start(options: Options) -> Result<Self> {
        let group = options.group.clone();
        let for_members = options_for_members(&options);
        let node = match options.listen {
            Some(address) => Node::listen("", address),
            None => Node::open(""),
        };
        let part = Part::start(options, node.map_err(failed)?, None, None)?;
        let bound = Publication::bind(&part.shared.options.name)?;
        // Before the first client comes, and after a server that has the name would have been found.
        part.shared.lost_locks.open(&part.shared.options.name);
        let publication = Publication::start(bound, Arc::clone(&part.shared))?;
        let (mut members, mut members_publication) = (None, None);
        if let Some(group) = group {
            let others = Part::start(for_members, members_node()?, Some(Tickets::default()), Some(&part.shared))?;
            let _ = others.shared.owner.set(Arc::downgrade(&part.shared));
            let _ = part.shared.members.set(Arc::clone(&others.shared));
            let reception = Arc::new(Reception { shared: Arc::clone(&others.shared), group });
            members_publication = Some(members::Publication::start(&part.shared.options.name, reception)?);
            members = Some(others);
        }
        Ok(Self { _publication: publication, _members_publication: members_publication, _members: members, part })
    }

    /// The address of the server, which contains a secret. A client connects to it with `Source::Address`.
    pub fn address(&self) -> Result<String> {
        self.part.shared.node.address().map_err(failed)
    }
}

impl Part {
    /// Starts the threads. `tickets`: the clients are of other users and need them. `beside`: the part for the server's user.
    fn start(options: Options, node: Node, tickets: Option<Tickets>, beside: Option<&Shared>) -> Result<Self> {
        let identities = if options.squash { None } else { Identities::find() };
        let mut tree = Tree::open(&options.directory, options.read_only, options.striping.clone(), identities)?;
        if let Some(beside) = beside {
            tree.count_locks_with(&beside.tree);
        }
        if options.ignore_o_direct {
            tree.ignore_o_direct();
        }
        let ring_reads = RingReads::new(options.storage)?;
        let context = node.whole_message_context().map_err(failed)?;
        let cq = node.add_cq().map_err(failed)?;
        node.serve(SERVICE, Serve::Tagged(context)).map_err(failed)?;
        let sessions = Sessions::default();
        let counters = Counters::default();
        let shared = Arc::new(Shared {
            options,
            node,
            tree,
            tickets,
            members: OnceLock::new(),
            owner: OnceLock::new(),
            silent: Silent::default(),
            lost_locks: beside.map(|beside| Arc::clone(&beside.lost_locks)).unwrap_or_default(),
            sessions,
            patience: Patience::default(),
            resumable: Resumable::default(),
            without_threads: WithoutThreads::default(),
            leases: Leases::default(),
            context,
            cq,
            owed: Owed::default(),
            boot: boot_id(),
            turn: Mutex::new(()),
            counters,
            ring_reads,
        });
        shared.post_receives()?;
        let mut part = Self { shared, threads: Vec::new() };
        let workers = (0..THREADS).map(|_| ("work", Shared::work as Task));
        let others = [
            ("expire", (|shared| shared.expire()) as Task),
            ("patience", |shared| shared.look_after_clients()),
            ("arrivals", |shared| shared.look_at_arrivals()),
        ];
        for (name, run) in others.into_iter().chain(workers) {
            let shared = Arc::clone(&part.shared);
            let thread = thread::Builder::new().name(format!("files-{name}")).spawn(move || run(&shared))?;
            part.threads.push(thread);
        }
        Ok(part)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.shared.node.shut_down();
        self.shared.sessions.end();
        self.shared.patience.end_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.ring_reads.end();
    }
}

impl Exported for Shared {
    fn info(&self, listen: Option<IpAddr>) -> Result<Info> {
        if let Some(ip) = listen {
            // A node that listens already goes on as it is.
            self.node.listen_for_hosts(SocketAddr::new(ip, 0)).map_err(failed)?;
        }
        let Options { name, directory, read_only, .. } = &self.options;
        let parts = || std::iter::once(self).chain(self.members.get().map(|members| &**members));
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            parts().map(|part| counter(&part.counters).load(Ordering::Relaxed)).sum()
        };
        let of_sessions = |count: fn(&Sessions) -> usize| parts().map(|part| count(&part.sessions)).sum();
        Ok(Info {
            name: name.clone(),
            directory: directory.display().to_string(),
            process: std::process::id(),
            read_only: *read_only,
            direct: self.is_direct(),
            identities: self.tree.has_identities(),
            address: self.node.address().map_err(failed)?,
            clients: of_sessions(Sessions::count),
            open_files: of_sessions(Sessions::open_files),
            locks: parts().map(|part| part.tree.lock_owners()).sum(),
            requests: sum(|counters| &counters.requests),
            bytes_read: sum(|counters| &counters.bytes_read),
            bytes_written: sum(|counters| &counters.bytes_written),
            storage: self.storage(),
        })
    }

    fn root(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.is_direct().then(|| self.tree.root())
    }
}

impl Shared {
    /// The part for members of a group, or of that part the one for the server's user: its clients see the same files.
    fn other_part(&self) -> Option<Arc<Self>> {
        self.members.get().cloned().or_else(|| self.owner.get()?.upgrade())
    }

    /// What reads the storage, and what O_DIRECT has brought, in words.
    fn storage(&self) -> String {
        let mut text = self.ring_reads.describe();
        let opens = self.tree.direct_opens().to_string();
        if self.tree.ignores_o_direct() {
            text += "; O_DIRECT is ignored";
        } else if !opens.is_empty() {
            text += &format!("; {opens}");
        }
        text
    }

    /// Whether clients of this host may use the directory itself.
    fn is_direct(&self) -> bool {
        self.options.direct && self.options.striping.is_none()
    }
}

/// Names the time since this host has started. Without the kernel's word it is taken for another one each time.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut digits = text.bytes().filter(u8::is_ascii_hexdigit);
    let mut id = [0; 16];
    let known = id.iter_mut().all(|byte| {
        let pair = [digits.next(), digits.next()].map(|digit| char::from(digit.unwrap_or(b'-')).to_digit(16));
        let [Some(high), Some(low)] = pair else { return false };
        *byte = (high << 4 | low) as u8;
        true
    });
    if !known {
        let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    }
    id
}
