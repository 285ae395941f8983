//! How two nodes of one host meet: the one listens on an abstract SEQPACKET name made from its user and its own name, the other
//! connects, and hands over memory with a lane each way. Each gives the other an eventfd to wake it.
//!
//! Both check what the kernel attests: credentials of the process at the other end, seals and size of the memory. The
//! connection stays open as long as the link: it ends with either process. Nothing of it but its end is looked at later.

use crate::message_handshake::{Answer, Greeting, SIZE};
use motet_engine::lock;
use motet_engine::message::transport::{Connected, Connector, Identity, Listener, NodeId, ShmTransport, Transport};
use motet_engine::reason::Reason;
use motet_sys::memory::{self, AddressRanges};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::event::epoll;
use motet_sys::rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use motet_sys::socket::{self, Credentials};
use motet_sys::thread::{self, euid};
use motet_sys::{membarrier, private_fds, process_vm};
use motet_wire::mapping::Mapping;
use motet_wire::message::fifo::payload_ring::{self, PayloadRing};
use motet_wire::message::fifo::{DEFAULT_CELLS, Fifo, SleepFence};
use std::sync::Mutex;

/// Users outside our user namespace all look like this one.
const OVERFLOW_UID: u32 = 65534;
/// Those who have connected and not greeted yet, at most, and for how long (ns).
const GUESTS: usize = 64;
const PATIENCE: u64 = 1_000_000_000;
/// Of them, those of other users.
const STRANGERS: u32 = 8;
/// How long those who cannot be taken wait, ns.
const REST: u64 = 20_000_000;
/// Connections that the kernel keeps for us.
const BACKLOG: i32 = 128;

/// Where the memory of links lies. It is left to none but links.
static RANGES: Mutex<AddressRanges> = Mutex::new(AddressRanges::new());

/// The same in every version.
fn socket_name(name: &str) -> Vec<u8> {
    format!("motet/node/{}/{name}", euid()).into_bytes()
}

/// What a name may be: it is part of an address that people write.
pub fn is_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(known)
}

fn trusted(peer: &Credentials) -> Result<(), Reason> {
    match peer.uid {
        OVERFLOW_UID => Err(Reason::NOBODY),
        uid if uid == euid() => Ok(()),
        _ => Err(Reason::OTHER_USER),
    }
}

// ---- memory --------------------------------------------------------------------------------------------------------

/// Bytes of a ring beside a lane: what a peer's window lets a sender be ahead (16 of the longest packets), and no more than a core's
/// second-level cache holds; memory that many links touch is memory that no cache has (docs/adr/0022). Its pages come into being as they
/// are first used.
const RING: usize = 1 << 20;

/// Sizes of a link's memory: the two lanes, the lines of their rings, and, from a page on, the rings.
#[derive(Debug, Clone, Copy)]
struct Shape {
    lines: usize,
    ring: usize,
}

/// Of the links that this side calls for.
const SHAPE: Shape = Shape { lines: DEFAULT_CELLS, ring: RING };

impl Shape {
    /// Within bounds.
    fn is_sound(&self) -> bool {
        let Self { lines, ring } = *self;
        lines.is_power_of_two()
            && (64..=4096).contains(&lines)
            && ring.is_power_of_two()
            && (4096..=1 << 24).contains(&ring)
    }

    /// Bytes before the rings: what is there from the beginning.
    fn dense(&self) -> usize {
        (2 * Fifo::size(self.lines) + 2 * payload_ring::CONTROL_BYTES).next_multiple_of(4096)
    }

    fn size(&self) -> usize {
        self.dense() + 2 * self.ring
    }
}

/// The memory of a link, mapped. Its range serves the next one.
struct Memory(Mapping);

impl Memory {
    fn map(file: &OwnedFd, shape: Shape) -> Result<Self, Reason> {
        let mapping = lock(&RANGES).map(file, shape.size(), 4096).map_err(|_| Reason::NO_MEMORY)?;
        let memory = Self(mapping);
        if memory::populate_at(mapping, 0, shape.dense()) { Ok(memory) } else { Err(Reason::NO_MEMORY) }
    }

