//! Endpoints: a table of handlers and a user value, on a node.

use crate::counters::count;
use crate::error::Error;
use crate::numbers::NumberMap;
use crate::request::{Data, Request};
use crate::sender::Sender;
use crate::startpoint::{Startpoint, Target};
use crate::wire::{Handler, ReplyStatus, is_name};
use motet::node::Channel;
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Most endpoints of a node, and most handlers of an endpoint.
const MAX_ENDPOINTS: usize = 1 << 20;
const MAX_HANDLERS: usize = 4096;
/// Handlers of smaller numbers are found without a hash.
const MAX_DIRECT: u32 = 16;

type Function = dyn Fn(&mut Request<'_>) + Send + Sync;

/// A handler.
pub struct Entry {
    function: Box<Function>,
    /// Whether a thread of its own runs it.
    pub threaded: bool,
}

/// The handlers of an endpoint, by number or name.
///
/// A handler runs in the thread that receives, so it should end soon and make no call ([`crate::Rsr::call`]); the others wait for it. A threaded
/// handler runs in a thread of a pool, and may do what it likes.
#[derive(Default)]
pub struct Handlers {
    by_number: NumberMap<u32, Arc<Entry>>,
    by_name: HashMap<String, Arc<Entry>>,
    user: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers")
            .field("numbers", &self.by_number.keys())
            .field("names", &self.by_name.keys())
            .finish()
    }
}

impl Handlers {
    /// No handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler. It replaces one of the same number or name.
    pub fn on<'a>(
        self,
        handler: impl Into<Handler<'a>>,
        run: impl Fn(&mut Request<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.add(handler.into(), Entry { function: Box::new(run), threaded: false })
    }

    /// Adds a threaded handler.
    pub fn threaded<'a>(
        self,
        handler: impl Into<Handler<'a>>,
        run: impl Fn(&mut Request<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.add(handler.into(), Entry { function: Box::new(run), threaded: true })
    }

    /// Sets the user value, which handlers get ([`Request::user`]).
    pub fn user(mut self, value: impl Any + Send + Sync) -> Self {
        self.user = Some(Box::new(value));
        self
    }

    fn add(mut self, handler: Handler<'_>, entry: Entry) -> Self {
        match handler {
            Handler::Number(number) => _ = self.by_number.insert(number, Arc::new(entry)),
            Handler::Name(name) => _ = self.by_name.insert(name.to_owned(), Arc::new(entry)),
        }
        self
    }

    fn find(&self, handler: Handler<'_>) -> Option<&Arc<Entry>> {
        match handler {
            Handler::Number(number) => self.by_number.get(&number),
            Handler::Name(name) => self.by_name.get(name),
        }
    }
}

/// An endpoint, for those that dispatch to it.
pub struct Registered {
    handlers: Handlers,
    /// Those of small numbers, by number.
    direct: Vec<Option<Arc<Entry>>>,
    is_closed: AtomicBool,
    /// Handlers that run now.
    running: AtomicUsize,
}

thread_local! {
    /// The endpoints of which this thread runs handlers, by address.
    static RUNNING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Ends a run of a handler, by a panic too.
struct Run<'a>(&'a Registered);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(Vec::pop);
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

