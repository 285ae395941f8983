//! Messages between nodes, in Rust: what `motet_engine::message` offers, with memory that the compiler watches over.
//!
//! ```
//! use motet::node::{Node, Serve};
//! use std::time::Duration;
//!
//! let (near, far) = (Node::open("")?, Node::open("")?);
//! far.serve(7, Serve::Queue)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         let channel = far.accept(7, Some(Duration::from_secs(10)))?;
//!         let mut bytes = [0; 16];
//!         let received = far.receive(channel, &mut bytes, None)?;
//!         far.send(channel, received.tag + 1, &bytes[..received.length], None)
//!     });
//!     let link = near.connect(&far.address()?, Some(Duration::from_secs(10)))?;
//!     let channel = near.open_channel(link, 7, Serve::Queue, Some(Duration::from_secs(10)))?;
//!     near.send(channel, 1, b"hello", None)?;
//!     let mut bytes = [0; 16];
//!     let received = near.receive(channel, &mut bytes, None)?;
//!     assert_eq!((received.tag, &bytes[..received.length]), (2, &b"hello"[..]));
//!     Ok::<(), motet::node::Error>(())
//! })?;
//! # Ok::<(), motet::node::Error>(())
//! ```

mod borrowed_memory;
mod loans;

pub use loans::{Content, InPlace};
pub use motet_engine::message::loans::{Lent, Loan, LoanCounts, Part};
pub use motet_engine::message::operations::{Buffer, Got, Teller};
pub use motet_engine::message::receive::{From, Seen};
pub use motet_engine::message::regions::mapped::Mapped;
pub use motet_engine::message::regions::{Atomic, Datatype, Key, Operation, Rights, Shared};
pub use motet_engine::message::rma::{RemoteLimits, Target};
pub use motet_engine::message::send::Outgoing;
pub use motet_engine::message::transport::Secret;
pub use motet_engine::message::{
    Bias, Bodies, Body, Channel, Completion, Context, Ended, Error, GroupId, Handler, LinkId, Message, MessageLimits,
    Mode, Node as Inner, NodeOptions, Notice, OperationId, Serve, Stack, Status, Task, pop,
};
pub use motet_sys::user_memory::{Memory, Span};

use crate::driver_table;
use motet_engine::now;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A process that has joined. Everything that [`motet_engine::message::Node`] offers, and the calls below, whose memory is borrowed.
#[derive(Debug)]
pub struct Node(Inner);

impl Deref for Node {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// What a receive has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The message's tag.
    pub tag: u64,
    /// Bytes of its body, all in the buffer.
    pub length: usize,
    /// On which channel it came.
    pub channel: Channel,
}

impl Node {
    /// Joins under a name of this host (1 to 64 letters, digits and `. _ - @`; empty: one that nobody else has), with the settings of
    /// environment and file.
    pub fn open(name: &str) -> Result<Self, Error> {
        Inner::open(&options(name, None)).map(Self)
    }

    /// The same, and can be reached by nodes of other hosts at `listen` (port 0: any).
    pub fn listen(name: &str, listen: SocketAddr) -> Result<Self, Error> {
        Inner::open(&options(name, Some(listen))).map(Self)
    }

    /// The same with options of the caller's.
    pub fn with(options: &NodeOptions) -> Result<Self, Error> {
        Inner::open(options).map(Self)
    }

    /// The same for this thread alone, which then pays for no lock: a call from another one panics.
    pub fn single(options: &NodeOptions) -> Result<Self, Error> {
        Inner::open_single(options).map(Self)
    }

    /// A link to the node at `address`: a name of this host, or what its [`Inner::address`] says. With a time limit, one that is not
    /// there yet is waited for.
    pub fn connect(&self, address: &str, limit: Option<Duration>) -> Result<LinkId, Error> {
        self.0.connect(address, deadline(limit))
    }

    /// A channel to a service of the peer.
    pub fn open_channel(
        &self,
        link: LinkId,
        service: u64,
        serve: Serve,
        limit: Option<Duration>,
    ) -> Result<Channel, Error> {
        self.0.open_channel(link, service, serve, deadline(limit))
    }

    /// The next channel that a peer has opened to a service.
    pub fn accept(&self, service: u64, limit: Option<Duration>) -> Result<Channel, Error> {
        self.0.accept(service, deadline(limit))
    }

    /// Sends a message and waits until its body is free. A short one is then on its way; a long one has been received, or as good
    /// as: it is in the receiver's memory.
    ///
    /// With a limit: [`Error::TimedOut`], and the receiver does not get it. A receiver that has been told of a long message and makes no
    /// progress cannot let go of it; three seconds after the limit the link is given up, with everything on it: [`Error::Lost`] with
    /// `Reason::UNANSWERED`. One that has room for the whole message already gets it, and the send ends as done.
    #[inline]
    pub fn send(&self, channel: Channel, tag: u64, body: &[u8], limit: Option<Duration>) -> Result<(), Error> {
        match self.0.send_short(channel, tag, body) {
            Ok(()) => Ok(()),
            Err(Error::WouldBlock | Error::TooLong) => {
                self.send_with(&Outgoing { channel, tag, headers: &[], mode: Mode::Automatic }, &[body], limit)
            }
            Err(error) => Err(error),
        }
    }

    /// The same with headers, a mode, and a body in several pieces.
    #[inline]
    pub fn send_with(&self, message: &Outgoing<'_>, body: &[&[u8]], limit: Option<Duration>) -> Result<(), Error> {
        self.send_until(message, body, deadline(limit))
    }