    /// The lane from the caller, and the one to it, each with its ring.
    fn ways(&self, shape: Shape) -> Result<[(Fifo, PayloadRing); 2], Reason> {
        let Shape { lines, ring } = shape;
        let way = |n: usize| {
            let lane = Fifo::over(self.0, n * Fifo::size(lines), lines)?;
            let line = 2 * Fifo::size(lines) + n * payload_ring::CONTROL_BYTES;
            Some((lane, PayloadRing::over(self.0, line, shape.dense() + n * ring, ring)?))
        };
        Ok([way(0).ok_or(Reason::BAD_SEGMENT)?, way(1).ok_or(Reason::BAD_SEGMENT)?])
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        lock(&RANGES).retire(self.0);
    }
}

/// What is left to do once both have spoken.
struct Meeting {
    control: PrivateFd,
    peer: Credentials,
    memory: Memory,
    tx_doorbell: OwnedFd,
    rx_doorbell: PrivateFd,
    shape: Shape,
}

impl Meeting {
    fn end(self, caller: bool, id: NodeId) -> Result<Connected, Reason> {
        let [there, back] = self.memory.ways(self.shape)?;
        let (outward, inward) = if caller { (there, back) } else { (back, there) };
        // Before Linux 6.5 by its number, which was its own when it spoke just now.
        let by_number = |_| thread::open_pidfd(u32::try_from(self.peer.pid).unwrap_or(0));
        let process = socket::peer_process(self.control.as_fd().as_raw_fd()).or_else(by_number);
        let process = process.ok().map(PrivateFd::new);
        let lanes = ShmTransport {
            outward: outward.0.tx(),
            inward: inward.0.rx(),
            copying: Box::default(),
            bulk: (outward.1.tx(), inward.1.rx()),
            tx_doorbell: PrivateFd::new(self.tx_doorbell),
            rx_doorbell: self.rx_doorbell,
            control: self.control,
            process,
            pid: readable(self.peer.pid),
            keep: Box::new(self.memory),
        };
        Ok(Connected { peer: id, transport: Transport::SharedMemory(lanes) })
    }
}

/// The number of a process whose memory the kernel lets us read.
fn readable(pid: i32) -> u32 {
    let pid = u32::try_from(pid).unwrap_or(0);
    // Nothing is at address 0: a process without access fails before that.
    const EFAULT: i32 = 14;
    if pid != 0 && process_vm::read_from(pid, 0, &mut [0]) == Err(EFAULT) { pid } else { 0 }
}

/// What wakes this side of a link.
fn rx_doorbell() -> Result<PrivateFd, Reason> {
    socket::eventfd().map(PrivateFd::new).map_err(|_| Reason::NO_MEMORY)
}

// ---- who listens ---------------------------------------------------------------------------------------------------

/// Waits under the node's name.
pub struct Host {
    listener: PrivateFd,
    poll: PrivateFd,
    id: NodeId,
    name: String,
    /// Who has connected, until when it is heard, and whether it is of our user.
    guests: Vec<(PrivateFd, u64, bool)>,
    strangers: u32,
    /// Until when the listener is not looked at: there is no room for more guests, or no descriptor for them.
    resting: Option<u64>,
}

