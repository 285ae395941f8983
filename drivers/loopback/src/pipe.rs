//! A simulated TCP connection: two byte pipes of bounded size, with arrival times, end of file, reset, and death of an end.

use crate::clock::Clock;
use crate::plan::{Fault, Plan};
use motet_proto::{EAGAIN, ECONNRESET, Errno};
use std::collections::VecDeque;
use std::io::IoSliceMut;

/// EPIPE.
pub const EPIPE: Errno = 32;

/// A connection between end 0 and end 1.
#[derive(Debug)]
pub struct Connection {
    clock: Clock,
    plan: Plan,
    directions: [Direction; 2],
    reset: bool,
    reverse: bool,
}

/// The bytes from one end to the other.
#[derive(Debug)]
struct Direction {
    room: usize,
    bytes: VecDeque<u8>,
    /// The position (bytes sent before) and arrival time of each send; both ascend.
    arrivals: VecDeque<(u64, u64)>,
    sent: u64,
    received: u64,
    sends: u64,
    hold: u64,
    short: (usize, u64),
    again: u64,
    finished: bool,
    dead: bool,
}

impl Connection {
    /// A connection whose directions take `room` bytes each before they are full.
    pub fn new(clock: Clock, room: usize, plan: Plan) -> Self {
        let direction = || Direction {
            room,
            bytes: VecDeque::new(),
            arrivals: VecDeque::new(),
            sent: 0,
            received: 0,
            sends: 0,
            hold: 0,
            short: (usize::MAX, 0),
            again: 0,
            finished: false,
            dead: false,
        };
        Self { clock, plan, directions: [direction(), direction()], reset: false, reverse: false }
    }

    /// Sends from `end` without blocking.
    pub fn send(&mut self, end: usize, bytes: &[u8]) -> Result<usize, Errno> {
        self.directions[end].sends += 1;
        self.faults(end);
        if self.reset {
            return Err(ECONNRESET);
        }
        if self.directions[1 - end].dead || self.directions[end].finished {
            return Err(EPIPE);
        }
        let now = self.clock.time();
        let direction = &mut self.directions[end];
        if direction.again > 0 && !direction.bytes.is_empty() {
            direction.again -= 1;
            return Err(EAGAIN);
        }
        let mut n = bytes.len().min(direction.room.saturating_sub(direction.bytes.len()));
        if direction.short.1 > 0 {
            direction.short.1 -= 1;
            n = n.min(direction.short.0);
        }
        if n == 0 {
            return if bytes.is_empty() { Ok(0) } else { Err(EAGAIN) };
        }
        // Bytes never overtake earlier ones.
        let arrival = (now + direction.hold).max(direction.arrivals.back().map_or(0, |a| a.1));
        direction.arrivals.push_back((direction.sent, arrival));
        direction.bytes.extend(&bytes[..n]);
        direction.sent += n as u64;
        Ok(n)
    }

