//! The faults of a simulated connection and when they happen: data, applied by [`crate::pipe`].

/// When a fault begins. Each rule fires once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// From the start.
    Always,
    /// At the n-th send of that end over TCP, counted from 1.
    Send(u64),
    /// Once that end has sent this many bytes over TCP.
    Byte(u64),
    /// Once the virtual clock shows this time.
    Time(u64),
}

/// A fault. TCP loses nothing: bytes that the network drops arrive later, so a drop is a [`Fault::Hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Bytes sent from now on arrive this many ns later.
    Hold(u64),
    /// The next `times` sends take at most `most` bytes.
    Short {
        /// Bytes.
        most: usize,
        /// Sends.
        times: u64,
    },
    /// This many further sends find no room, provided that bytes are in flight (as with real TCP, where a full buffer is the only
    /// reason).
    Again(u64),
    /// The connection is reset: bytes in flight are lost, and both ends fail.
    Reset,
    /// The process at this end dies: it sends no more, its locks stay held, and the kernel sends FIN after the bytes in flight.
    Kill,
    /// The process at this end dies with unread bytes in its receive buffer: the kernel sends RST.
    KillUnread,
    /// Threads are woken in reverse order.
    ReverseWakeups,
}

/// One fault of one end (0 or 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The end that has the fault.
    pub end: usize,
    /// When it begins.
    pub when: When,
    /// The fault.
    pub fault: Fault,
}

/// The faults of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    rules: Vec<Rule>,
}

impl Plan {
    /// No faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault.
    #[must_use]
    pub fn with(mut self, end: usize, when: When, fault: Fault) -> Self {
        self.rules.push(Rule { end, when, fault });
        self
    }

    /// Removes and returns the faults of `end` that begin now: before its `sends`-th send, with `bytes` sent, at `time`.
    pub(crate) fn due(&mut self, end: usize, sends: u64, bytes: u64, time: u64) -> Vec<Fault> {
        let is_due = |rule: &Rule| {
            rule.end == end
                && match rule.when {
                    When::Always => true,
                    When::Send(n) => sends >= n,
                    When::Byte(n) => bytes >= n,
                    When::Time(at) => time >= at,
                }
        };
        let mut due = Vec::new();
        self.rules.retain(|rule| {
            let now = is_due(rule);
            if now {
                due.push(rule.fault);
            }
            !now
        });
        due
    }
}
