//! What waits for clients, without a thread: data that a client has announced, and answers that it has not taken.
//!
//! A *wait* has a number, which is the user data of its operation in the engine. A client that has several of them, or any while all clients
//! together have [`MAX_BYTES`], has its further requests postponed until one has ended (`backlog`). After [`CLIENT_LIMIT`] the client is given up.
//!
//! What it is not: postponed requests are kept in each session, and executed by the threads of the server (`work`).

use super::session::Session;
use motet::node::Channel;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of buffers that wait for clients, beside one wait of each client.
pub const MAX_BYTES: usize = 64 << 20;
/// How long a client may take to receive an answer, or to send data that it has announced.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// Buffers that are kept to be used again.
const MAX_SPARE_BUFFERS: usize = 16;
/// Bit of the numbers of waits: no other user data of the server has it, but that of acknowledgements, which has all bits.
const WAIT: u64 = 1 << 63;
/// How often clients that wait are looked at; and while one has no room for an answer, at first and later.
const LOOK: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_millis(2);
const LATER: Duration = Duration::from_millis(50);
/// For how long room is expected soon.
const SOON_LIMIT: Duration = Duration::from_millis(500);

/// Something that waits for a client.
#[derive(Debug)]
pub struct Wait {
    /// The client's session.
    pub session: Arc<Session>,
    /// Where it is waited for.
    pub channel: Channel,
    /// What is waited for.
    pub awaited: Awaited,
    /// Bytes of its buffer.
    bytes: usize,
    since: Instant,
}

/// What is waited for.
#[derive(Debug)]
pub enum Awaited {
    /// Data of this request message.
    Data(Vec<u8>),
    /// That the client takes an answer.
    Taken,
    /// Room for an answer. Nothing is under way.
    Room(Answering),
}

/// An answer that has not left.
#[derive(Debug)]
pub struct Answering {
    /// The slot of the request.
    pub slot: u16,
    /// The headers.
    pub headers: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

/// All waits of a server.
#[derive(Debug, Default)]
pub struct Patience {
    waits: Mutex<Waits>,
    changed: Condvar,
    spare: Mutex<Vec<Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Waits {
    last: u64,
    all: HashMap<u64, Wait>,
    bytes: usize,
    /// The thread that looks after the waits does so.
    is_watched: bool,
    has_ended: bool,
}

/// What is to be done for clients that are waited for.
#[derive(Debug, Default)]
pub struct Due {
    /// Clients that are given up.
    pub given_up: Vec<Channel>,
    /// Answers to try again.
    pub answers: Vec<Wait>,
}

/// Whether the user data of a completion is the number of a wait.
pub fn is_wait(user_data: u64) -> bool {
    user_data & WAIT != 0
}

impl Wait {
    /// A wait for a client, from now on.
    pub fn new(session: &Arc<Session>, channel: Channel, awaited: Awaited, bytes: usize) -> Self {
        Self { session: Arc::clone(session), channel, awaited, bytes, since: Instant::now() }
    }
}

impl Patience {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether buffers of all clients together wait for them to the limit.
    pub fn is_strained(&self) -> bool {
        self.waits().bytes >= MAX_BYTES
    }

    /// Begins to wait; returns the number of the wait, under which its operation is to complete.
    pub fn begin(&self, wait: Wait) -> u64 {
        let mut waits = self.waits();
        let looks_soon = matches!(wait.awaited, Awaited::Room(_));
        waits.last = (waits.last + 1) & !WAIT;
        let number = waits.last | WAIT;
        waits.bytes += wait.bytes;
        waits.all.insert(number, wait);
        if !std::mem::replace(&mut waits.is_watched, true) || looks_soon {
            self.changed.notify_all();
        }
        number
    }

    /// A wait is over. Returns it.
    pub fn end(&self, number: u64) -> Option<Wait> {
        let mut waits = self.waits();
        let wait = waits.all.remove(&number)?;
        waits.bytes -= wait.bytes;
        Some(wait)
    }

    /// The channel is lost: ends the waits for room, which have no operation. Returns them.
    pub fn end_room(&self, channel: Channel) -> Vec<Wait> {
        let mut waits = self.waits();
        let ended = waits.take(|wait| wait.channel == channel && matches!(wait.awaited, Awaited::Room(_)));
        ended.into_iter().map(|(_, wait)| wait).collect()
    }

    /// Waits until there is something to look at, and returns it. `None`: the server has ended.
    pub fn look(&self) -> Option<Due> {
        let mut waits = self.waits();
        while waits.all.is_empty() && !waits.has_ended {
            waits.is_watched = false;
            waits = self.changed.wait(waits).unwrap_or_else(PoisonError::into_inner);
        }
        if !waits.has_ended {
            let blocked = waits.all.values().filter(|wait| matches!(wait.awaited, Awaited::Room(_)));
            let next = match blocked.map(|wait| wait.since.elapsed()).min() {
                Some(since) if since < SOON_LIMIT => SOON,
                Some(_) => LATER,
                None => LOOK,
            };
            waits = self.changed.wait_timeout(waits, next).unwrap_or_else(PoisonError::into_inner).0;
        }
        if waits.has_ended {
            return None;
        }
        let given_up = waits.all.values().filter(|wait| wait.since.elapsed() >= CLIENT_LIMIT);
        let given_up = given_up.map(|wait| wait.channel).collect();
        let answers = waits.take(|wait| matches!(wait.awaited, Awaited::Room(_)));
        Some(Due { given_up, answers: answers.into_iter().map(|(_, wait)| wait).collect() })
    }

    /// Ends [`Patience::look`].
    pub fn end_all(&self) {
        self.waits().has_ended = true;
        self.changed.notify_all();
    }

    /// A buffer of this length, whose content is anything.
    pub fn buffer(&self, length: usize) -> Vec<u8> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = spare.unwrap_or_default();
        buffer.resize(length, 0);
        buffer
    }

    /// A buffer is not needed any more.
    pub fn put_buffer(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.capacity() > 0 && spare.len() < MAX_SPARE_BUFFERS {
            spare.push(buffer);
        }
    }
}

impl Waits {
    fn take(&mut self, which: impl Fn(&Wait) -> bool) -> Vec<(u64, Wait)> {
        let taken: Vec<_> = self.all.extract_if(|_, wait| which(wait)).collect();
        self.bytes -= taken.iter().map(|(_, wait)| wait.bytes).sum::<usize>();
        taken
    }
}
