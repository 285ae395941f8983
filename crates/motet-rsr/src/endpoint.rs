//! Endpoints: a table of handlers and a user value, on a node.

mod threads;

use crate::counters::count;
use crate::error::Error;
use crate::numbers::NumberMap;
use crate::request::{Data, Request};
use crate::sender::{ReplyTo, Sender};
use crate::startpoint::{Startpoint, Target};
use crate::wire::{Handler, ReplyStatus, is_name};
use motet::node::Channel;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use threads::{Running, Threads};

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
    /// Who runs its handlers.
    threads: Arc<Threads>,
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

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.threads.close(self);
    }
}

/// A request for a handler.
pub struct Job {
    pub endpoint: Arc<Registered>,
    pub entry: Arc<Entry>,
    pub data: Data,
    pub channel: Channel,
    pub reply_to: Option<ReplyTo>,
}

impl Job {
    /// Runs the handler, and answers a call that it has not answered. Returns the data, whose memory may be used again.
    pub fn run(self, sender: &Sender) -> Data {
        let Self { endpoint, entry, data, channel, reply_to } = self;
        let threads = endpoint.threads.clone();
        let running = threads.enter(endpoint, None);
        let mut request = Request { sender, user: None, data: data.bytes(), format: data.format, channel, reply_to };
        let status = running.run(&entry, &mut request);
        let unanswered = request.reply_to;
        drop(running);
        sender.answer(unanswered, status);
        data
    }
}

impl Registered {
    /// Runs a handler; the endpoint is [`Running`] here. Returns what a call gets that the handler has not answered.
    #[inline]
    pub fn run<'a>(&'a self, entry: &Entry, request: &mut Request<'a>) -> ReplyStatus {
        let counters = &request.sender.counters;
        if self.is_closed.load(Ordering::SeqCst) {
            count(&counters.no_endpoint);
            return ReplyStatus::NoEndpoint;
        }
        self.threads.count_handled();
        request.user = self.handlers.user.as_deref();
        if catch_unwind(AssertUnwindSafe(|| (entry.function)(request))).is_err() {
            count(&counters.panics);
        }
        ReplyStatus::NotAnswered
    }
}

/// The endpoints of a node.
#[derive(Default)]
pub struct Table {
    endpoints: RwLock<NumberMap<u64, Arc<Registered>>>,
    threads: Arc<Threads>,
}

impl Table {
    /// The endpoint of this number. A thread finds those that it has used last without a lock.
    #[inline]
    pub fn find(&self, number: u64) -> Option<Running<'_>> {
        match self.threads.recall(number) {
            Some(running) => Some(running),
            None => self.look_up(number),
        }
    }

    #[inline(never)]
    fn look_up(&self, number: u64) -> Option<Running<'_>> {
        let found = self.endpoints.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        found.map(|endpoint| self.threads.enter(endpoint, Some(number)))
    }

    /// Removes all endpoints.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.endpoints.write().unwrap_or_else(PoisonError::into_inner));
        all.values().for_each(|one| one.close());
    }

    /// Requests that were handled, or given to a thread.
    pub fn handled(&self) -> u64 {
        self.threads.handled()
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
        let (is_closed, threads) = (AtomicBool::new(false), table.threads.clone());
        let registered = Arc::new(Registered { handlers, direct, is_closed, threads });
        let mut endpoints = table.endpoints.write().unwrap_or_else(PoisonError::into_inner);
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
        self.registered.threads.is_running_here(&self.registered)
    }

    /// Closes it, as a drop does.
    pub fn close(&self) {
        self.table.endpoints.write().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        self.registered.close();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}
