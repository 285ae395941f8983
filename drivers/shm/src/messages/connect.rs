//! Connection establishment between two nodes of one host.
//!
//! One node listens on a SEQPACKET socket at its [`Place`] ([`NodeListener`]). The other connects and passes
//! memory with a FIFO for each direction ([`NodeConnector`]). Each passes an eventfd, its receive doorbell, to the other.
//!
//! Both check what the kernel attests: the credentials of the peer process; the listening node also checks seals and size of the memory. The
//! connection stays open as long as the link, and its end is the end of the peer process; nothing more is sent on it.

use crate::messages::handshake::{Answer, HANDSHAKE_BYTES, Handshake};
use crate::messages::place::{ListenerFile, Place, is_valid_name};
use motet_engine::lock;
use motet_engine::message::transport::{Connected, Connector, Identity, Listener, NodeId, ShmTransport, Transport};
use motet_engine::reason::Reason;
use motet_sys::memory::{self, AddressRanges};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::event::epoll;
use motet_sys::rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use motet_sys::socket::{self, Credentials};
use motet_sys::thread::{self, euid};
use motet_sys::{asymmetric_fence, private_fds, process_vm};
use motet_wire::copy_mode::CopyMode;
use motet_wire::mapping::Mapping;
use motet_wire::message::fifo::payload_ring::{self, PayloadRing};
use motet_wire::message::fifo::{DEFAULT_CELLS, Fifo, SleepFence};
use std::sync::Mutex;

/// All users outside our user namespace have this number.
const OVERFLOW_UID: u32 = 65534;
/// Most incoming connections whose handshake has not arrived, and how long each may take, ns.
const MAX_INCOMING: usize = 64;
const HANDSHAKE_TIMEOUT_NS: u64 = 1_000_000_000;
/// Most incoming connections of other users.
const MAX_INCOMING_OF_OTHER_USERS: u32 = 8;
/// How long the listener accepts nothing after a failure to accept, ns.
const ACCEPT_PAUSE_NS: u64 = 20_000_000;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;

/// The address ranges of link memory. Only link memory is mapped there.
static RANGES: Mutex<AddressRanges> = Mutex::new(AddressRanges::new());

fn check_user(peer: &Credentials) -> Result<(), Reason> {
    match peer.uid {
        OVERFLOW_UID => Err(Reason::NOBODY),
        uid if uid == euid() => Ok(()),
        _ => Err(Reason::OTHER_USER),
    }
}

// ---- memory --------------------------------------------------------------------------------------------------------

/// Bytes of a payload ring: as much as a peer's window lets a sender be ahead (16 of the longest packets), and no more than a core's
/// second-level cache holds: memory that many links touch stays in no cache (docs/adr/0022). A page is allocated at its first use.
const PAYLOAD_RING_BYTES: usize = 1 << 20;

/// The sizes of a link's memory: two FIFOs, the control lines of their payload rings, and from the next page on the rings.
#[derive(Debug, Clone, Copy)]
struct LinkShape {
    cells: usize,
    ring: usize,
}

/// The shape of links that this process connects.
const DEFAULT_SHAPE: LinkShape = LinkShape { cells: DEFAULT_CELLS, ring: PAYLOAD_RING_BYTES };

impl LinkShape {
    /// Whether the sizes are within the bounds that a peer may ask for.
    fn is_valid(&self) -> bool {
        let Self { cells, ring } = *self;
        cells.is_power_of_two()
            && (64..=4096).contains(&cells)
            && ring.is_power_of_two()
            && (4096..=1 << 24).contains(&ring)
    }

    /// Bytes before the payload rings, all allocated when the memory is mapped.
    fn dense(&self) -> usize {
        (2 * Fifo::size(self.cells) + 2 * payload_ring::CONTROL_BYTES).next_multiple_of(4096)
    }

    fn size(&self) -> usize {
        self.dense() + 2 * self.ring
    }
}

/// The mapped memory of a link. When it is dropped, another link may be mapped there.
struct LinkMemory(Mapping);

impl LinkMemory {
    fn map(file: &OwnedFd, shape: LinkShape) -> Result<Self, Reason> {
        let mapping = lock(&RANGES).map(file, shape.size(), 4096).map_err(|_| Reason::NO_MEMORY)?;
        let memory = Self(mapping);
        if memory::populate_at(mapping, 0, shape.dense()) { Ok(memory) } else { Err(Reason::NO_MEMORY) }
    }