impl Registered {
    /// The handler of this number or name.
    #[inline]
    pub fn find(&self, handler: Handler<'_>) -> Option<&Arc<Entry>> {
        match handler {
            Handler::Number(number) if (number as usize) < self.direct.len() => self.direct[number as usize].as_ref(),
            handler => self.handlers.find(handler),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn is_running_here(&self) -> bool {
        RUNNING.with_borrow(|running| running.contains(&self.address()))
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        while self.running.load(Ordering::SeqCst) > 0 && !self.is_running_here() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// A request for a handler.
pub struct Job {
    pub endpoint: Arc<Registered>,
    pub entry: Arc<Entry>,
    pub data: Data,
    pub channel: Channel,
    pub reply_to: Option<Startpoint>,
}

impl Job {
    /// Runs the handler, and answers a call that it has not answered. Returns the data, whose memory may be used again.
    pub fn run(self, sender: &Sender) -> Data {
        let Self { endpoint, entry, data, channel, reply_to } = self;
        endpoint.run(&entry, Request { sender, user: None, data, channel, reply_to })
    }
}

impl Registered {
    /// Runs a handler, and answers a call that it has not answered. Returns the data, whose memory may be used again.
    #[inline]
    pub fn run<'a>(&'a self, entry: &Entry, mut request: Request<'a>) -> Data {
        let sender = request.sender;
        self.running.fetch_add(1, Ordering::SeqCst);
        RUNNING.with_borrow_mut(|running| running.push(self.address()));
        let run = Run(self);
        request.user = self.handlers.user.as_deref();
        let mut status = ReplyStatus::NotAnswered;
        if self.is_closed.load(Ordering::SeqCst) {
            count(&sender.counters.no_endpoint);
            status = ReplyStatus::NoEndpoint;
        } else {
            count(&sender.counters.handled);
            if catch_unwind(AssertUnwindSafe(|| (entry.function)(&mut request))).is_err() {
                count(&sender.counters.panics);
            }
        }
        let Request { data, reply_to, .. } = request;
        drop(run);
        if let Some(to) = reply_to {
            let _ = sender.reply(&to, status, &crate::buffer::Buffer::new()); // who called may be gone
        }
        data
    }
}

/// The endpoints of a node.
#[derive(Default)]
pub struct Table(RwLock<NumberMap<u64, Arc<Registered>>>);

impl Table {
    /// The endpoint of this number.
    #[inline]
    pub fn find(&self, number: u64) -> Option<Arc<Registered>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Removes all endpoints.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner));
        all.values().for_each(|one| one.close());
    }
}

/// An endpoint. It is fixed to its node; startpoints refer to it. It is closed when it is dropped: no handler of it runs any more then, except one that
/// drops it itself, which goes on to its end. Later requests are dropped and counted.
pub struct Endpoint {
    table: Arc<Table>,
    sender: Arc<Sender>,
    number: u64,
    registered: Arc<Registered>,
}

impl fmt::Debug for Endpoint {
    /// Without its number, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("handlers", &self.registered.handlers).finish_non_exhaustive()
    }
}

impl Endpoint {
    pub(crate) fn new(table: &Arc<Table>, sender: &Arc<Sender>, handlers: Handlers) -> Result<Self, Error> {
        if handlers.by_number.len() + handlers.by_name.len() > MAX_HANDLERS {
            return Err(Error::Invalid("too many handlers"));
        }
        if !handlers.by_name.keys().all(|name| is_name(name)) {
            return Err(Error::Invalid("the name of a handler has 1 to 64 bytes"));
        }
        let direct = (0..MAX_DIRECT).map(|number| handlers.by_number.get(&number).cloned()).collect();
        let registered =
            Registered { handlers, direct, is_closed: AtomicBool::new(false), running: AtomicUsize::new(0) };
        let registered = Arc::new(registered);
        let mut endpoints = table.0.write().unwrap_or_else(PoisonError::into_inner);
        if endpoints.len() >= MAX_ENDPOINTS {
            return Err(Error::Invalid("too many endpoints"));
        }
        let number = loop {
            let number = sender.random_number();
            if !endpoints.contains_key(&number) {
                break number;
            }
        };
        endpoints.insert(number, registered.clone());
        drop(endpoints);
        Ok(Self { table: table.clone(), sender: sender.clone(), number, registered })
    }

    /// A startpoint of it, with the addresses that its node has now.
    pub fn startpoint(&self) -> Result<Startpoint, Error> {
        Ok(Startpoint::to(Target { node: self.sender.own_address()?, endpoint: self.number }))
    }

    /// Whether this thread is within a handler of it.
    pub fn is_running_here(&self) -> bool {
        self.registered.is_running_here()
    }

    /// Closes it, as a drop does.
    pub fn close(&self) {
        self.table.0.write().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        self.registered.close();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}