impl Host {
    /// Takes the name.
    pub fn listen(node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        const EADDRINUSE: i32 = 98;
        if !is_name(&node.name) {
            return Err(Reason::BAD_NAME);
        }
        let listener = socket::listen_abstract(&socket_name(&node.name), BACKLOG)
            .map_err(|errno| if errno == EADDRINUSE { Reason::NAME_TAKEN } else { Reason::NOT_PERMITTED })?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|_| Reason::NO_MEMORY)?;
        let (listener, poll) = (PrivateFd::close_on_fork(listener), PrivateFd::new(poll));
        watch(&poll, &listener)?;
        membarrier::register_global();
        let (id, name, guests) = (node.id, node.name.clone(), Vec::new());
        Ok(Box::new(Self { listener, poll, id, name, guests, strangers: 0, resting: None }))
    }

    /// Takes who has connected. When that cannot be done now, the listener is not looked at for a while: it would be readable all the
    /// time.
    fn take_guests(&mut self, now: u64) {
        const EAGAIN: i32 = 11;
        while self.resting.is_none() {
            let taken = if self.guests.len() < GUESTS { socket::accept(&self.listener) } else { Err(0) };
            let guest = match taken {
                Ok(guest) => PrivateFd::close_on_fork(guest),
                Err(EAGAIN) => return,
                Err(_) => {
                    let _ = epoll::delete(&self.poll, &self.listener);
                    self.resting = Some(now.saturating_add(REST));
                    return;
                }
            };
            // Strangers are told so when they have spoken, but must not take the places of others until then.
            let ours = socket::peer_credentials(&guest).is_ok_and(|peer| trusted(&peer).is_ok());
            let stranger = u32::from(!ours);
            if self.strangers + stranger <= STRANGERS && watch(&self.poll, &guest).is_ok() {
                self.strangers += stranger;
                self.guests.push((guest, now.saturating_add(PATIENCE), ours));
            }
        }
    }

    fn wake_up(&mut self) {
        if self.resting.is_some() && watch(&self.poll, &self.listener).is_ok() {
            self.resting = None;
        }
    }

    /// Hears out a guest. `None`: it says nothing yet.
    fn hear(&self, guest: &PrivateFd) -> Option<Result<(Meeting, NodeId), Reason>> {
        const EAGAIN: i32 = 11;
        let mut bytes = [0; SIZE + 1];
        let (length, files) = match socket::receive_with_fds(guest, &mut bytes) {
            Ok(message) => message,
            Err(EAGAIN) => return None,
            Err(_) => return Some(Err(Reason::PEER_GONE)),
        };
        Some(self.take(guest, &bytes[..length.min(bytes.len())], files))
    }

    /// Checks a greeting in full before anything of it is used.
    fn take(&self, guest: &PrivateFd, bytes: &[u8], files: [Option<OwnedFd>; 2]) -> Result<(Meeting, NodeId), Reason> {
        let peer = socket::peer_credentials(guest).map_err(|_| Reason::NOT_PERMITTED)?;
        trusted(&peer)?;
        let greeting = Greeting::decode(bytes)?;
        let [Some(file), Some(tx_doorbell)] = files else { return Err(Reason::BAD_OFFER) };
        let shape = Shape { lines: greeting.lines as usize, ring: greeting.ring as usize };
        let (length, sealed, ordinary) = memory::inspect(&file).map_err(|_| Reason::BAD_SEGMENT)?;
        if !shape.is_sound()
            || length != shape.size() as u64
            || !sealed
            || !ordinary
            || !private_fds::is_doorbell(&tx_doorbell)
        {
            return Err(Reason::BAD_SEGMENT);
        }
        let memory = Memory::map(&file, shape)?;
        let fence =
            if greeting.barrier && membarrier::register_global() { SleepFence::Asymmetric } else { SleepFence::Both };
        for (lane, bulk) in memory.ways(shape)? {
            lane.prepare(fence);
            bulk.prepare();
        }
        let control = PrivateFd::close_on_fork(private_fds::duplicate(guest).map_err(|_| Reason::NO_MEMORY)?);
        Ok((Meeting { control, peer, memory, tx_doorbell, rx_doorbell: rx_doorbell()?, shape }, greeting.caller))
    }

    fn answer(&self, guest: &PrivateFd, took: Result<(Meeting, NodeId), Reason>) -> Option<Connected> {
        let (meeting, id) = match took {
            Ok(took) => took,
            Err(reason) => {
                let _ = socket::send_message(guest, &Answer(Err(reason)).encode());
                return None;
            }
        };
        socket::send_with_fd(guest, &Answer(Ok(self.id)).encode(), &meeting.rx_doorbell).ok()?;
        meeting.end(false, id).ok()
    }
}