    /// The FIFO and payload ring from the connecting node, and those to it.
    fn directions(&self, shape: LinkShape) -> Result<[(Fifo, PayloadRing); 2], Reason> {
        let LinkShape { cells, ring } = shape;
        let direction = |n: usize| {
            let fifo = Fifo::over(self.0, n * Fifo::size(cells), cells)?;
            let control = 2 * Fifo::size(cells) + n * payload_ring::CONTROL_BYTES;
            Some((fifo, PayloadRing::over(self.0, control, shape.dense() + n * ring, ring)?))
        };
        Ok([direction(0).ok_or(Reason::BAD_SEGMENT)?, direction(1).ok_or(Reason::BAD_SEGMENT)?])
    }
}

impl Drop for LinkMemory {
    fn drop(&mut self) {
        lock(&RANGES).retire(self.0);
    }
}

/// The parts of a link whose handshake is complete.
struct LinkParts {
    control: PrivateFd,
    peer: Credentials,
    memory: LinkMemory,
    tx_doorbell: OwnedFd,
    rx_doorbell: PrivateFd,
    shape: LinkShape,
}

impl LinkParts {
    /// Makes the transport. `connecting`: this is the connecting node.
    fn into_connected(self, connecting: bool, id: NodeId) -> Result<Connected, Reason> {
        let [from_connector, to_connector] = self.memory.directions(self.shape)?;
        let (outward, inward) =
            if connecting { (from_connector, to_connector) } else { (to_connector, from_connector) };
        // Before Linux 6.5 by the process number, which is valid because the peer has just sent a message.
        let by_number = |_| thread::open_pidfd(u32::try_from(self.peer.pid).unwrap_or(0));
        let process = socket::peer_process(self.control.as_fd().as_raw_fd()).or_else(by_number);
        let process = process.ok().map(PrivateFd::new);
        let transport = ShmTransport {
            fifo_tx: outward.0.tx(),
            fifo_rx: inward.0.rx(),
            copy_mode: CopyMode::default(),
            payload_rings: (outward.1.tx(), inward.1.rx()),
            tx_doorbell: PrivateFd::new(self.tx_doorbell),
            rx_doorbell: self.rx_doorbell,
            control: self.control,
            process,
            pid: readable_pid(self.peer.pid),
            keep: Box::new(self.memory),
        };
        Ok(Connected { peer: id, transport: Transport::SharedMemory(transport) })
    }
}

/// The number of a process if the kernel lets us read its memory; otherwise 0.
fn readable_pid(pid: i32) -> u32 {
    let pid = u32::try_from(pid).unwrap_or(0);
    // Nothing is mapped at address 0, so with access the error is EFAULT; without access, another one.
    const EFAULT: i32 = 14;
    if pid != 0 && process_vm::read_from(pid, 0, &mut [0]) == Err(EFAULT) { pid } else { 0 }
}

/// Makes a receive doorbell.
fn new_rx_doorbell() -> Result<PrivateFd, Reason> {
    socket::eventfd().map(PrivateFd::new).map_err(|_| Reason::NO_MEMORY)
}

// ---- listen --------------------------------------------------------------------------------------------------------

/// Accepts connections under the node's name.
pub struct NodeListener {
    listener: PrivateFd,
    /// An epoll set of the listener and the incoming connections.
    poll: PrivateFd,
    id: NodeId,
    /// Where it listens.
    file: ListenerFile,
    incoming: Vec<Incoming>,
    /// Incoming connections of other users.
    incoming_of_others: u32,
    /// Until when nothing is accepted: there are [`MAX_INCOMING`] already, or no descriptor for more.
    paused_until: Option<u64>,
}

/// An incoming connection whose handshake has not arrived.
struct Incoming {
    fd: PrivateFd,
    deadline: u64,
    is_same_user: bool,
}

impl NodeListener {
    /// Binds the node's name and listens.
    pub fn listen(node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        if !is_valid_name(&node.name) {
            return Err(Reason::BAD_NAME);
        }
        Self::at(node, Place::Name(node.name.clone()))
    }

    /// Listens in the node's folder.
    pub fn listen_in_folder(node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        Self::at(node, Place::in_folder(node)?)
    }