    /// The same until CLOCK_MONOTONIC passes `deadline`, ns.
    #[inline]
    pub fn send_until(&self, message: &Outgoing<'_>, body: &[&[u8]], deadline: Option<u64>) -> Result<(), Error> {
        if message.mode != Mode::Synchronous {
            match self.0.inject(message, body, deadline) {
                Err(Error::TooLong) if message.mode == Mode::Automatic => {}
                sent => return sent,
            }
        }
        borrowed_memory::send(&self.0, message, body, deadline)
    }

    /// Begins to send a message whose body stays as long as the process. `None`: it has gone, and no end follows. Waits only until
    /// there is room.
    #[inline]
    pub fn begin_send(
        &self,
        message: &Outgoing<'_>,
        body: &'static [u8],
        notice: Notice,
        limit: Option<Duration>,
    ) -> Result<Option<OperationId>, Error> {
        self.0.send(message, borrowed_memory::forever(body), Vec::new(), notice, deadline(limit))
    }

    /// Waits for the next message on a channel whose messages are queued or tagged (any tag), and receives it. Its headers, if it has
    /// any, are not wanted: [`Node::receive_with`].
    ///
    /// Errors: [`Error::Truncated`] when it is longer than `buffer`, which is full then. The time limit is for the message to come; a
    /// long one may take longer to arrive.
    #[inline]
    pub fn receive(&self, channel: Channel, buffer: &mut [u8], limit: Option<Duration>) -> Result<Received, Error> {
        borrowed_memory::lent(buffer, |span| self.receive_into(From::Channel(channel), 0, u64::MAX, None, span, limit))
    }

    /// The same for a tag, of which the bits in `ignore` do not matter, on one channel or any of a context.
    #[inline]
    pub fn receive_tagged(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        buffer: &mut [u8],
        limit: Option<Duration>,
    ) -> Result<Received, Error> {
        borrowed_memory::lent(buffer, |span| self.receive_into(from, tag, ignore, None, span, limit))
    }

    /// The same with the message's headers, the outermost first ([`pop`]), in `headers`, whose memory is used again.
    #[inline]
    pub fn receive_with(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        headers: &mut Vec<u8>,
        buffer: &mut [u8],
        limit: Option<Duration>,
    ) -> Result<Received, Error> {
        headers.clear();
        borrowed_memory::lent(buffer, |span| self.receive_into(from, tag, ignore, Some(headers), span, limit))
    }

    #[inline(always)]
    fn receive_into(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        headers: Option<&mut Vec<u8>>,
        span: Span,
        limit: Option<Duration>,
    ) -> Result<Received, Error> {
        self.received(from, borrowed_memory::receive(&self.0, (from, tag, ignore), span, headers, deadline(limit))?)
    }

    /// Makes memory known to peers that are told the key: see [`Inner::revoke`] for its end.
    pub fn register_words(&self, words: &Arc<[AtomicU64]>, rights: Rights) -> Result<Key, Error> {
        self.0.register(borrowed_memory::words(words), rights, Some(Box::new(words.clone())))
    }

    /// Waits for the end of an operation, which must end as asked: bytes of its own memory come back.
    pub fn finish_operation(&self, operation: OperationId, limit: Option<Duration>) -> Result<Vec<u8>, Error> {
        let Completion { status, channel, memory, .. } = self.0.wait_for(operation, deadline(limit))?;
        match status {
            Status::Done => Ok(memory.unwrap_or_default()),
            status => Err(self.failed(status, channel)),
        }
    }

    #[inline(always)]
    fn received(&self, from: From, got: Got) -> Result<Received, Error> {
        match got {
            Got { status: Status::Done, length, tag, channel: Some(channel), .. } => {
                Ok(Received { tag, length: length as usize, channel })
            }
            Got { status, channel, .. } => {
                // Of a link that is gone nothing has come that would name a channel.
                let asked = if let From::Channel(channel) = from { Some(channel) } else { None };
                Err(self.failed(status, channel.or(asked)))
            }
        }
    }

    /// The same into memory that somebody vouches for until this returns, until CLOCK_MONOTONIC passes `deadline` (ns). How the
    /// operation has ended is its status: a message that is too long is no error here.
    #[inline]
    pub fn receive_until(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        span: Span,
        headers: Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<Got, Error> {
        borrowed_memory::receive(&self.0, (from, tag, ignore), span, headers, deadline)
    }

    #[cold]
    fn failed(&self, status: Status, channel: Option<Channel>) -> Error {
        let gone = channel.and_then(|channel| self.0.link_info(channel.link).ok()?.gone);
        Error::of_status(status, gone).unwrap_or(Error::Closed)
    }
}

/// What a node is by the settings of environment and file.
pub fn options(name: &str, listen: Option<SocketAddr>) -> NodeOptions {
    let config = crate::config();
    let drivers = driver_table::DRIVERS.iter().copied().filter(|driver| config.drivers.allows(driver.name())).collect();
    NodeOptions {
        drivers,
        name: name.to_owned(),
        listen,
        secret: None,
        limits: MessageLimits::default(),
        spin: config.spin,
    }
}

/// The deadline that is so many nanoseconds from now, for the calls of [`Inner`].
pub fn in_ns(ns: u64) -> u64 {
    now().saturating_add(ns)
}

#[inline(always)]
fn deadline(limit: Option<Duration>) -> Option<u64> {
    limit.map(|limit| now().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)))
}
