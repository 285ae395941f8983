//! A node's part in remote service requests: endpoints, requests and calls, and the threads that receive.

use crate::buffer::Buffer;
use crate::call::{Caller, LateReplies, Reply};
use crate::counters::count;
use crate::deadline::Deadline;
use crate::endpoint::{Endpoint, Handlers};
use crate::error::Error;
use crate::memory::Memory;
use crate::options::{Counts, MAX_ONE_PACKET, Options, Reception};
use crate::reception::{Receiver, Shared, Source};
use crate::routes::SERVICE;
use crate::sender::Sender;
use crate::startpoint::Startpoint;
use crate::wire::{Handler, Head, ReplyStatus, is_name};
use crate::workers::Workers;
use motet::node::{Channel, Error as NodeError, Node, NodeId, RecvFrom, Serve, deadline_in};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Channels of a link that get a thread each. A peer needs one or two, and some more when it attaches again.
const MAX_THREADS_OF_A_LINK: usize = 16;
/// How often the thread that accepts channels looks for the end.
const ACCEPT_LIMIT: Duration = Duration::from_millis(50);

/// The nodes of this process that have attached.
static ATTACHED: Mutex<Option<HashSet<[u8; 16]>>> = Mutex::new(None);

/// A node's part in remote service requests. When the last clone is dropped, its threads end, and its endpoints with it.
#[derive(Clone)]
pub struct Rsr(Arc<Attached>);

struct Attached {
    shared: Arc<Shared>,
    /// Receives from all channels; with a thread for each channel it takes only what others do not.
    receiver: Arc<Receiver>,
    late: LateReplies,
    channels: Arc<ChannelThreads>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The threads of [`Reception::ThreadPerChannel`].
#[derive(Default)]
struct ChannelThreads(Mutex<Vec<(Arc<Receiver>, JoinHandle<()>)>>);

/// How requests to an endpoint go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The driver in use.
    pub driver: &'static str,
    /// The drivers before it, each with the reason for which it does not work for this pair.
    pub rejected: Vec<(String, NodeError)>,
    /// Whether the peer has made the channel: this node has not tried drivers then.
    pub by_peer: bool,
    /// Whether the program has chosen the driver.
    pub chosen: bool,
}