fn watch(poll: &PrivateFd, what: &PrivateFd) -> Result<(), Reason> {
    epoll::add(poll, what, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(|_| Reason::NO_MEMORY)
}

impl Listener for Host {
    fn descriptor(&self) -> RawFd {
        self.poll.as_fd().as_raw_fd()
    }

    fn step(&mut self, now: u64) -> Option<Connected> {
        if self.resting.is_none_or(|until| until <= now) {
            self.wake_up();
        }
        self.take_guests(now);
        let mut at = 0;
        while let Some((guest, until, _)) = self.guests.get(at) {
            match self.hear(guest) {
                None if *until > now => at += 1,
                heard => {
                    let (guest, _, ours) = self.guests.swap_remove(at);
                    self.strangers -= u32::from(!ours);
                    self.resting = self.resting.map(|_| now); // there is room again
                    if let Some(met) = heard.and_then(|took| self.answer(&guest, took)) {
                        return Some(met);
                    }
                }
            }
        }
        None
    }

    fn due(&self) -> Option<u64> {
        self.guests.iter().map(|guest| guest.1).chain(self.resting).min()
    }

    fn address(&self) -> String {
        self.name.clone()
    }
}

// ---- who calls -----------------------------------------------------------------------------------------------------

/// A greeting that was not answered yet.
struct UnderWay {
    control: PrivateFd,
    peer: Credentials,
    memory: Memory,
    rx_doorbell: PrivateFd,
}

/// Has greeted, and waits for the answer.
pub struct Guest {
    name: String,
    caller: NodeId,
    under_way: Option<UnderWay>,
}

impl Guest {
    /// Calls the node of that name.
    pub fn call(node: &Identity, name: &str) -> Result<Box<dyn Connector>, Reason> {
        if !is_name(name) {
            return Err(Reason::BAD_NAME);
        }
        Ok(Box::new(Self { name: name.to_owned(), caller: node.id, under_way: None }))
    }

    /// Connects and greets; `None`: the other has too many callers now.
    fn greet(&self) -> Result<Option<UnderWay>, Reason> {
        const EAGAIN: i32 = 11;
        const ECONNREFUSED: i32 = 111;
        let control = match socket::connect_abstract(&socket_name(&self.name)) {
            Ok(control) => PrivateFd::close_on_fork(control),
            Err(EAGAIN) => return Ok(None),
            Err(ECONNREFUSED) => return Err(Reason::NO_SUCH_NODE),
            Err(_) => return Err(Reason::NOT_PERMITTED),
        };
        let peer = socket::peer_credentials(&control).map_err(|_| Reason::NOT_PERMITTED)?;
        trusted(&peer)?;
        let file =
            memory::create_memfd("motet-link", SHAPE.size(), &[], SHAPE.dense()).map_err(|_| Reason::NO_MEMORY)?;
        let memory = Memory::map(&file, SHAPE)?;
        let Shape { lines, ring } = SHAPE;
        let barrier = membarrier::register_global();
        let greeting = Greeting { caller: self.caller, lines: lines as u32, ring: ring as u32, barrier };
        let rx_doorbell = rx_doorbell()?;
        let files = [file.as_fd(), rx_doorbell.as_fd()];
        socket::send_with_fds(&control, &greeting.encode(), &files).map_err(|_| Reason::NOT_PERMITTED)?;
        Ok(Some(UnderWay { control, peer, memory, rx_doorbell }))
    }

    fn hear(&mut self) -> Option<Result<Connected, Reason>> {
        const EAGAIN: i32 = 11;
        let mut bytes = [0; SIZE + 1];
        let control = &self.under_way.as_ref()?.control;
        let (length, tx_doorbell) = match socket::receive_with_fd(control, &mut bytes) {
            Ok(message) => message,
            Err(EAGAIN) => return None,
            Err(_) => return Some(Err(Reason::NO_SUCH_NODE)),
        };
        let UnderWay { control, peer, memory, rx_doorbell } = self.under_way.take()?;
        if length == 0 {
            return Some(Err(Reason::NO_SUCH_NODE));
        }
        let Answer(answer) = Answer::decode(&bytes[..length.min(bytes.len())]);
        Some(answer.and_then(|id| {
            let tx_doorbell = tx_doorbell.filter(private_fds::is_doorbell).ok_or(Reason::BAD_OFFER)?;
            Meeting { control, peer, memory, tx_doorbell, rx_doorbell, shape: SHAPE }.end(true, id)
        }))
    }
}

impl Connector for Guest {
    fn step(&mut self, _now: u64) -> Option<Result<Connected, Reason>> {
        if self.under_way.is_none() {
            match self.greet() {
                Ok(under_way) => self.under_way = under_way,
                Err(reason) => return Some(Err(reason)),
            }
        }
        self.hear()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.under_way.as_ref().map(|under_way| under_way.control.as_fd().as_raw_fd())
    }
}