    fn at(node: &Identity, place: Place) -> Result<Box<dyn Listener>, Reason> {
        const EADDRINUSE: i32 = 98;
        let listener = place
            .listen(BACKLOG)
            .map_err(|errno| if errno == EADDRINUSE { Reason::NAME_TAKEN } else { Reason::NOT_PERMITTED })?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|_| Reason::NO_MEMORY)?;
        let (listener, poll) = (PrivateFd::close_on_fork(listener), PrivateFd::new(poll));
        watch(&poll, &listener)?;
        asymmetric_fence::register_global();
        let file = ListenerFile::new(place).map_err(|_| Reason::NO_MEMORY)?;
        let (id, incoming) = (node.id, Vec::new());
        Ok(Box::new(Self { listener, poll, id, file, incoming, incoming_of_others: 0, paused_until: None }))
    }

    /// Accepts connections. After a failure the listener leaves the epoll set for a while, in which it would be readable all the time.
    fn accept_incoming(&mut self, now: u64) {
        const EAGAIN: i32 = 11;
        while self.paused_until.is_none() {
            let accepted = if self.incoming.len() < MAX_INCOMING { socket::accept(&self.listener) } else { Err(0) };
            let fd = match accepted {
                Ok(fd) => PrivateFd::close_on_fork(fd),
                Err(EAGAIN) => return,
                Err(_) => {
                    let _ = epoll::delete(&self.poll, &self.listener);
                    self.paused_until = Some(now.saturating_add(ACCEPT_PAUSE_NS));
                    return;
                }
            };
            // A process of another user gets an answer to its handshake, but such connections must not fill the table until then.
            let is_same_user = socket::peer_credentials(&fd).is_ok_and(|peer| check_user(&peer).is_ok());
            let other = u32::from(!is_same_user);
            if self.incoming_of_others + other <= MAX_INCOMING_OF_OTHER_USERS && watch(&self.poll, &fd).is_ok() {
                self.incoming_of_others += other;
                let deadline = now.saturating_add(HANDSHAKE_TIMEOUT_NS);
                self.incoming.push(Incoming { fd, deadline, is_same_user });
            }
        }
    }

    fn resume_accepting(&mut self) {
        if self.paused_until.is_some() && watch(&self.poll, &self.listener).is_ok() {
            self.paused_until = None;
        }
    }

    /// Receives the handshake of an incoming connection; `None`: it has not arrived yet.
    fn receive_handshake(&self, fd: &PrivateFd) -> Option<Result<(LinkParts, NodeId), Reason>> {
        const EAGAIN: i32 = 11;
        let mut bytes = [0; HANDSHAKE_BYTES + 1];
        let (length, files) = match socket::receive_with_fds(fd, &mut bytes) {
            Ok(message) => message,
            Err(EAGAIN) => return None,
            Err(_) => return Some(Err(Reason::PEER_GONE)),
        };
        Some(Self::check_handshake(fd, &bytes[..length.min(bytes.len())], files))
    }

    /// Checks all of a handshake, then maps and prepares the memory.
    fn check_handshake(
        fd: &PrivateFd,
        bytes: &[u8],
        files: [Option<OwnedFd>; 2],
    ) -> Result<(LinkParts, NodeId), Reason> {
        let peer = socket::peer_credentials(fd).map_err(|_| Reason::NOT_PERMITTED)?;
        check_user(&peer)?;
        let handshake = Handshake::decode(bytes)?;
        let [Some(file), Some(tx_doorbell)] = files else { return Err(Reason::BAD_OFFER) };
        let shape = LinkShape { cells: handshake.cells as usize, ring: handshake.ring as usize };
        let (length, sealed, ordinary) = memory::inspect(&file).map_err(|_| Reason::BAD_SEGMENT)?;
        if !shape.is_valid()
            || length != shape.size() as u64
            || !sealed
            || !ordinary
            || !private_fds::is_doorbell(&tx_doorbell)
        {
            return Err(Reason::BAD_SEGMENT);
        }
        let memory = LinkMemory::map(&file, shape)?;
        let fence = if handshake.barrier && asymmetric_fence::register_global() {
            SleepFence::Asymmetric
        } else {
            SleepFence::Both
        };
        for (fifo, payload_ring) in memory.directions(shape)? {
            fifo.prepare(fence);
            payload_ring.prepare();
        }
        let control = PrivateFd::close_on_fork(private_fds::duplicate(fd).map_err(|_| Reason::NO_MEMORY)?);
        Ok((LinkParts { control, peer, memory, tx_doorbell, rx_doorbell: new_rx_doorbell()?, shape }, handshake.node))
    }

    fn answer(&self, fd: &PrivateFd, checked: Result<(LinkParts, NodeId), Reason>) -> Option<Connected> {
        let (parts, id) = match checked {
            Ok(checked) => checked,
            Err(reason) => {
                let _ = socket::send_message(fd, &Answer(Err(reason)).encode());
                return None;
            }
        };
        socket::send_with_fd(fd, &Answer(Ok(self.id)).encode(), &parts.rx_doorbell).ok()?;
        parts.into_connected(false, id).ok()
    }
}