impl std::fmt::Debug for Rsr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rsr").field("options", &self.0.shared.sender.options).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rsr {
    /// Lets a node send and receive requests. [`Error::Invalid`]: it does already, or the options cannot be.
    pub fn attach(node: &Arc<Node>, options: Options) -> Result<Self, Error> {
        if options.one_packet > MAX_ONE_PACKET {
            return Err(Error::Invalid("one packet holds at most 32 KiB of data"));
        }
        let id = node.id()?.0;
        if !lock(&ATTACHED).get_or_insert_default().insert(id) {
            return Err(Error::Invalid("the node has attached already"));
        }
        let attached = Attached::new(node, options);
        if attached.is_err() {
            detached(id);
        }
        attached.map(|attached| Self(Arc::new(attached)))
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.0.shared.sender.node
    }

    /// Makes an endpoint.
    pub fn endpoint(&self, handlers: Handlers) -> Result<Endpoint, Error> {
        Endpoint::new(&self.0.shared.table, &self.0.shared.sender, handlers)
    }

    /// Sends a request, and waits until its data are free: short ones have left, long ones are in the receiver's memory. No reply comes; put a startpoint
    /// into the data for that. A startpoint of several endpoints: to each of them, also if some fail.
    ///
    /// Requests of a thread to an endpoint are handled in their order, whatever their lengths, if their handlers are not threaded; with
    /// [`Reception::Caller`] also if one thread at a time receives there.
    pub fn request<'a>(
        &self,
        start: &Startpoint,
        handler: impl Into<Handler<'a>>,
        buffer: &Buffer<'_>,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let head = Head { handler: checked(handler.into())?, is_reply: false, ..Head::reply(ReplyStatus::Done) };
        let sender = &self.0.shared.sender;
        if sender.try_request(start, &head, buffer).is_some() {
            return Ok(());
        }
        sender.request(start, &head, buffer, Deadline::within(limit))
    }

    /// Sends a request to one endpoint, and waits for the reply of its handler. [`Error::TimedOut`], [`Error::PeerGone`]: it may have been handled.
    pub fn call<'a>(
        &self,
        start: &Startpoint,
        handler: impl Into<Handler<'a>>,
        buffer: &Buffer<'_>,
        limit: Option<Duration>,
    ) -> Result<Reply, Error> {
        let Attached { shared, receiver, late, .. } = &*self.0;
        Caller { shared, receiver, late }.call(start, checked(handler.into())?, buffer, limit)
    }

    /// Replies to a call in another place than its handler ([`crate::Request::take_reply_startpoint`]).
    pub fn reply(&self, to: &Startpoint, buffer: &Buffer<'_>) -> Result<(), Error> {
        self.0.shared.sender.reply_to_startpoint(to, ReplyStatus::Done, buffer)
    }

    /// Receives and handles requests in this thread: waits for the first one, and handles all that are there. Returns how many packets came.
    /// [`Error::Invalid`]: threads receive in this process ([`Reception`]).
    pub fn poll(&self, limit: Option<Duration>) -> Result<usize, Error> {
        if self.0.shared.sender.options.reception != Reception::Caller {
            return Err(Error::Invalid("threads receive in this process"));
        }
        if limit == Some(Duration::ZERO) {
            return self.0.receiver.serve();
        }
        let until = limit.map(|limit| deadline_in(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
        while !self.0.receiver.step(until)? {
            if until.is_some_and(|until| deadline_in(0) >= until) {
                return Ok(0);
            } // otherwise data wait for memory
        }
        let mut came = 1;
        while self.0.receiver.next()? {
            came += 1;
        }
        Ok(came)
    }

    /// By which way requests go to each endpoint of a startpoint, and why. Makes links that are not there.
    pub fn ways(&self, start: &Startpoint, limit: Option<Duration>) -> Vec<Result<Way, Error>> {
        let (sender, deadline) = (&self.0.shared.sender, Deadline::within(limit));
        let way = |target| {
            let route = sender.open(target, start.chosen(), deadline)?;
            let (driver, rejected, by_peer) = (route.driver, route.tried.clone(), route.by_peer);
            Ok(Way { driver, rejected, by_peer, chosen: start.chosen().is_some() })
        };
        start.targets.iter().map(way).collect()
    }

    /// The nodes of a startpoint's endpoints.
    pub fn nodes(start: &Startpoint) -> Vec<NodeId> {
        start.targets.iter().map(|target| target.node.id).collect()
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let Shared { sender, table, .. } = &*self.0.shared;
        sender.counters.read(table.handled())
    }

    /// Bytes of requests beyond one packet that are held now: they are arriving, or their handlers have not ended.
    pub fn held(&self) -> usize {
        self.0.shared.memory.held()
    }
}

fn checked(handler: Handler<'_>) -> Result<Handler<'_>, Error> {
    match handler {
        Handler::Name(name) if !is_name(name) => Err(Error::Invalid("the name of a handler has 1 to 64 bytes")),
        handler => Ok(handler),
    }
}

fn detached(id: [u8; 16]) {
    if let Some(attached) = &mut *lock(&ATTACHED) {
        attached.remove(&id);
    }
}

impl Attached {
    fn new(node: &Arc<Node>, options: Options) -> Result<Self, Error> {
        let sender = Arc::new(Sender::new(node.clone(), options)?);
        let _ = sender.own_self.set(Arc::downgrade(&sender));
        let Options { reception, workers, queue, memory, .. } = sender.options;
        let shared = Arc::new(Shared {
            sender: sender.clone(),
            table: Arc::default(),
            workers: Arc::new(Workers::new(workers, queue)),
            memory: Arc::new(Memory::new(memory)),
            ended: AtomicBool::new(false),
        });
        let context = sender.context;
        let source = match reception {
            Reception::Caller => Source::Blocking(context),
            Reception::OneThread => Source::Posted(RecvFrom::Any(context)),
            Reception::ThreadPerChannel => Source::Nothing, // it gets late replies alone
        };
        let receiver = Arc::new(Receiver::start(&shared, source)?);
        let channels = Arc::new(ChannelThreads::default());
        node.serve(SERVICE, Serve::Tagged(context))?;
        let name = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let failed = |_| Error::Invalid("the system gives no thread");
        let thread = match reception {
            Reception::Caller => None,
            Reception::OneThread => {
                let receiver = receiver.clone();
                Some(name("motet-rsr").spawn(move || receiver.run()).map_err(failed)?)
            }
            Reception::ThreadPerChannel => {
                // Weak: the sender, which the threads have, must not keep itself.
                let known: (Weak<Shared>, Weak<ChannelThreads>) = (Arc::downgrade(&shared), Arc::downgrade(&channels));
                let opened = move |channel| {
                    if let (Some(shared), Some(channels)) = (known.0.upgrade(), known.1.upgrade()) {
                        channels.add(&shared, channel);
                    }
                };
                let _ = sender.opened.set(Box::new(opened));
                let (shared, receiver, channels) = (shared.clone(), receiver.clone(), channels.clone());
                Some(name("motet-rsr-accept").spawn(move || accept(&shared, &receiver, &channels)).map_err(failed)?)
            }
        };
        Ok(Self { shared, receiver, late: LateReplies::default(), channels, thread: Mutex::new(thread) })
    }
}

impl ChannelThreads {
    /// Receives from a channel in a thread of its own.
    fn add(&self, shared: &Arc<Shared>, channel: Channel) {
        let mut threads = lock(&self.0);
        for (receiver, _) in threads.extract_if(.., |(_, thread)| thread.is_finished()) {
            receiver.end();
        }
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let node = &shared.sender.node;
        if threads.iter().filter(|(receiver, _)| receiver.link() == Some(channel.link)).count() >= MAX_THREADS_OF_A_LINK
        {
            count(&shared.sender.counters.malformed);
            let _ = node.disconnect(channel.link);
            return;
        }
        let Ok(receiver) = Receiver::start(shared, Source::Posted(RecvFrom::Channel(channel))).map(Arc::new) else {
            let _ = node.close_channel(channel); // its peer does not wait for what is not received
            return;
        };
        let runs = receiver.clone();
        let thread = std::thread::Builder::new().name("motet-rsr-channel".to_owned());
        match thread.spawn(move || runs.run()) {
            Ok(thread) => threads.push((receiver, thread)),
            Err(_) => {
                receiver.end();
                let _ = node.close_channel(channel);
            }
        }
    }
}

/// Accepts channels, until the end.
fn accept(shared: &Arc<Shared>, late: &Receiver, channels: &ChannelThreads) {
    while !shared.ended.load(Ordering::Relaxed) {
        let _ = late.serve();
        match shared.sender.node.accept(SERVICE, Some(ACCEPT_LIMIT)) {
            Ok(channel) => {
                shared.sender.routes.learn(&shared.sender.node, channel);
                channels.add(shared, channel);
            }
            Err(NodeError::TimedOut) => {}
            Err(_) => return,
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Self { shared, receiver, channels, thread, .. } = self;
        let (node, own) = (&shared.sender.node, std::thread::current().id());
        shared.ended.store(true, Ordering::SeqCst);
        shared.workers.end();
        shared.sender.delayed.end();
        let _ = node.end_service(SERVICE);
        for channel in shared.sender.routes.take_channels() {
            let _ = node.close_channel(channel);
        }
        let threads = std::mem::take(&mut *lock(&channels.0));
        let main = lock(thread).take();
        for (receiver, thread) in threads.into_iter().chain(main.map(|main| (receiver.clone(), main))) {
            let _ = node.signal_cq(receiver.cq);
            if thread.thread().id() != own {
                let _ = thread.join();
            }
            receiver.end();
        }
        receiver.end();
        let _ = node.remove_context(shared.sender.context);
        shared.table.clear();
        if let Ok(id) = node.id() {
            detached(id.0);
        }
    }
}
