//! The end points of a circuit at one member: numbered functions that messages of the circuit run.
//!
//! This is the projection of Nexus over Madeleine (A. Denis, JDIR 2000): any number of pairs of a start point and an end point share the
//! channels of one circuit, and with them its links. The number of the end point is a header of the message, so a pair costs no packet, no
//! channel and no link: an entry in a table at the receiver, and nothing at the sender.
//!
//! A message for a number that no end point has is dropped and counted ([`Table::dropped`]): nothing is kept for it, and a long one is not
//! fetched. Numbers that this member chooses itself are never used again, so a late message finds no other end point.

use crate::active::{Function, FunctionCell};
use crate::arrivals::{Arrivals, Target};
use crate::error::Error;
use motet::node::{Node, pop};
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The numbers from here on are chosen by the member; the program chooses among those below.
pub const FIRST_OWN_NUMBER: u64 = 1 << 63;
/// End points that a member may have on one circuit.
const MAX_END_POINTS: usize = 1 << 20;

thread_local! {
    /// The end point whose function this thread runs, by the address of its cell.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

/// Where messages to an end point are sent: plain data, which may itself be sent to other members. It is valid on the circuit of the end point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StartPoint {
    /// The member that has the end point.
    pub rank: u32,
    /// The end point's number there.
    pub number: u64,
}

impl StartPoint {
    /// Its bytes, to be sent in a message.
    pub fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The start point of these bytes. Any bytes are one: a send with it fails or is dropped if there is no such end point.
    pub fn from_bytes(bytes: [u8; 12]) -> Self {
        let [rank, low, high] = [0, 4, 8].map(|at| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [rank, low, high] = [rank, low, high].map(u32::from_le_bytes);
        Self { rank, number: u64::from(high) << 32 | u64::from(low) }
    }
}

/// The end points of one circuit here, and the messages to those of other members.
pub(crate) type EndPoints = Arrivals<Table>;

/// The functions, by number.
#[derive(Default)]
pub(crate) struct Table {
    functions: RwLock<HashMap<u64, Arc<FunctionCell>>>,
    /// The number that was chosen last, less [`FIRST_OWN_NUMBER`].
    last_own: Mutex<u64>,
    dropped: AtomicU64,
}

impl Table {
    fn find(&self, headers: &[u8]) -> Option<Arc<FunctionCell>> {
        let number = pop::<8>(&mut &headers[..])?;
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        functions.get(&u64::from_le_bytes(number)).cloned()
    }

    /// Adds an end point and returns its number.
    fn add(&self, number: Option<u64>, function: Arc<FunctionCell>) -> Result<u64, Error> {
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        if functions.len() >= MAX_END_POINTS {
            return Err(Error::Invalid(format!("a member has at most {MAX_END_POINTS} end points on a circuit")));
        }
        let number = match number {
            Some(number) if number < FIRST_OWN_NUMBER => number,
            Some(number) => return Err(Error::Invalid(format!("the number {number} is not below 2^63"))),
            None => {
                let mut last = self.last_own.lock().unwrap_or_else(PoisonError::into_inner);
                *last += 1;
                FIRST_OWN_NUMBER + *last
            }
        };
        match functions.entry(number) {
            Entry::Occupied(_) => Err(Error::Invalid(format!("there is an end point {number} already"))),
            Entry::Vacant(place) => {
                place.insert(function);
                Ok(number)
            }
        }
    }

    /// Removes an end point, if it is still this one.
    fn remove(&self, number: u64, function: &Arc<FunctionCell>) {
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        if functions.get(&number).is_some_and(|known| Arc::ptr_eq(known, function)) {
            functions.remove(&number);
        }
    }

    fn count_drop(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages that were dropped, because there was no end point with their number.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Target for Table {
    fn admits(&self, headers: &[u8]) -> bool {
        let is_known = self.find(headers).is_some();
        if !is_known {
            self.count_drop();
        }
        is_known
    }

    fn run(&self, from: usize, tag: u32, headers: &[u8], bytes: &[u8]) {
        let Some(function) = self.find(headers) else { return self.count_drop() };
        let outer = RUNNING.replace(Arc::as_ptr(&function).addr());
        let ran = function.call(from, tag, bytes);
        RUNNING.set(outer);
        if !ran {
            self.count_drop(); // it was closed meanwhile
        }
    }
}

/// An end point of a circuit. It is closed when it is dropped: its function does not run any more then, except that a function may drop its own end
/// point, and ends by itself. Messages that arrive later are dropped and counted.
pub struct EndPoint {
    points: Arc<EndPoints>,
    start: StartPoint,
    function: Arc<FunctionCell>,
}

impl std::fmt::Debug for EndPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndPoint").field("start", &self.start).finish_non_exhaustive()
    }
}

impl EndPoint {
    /// Makes an end point of the member `rank`, which is this one.
    pub(crate) fn new(
        points: &Arc<EndPoints>,
        node: &Node,
        (rank, number): (usize, Option<u64>),
        function: Box<Function>,
    ) -> Result<Self, Error> {
        let cell = Arc::new(FunctionCell::default());
        cell.set(Some(function));
        let number = points.target.add(number, cell.clone())?;
        let point = Self { points: points.clone(), start: StartPoint { rank: rank as u32, number }, function: cell };
        // After the end point is there: the first message finds it.
        points.serve(node, |_| ())?;
        Ok(point)
    }

    /// What others need to send to it.
    pub fn start_point(&self) -> StartPoint {
        self.start
    }

    /// Whether this thread is within its function.
    pub fn is_running_here(&self) -> bool {
        RUNNING.get() == Arc::as_ptr(&self.function).addr()
    }

    /// Closes it, as a drop does.
    pub fn close(&self) {
        self.points.target.remove(self.start.number, &self.function);
        if !self.is_running_here() {
            self.function.set(None);
        }
    }
}

impl Drop for EndPoint {
    fn drop(&mut self) {
        self.close();
    }
}

/// The header of a message to an end point.
pub(crate) fn header_of(start: StartPoint) -> [u8; 8] {
    start.number.to_le_bytes()
}