    /// Receives at `end` without blocking, at most `limit` bytes; `Ok(0)` is end of file.
    pub fn receive(
        &mut self,
        end: usize,
        bufs: &mut [IoSliceMut<'_>],
        limit: usize,
        peek: bool,
    ) -> Result<usize, Errno> {
        self.faults(1 - end);
        if self.reset {
            return Err(ECONNRESET);
        }
        let wanted = bufs.iter().map(|b| b.len()).sum::<usize>().min(limit);
        let (n, eof) = self.arrived(end);
        if wanted == 0 || n == 0 {
            return if wanted == 0 || eof { Ok(0) } else { Err(EAGAIN) };
        }
        let n = n.min(wanted);
        let direction = &mut self.directions[1 - end];
        let mut bytes = direction.bytes.iter().copied();
        let mut left = n;
        for buf in bufs {
            let part = buf.len().min(left);
            for (to, from) in buf[..part].iter_mut().zip(&mut bytes) {
                *to = from;
            }
            left -= part;
        }
        if !peek {
            direction.bytes.drain(..n);
            direction.received += n as u64;
        }
        Ok(n)
    }

    /// Whether a receive at `end` would return at once.
    pub fn readable(&mut self, end: usize) -> bool {
        self.faults(1 - end);
        let (n, eof) = self.arrived(end);
        self.reset || n > 0 || eof
    }

    /// Bytes that have arrived at `end`.
    pub fn pending(&mut self, end: usize) -> u64 {
        self.faults(1 - end);
        self.arrived(end).0 as u64
    }

    /// Whether the connection is up, as `end` sees it.
    pub fn alive(&mut self, end: usize) -> bool {
        self.faults(1 - end);
        !self.reset && !self.arrived(end).1 && !self.directions[1 - end].dead
    }

    /// Bytes that `end` has sent and its peer has not received, arrived or not.
    pub fn in_flight(&self, end: usize) -> u64 {
        self.directions[end].bytes.len() as u64
    }

    /// Payload bytes that `end` has sent, and received.
    pub fn positions(&self, end: usize) -> (u64, u64) {
        (self.directions[end].sent, self.directions[1 - end].received)
    }

    /// Half-close: end of file after what is in flight.
    pub fn finish(&mut self, end: usize) {
        self.directions[end].finished = true;
    }

    /// Applies a fault now.
    pub fn inject(&mut self, end: usize, fault: Fault) {
        let direction = &mut self.directions[end];
        match fault {
            Fault::Hold(ns) => direction.hold = ns,
            Fault::Short { most, times } => direction.short = (most.max(1), times),
            Fault::Again(times) => direction.again = times,
            Fault::Reset => self.reset = true,
            Fault::Kill => {
                direction.dead = true;
                direction.finished = true;
            }
            Fault::KillUnread => {
                direction.dead = true;
                self.reset = true;
            }
            Fault::ReverseWakeups => self.reverse = true,
        }
    }

    /// Whether the process at `end` is dead.
    pub fn is_dead(&self, end: usize) -> bool {
        self.directions[end].dead
    }

    /// Whether the connection was reset.
    pub fn is_reset(&self) -> bool {
        self.reset
    }

    /// Whether threads are woken in the reverse order.
    pub fn reverses_wakeups(&self) -> bool {
        self.reverse
    }

    fn faults(&mut self, end: usize) {
        let (sends, sent, time) = (self.directions[end].sends, self.directions[end].sent, self.clock.time());
        for fault in self.plan.due(end, sends, sent, time) {
            self.inject(end, fault);
        }
    }

    /// The number of unread bytes that have arrived at `end`, and whether the end of file is next.
    fn arrived(&mut self, end: usize) -> (usize, bool) {
        let now = self.clock.time();
        let direction = &mut self.directions[1 - end];
        while direction.arrivals.len() > 1 && direction.arrivals[1].0 <= direction.received {
            direction.arrivals.pop_front();
        }
        let late = direction.arrivals.iter().find(|(_, arrival)| *arrival > now).map(|(position, _)| *position);
        let until = late.unwrap_or(direction.sent).max(direction.received);
        let n = (until - direction.received) as usize;
        (n, n == 0 && direction.finished && direction.bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::When;

    fn receive(connection: &mut Connection, end: usize, most: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; most];
        let n = connection.receive(end, &mut [IoSliceMut::new(&mut bytes)], usize::MAX, false)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    #[test]
    fn bytes_held_arrive_in_order_after_their_delay() {
        let clock = Clock::new(0);
        let plan = Plan::new().with(0, When::Byte(3), Fault::Hold(100));
        let mut connection = Connection::new(clock.clone(), 8, plan);
        assert_eq!(connection.send(0, b"abc"), Ok(3));
        assert_eq!(connection.send(0, b"defghijk"), Ok(5), "room for eight");
        assert_eq!(connection.send(0, b"l"), Err(EAGAIN));
        assert_eq!(receive(&mut connection, 1, 9), Ok(b"abc".to_vec()));
        assert_eq!(receive(&mut connection, 1, 9), Err(EAGAIN));
        clock.advance(100);
        assert_eq!(receive(&mut connection, 1, 2), Ok(b"de".to_vec()));
        connection.finish(0);
        assert_eq!(receive(&mut connection, 1, 9), Ok(b"fgh".to_vec()));
        assert_eq!(receive(&mut connection, 1, 9), Ok(vec![]), "end of file");
    }

    #[test]
    fn faults_of_plan_begin_at_their_time() {
        let plan = Plan::new()
            .with(0, When::Send(2), Fault::Short { most: 1, times: 1 })
            .with(0, When::Send(3), Fault::Again(1))
            .with(1, When::Time(1000), Fault::Kill);
        let clock = Clock::new(0);
        let mut connection = Connection::new(clock.clone(), 100, plan);
        assert_eq!(connection.send(0, b"abc"), Ok(3));
        assert_eq!(connection.send(0, b"abc"), Ok(1));
        assert_eq!(connection.send(0, b"abc"), Err(EAGAIN));
        assert_eq!(connection.send(0, b"abc"), Ok(3));
        assert!(connection.alive(0));
        clock.advance(1000);
        assert!(!connection.alive(0));
        assert_eq!(connection.send(0, b"abc"), Err(EPIPE));
        assert_eq!(receive(&mut connection, 0, 1), Ok(vec![]));
    }
}