fn watch(poll: &PrivateFd, what: &PrivateFd) -> Result<(), Reason> {
    epoll::add(poll, what, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(|_| Reason::NO_MEMORY)
}

impl Listener for NodeListener {
    fn descriptor(&self) -> RawFd {
        self.poll.as_fd().as_raw_fd()
    }

    fn step(&mut self, now: u64) -> Option<Connected> {
        if self.paused_until.is_none_or(|until| until <= now) {
            self.resume_accepting();
        }
        self.accept_incoming(now);
        let mut at = 0;
        while let Some(incoming) = self.incoming.get(at) {
            match self.receive_handshake(&incoming.fd) {
                None if incoming.deadline > now => at += 1,
                checked => {
                    let incoming = self.incoming.swap_remove(at);
                    self.incoming_of_others -= u32::from(!incoming.is_same_user);
                    self.paused_until = self.paused_until.map(|_| now); // there is room again
                    if let Some(connected) = checked.and_then(|checked| self.answer(&incoming.fd, checked)) {
                        return Some(connected);
                    }
                }
            }
        }
        None
    }

    fn due(&self) -> Option<u64> {
        self.incoming.iter().map(|incoming| incoming.deadline).chain(self.paused_until).min()
    }

    fn address(&self) -> String {
        self.file.place().address()
    }
}

// ---- connect -------------------------------------------------------------------------------------------------------

/// A handshake that was sent and not answered yet.
struct PendingHandshake {
    control: PrivateFd,
    peer: Credentials,
    memory: LinkMemory,
    rx_doorbell: PrivateFd,
}

/// A connection to another node that is being established.
pub struct NodeConnector {
    place: Place,
    node: NodeId,
    pending: Option<PendingHandshake>,
}

impl NodeConnector {
    /// Begins to connect to the node at that address.
    pub fn begin(node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason> {
        Ok(Box::new(Self { place: Place::parse(node, address)?, node: node.id, pending: None }))
    }

    /// Connects and sends the handshake; `None`: the peer's backlog is full at the moment.
    fn send_handshake(&self) -> Result<Option<PendingHandshake>, Reason> {
        const EAGAIN: i32 = 11;
        const ECONNREFUSED: i32 = 111;
        const ENOENT: i32 = 2;
        let control = match self.place.connect() {
            Ok(control) => PrivateFd::close_on_fork(control),
            Err(EAGAIN) => return Ok(None),
            Err(ECONNREFUSED | ENOENT) => return Err(Reason::NO_SUCH_NODE),
            Err(_) => return Err(Reason::NOT_PERMITTED),
        };
        let peer = socket::peer_credentials(&control).map_err(|_| Reason::NOT_PERMITTED)?;
        check_user(&peer)?;
        let shape = DEFAULT_SHAPE;
        let file =
            memory::create_memfd("motet-link", shape.size(), &[], shape.dense()).map_err(|_| Reason::NO_MEMORY)?;
        let memory = LinkMemory::map(&file, shape)?;
        let LinkShape { cells, ring } = shape;
        let barrier = asymmetric_fence::register_global();
        let handshake = Handshake { node: self.node, cells: cells as u32, ring: ring as u32, barrier };
        let rx_doorbell = new_rx_doorbell()?;
        let files = [file.as_fd(), rx_doorbell.as_fd()];
        socket::send_with_fds(&control, &handshake.encode(), &files).map_err(|_| Reason::NOT_PERMITTED)?;
        Ok(Some(PendingHandshake { control, peer, memory, rx_doorbell }))
    }

    /// Receives the answer; `None`: it has not arrived yet.
    fn receive_answer(&mut self) -> Option<Result<Connected, Reason>> {
        const EAGAIN: i32 = 11;
        let mut bytes = [0; HANDSHAKE_BYTES + 1];
        let control = &self.pending.as_ref()?.control;
        let (length, tx_doorbell) = match socket::receive_with_fd(control, &mut bytes) {
            Ok(message) => message,
            Err(EAGAIN) => return None,
            Err(_) => return Some(Err(Reason::NO_SUCH_NODE)),
        };
        let PendingHandshake { control, peer, memory, rx_doorbell } = self.pending.take()?;
        if length == 0 {
            return Some(Err(Reason::NO_SUCH_NODE));
        }
        let Answer(answer) = Answer::decode(&bytes[..length.min(bytes.len())]);
        Some(answer.and_then(|id| {
            let tx_doorbell = tx_doorbell.filter(private_fds::is_doorbell).ok_or(Reason::BAD_OFFER)?;
            let shape = DEFAULT_SHAPE;
            LinkParts { control, peer, memory, tx_doorbell, rx_doorbell, shape }.into_connected(true, id)
        }))
    }
}

impl Connector for NodeConnector {
    fn step(&mut self, _now: u64) -> Option<Result<Connected, Reason>> {
        if self.pending.is_none() {
            match self.send_handshake() {
                Ok(pending) => self.pending = pending,
                Err(reason) => return Some(Err(reason)),
            }
        }
        self.receive_answer()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.pending.as_ref().map(|pending| pending.control.as_fd().as_raw_fd())
    }
}
