//! What goes wrong in a simulated connection, and when: data, read by [`crate::pipe`].

/// When a fault begins. Each rule fires once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// From the start.
    Always,
    /// At the n-th send of that end over TCP, counted from 1.
    Send(u64),
    /// Once that end has sent so many bytes over TCP.
    Byte(u64),
    /// Once virtual time has come that far.
    Time(u64),
}

/// A fault. TCP loses nothing: what the network drops arrives later, so a drop is a [`Fault::Hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Bytes sent from now on arrive so many ns later.
    Hold(u64),
    /// The next `times` sends take at most `most` bytes.
    Short {
        /// Bytes.
        most: usize,
        /// Sends.
        times: u64,
    },
    /// The next so many sends find no room, provided that bytes are in flight (as with real TCP, where a full buffer is
    /// the only reason).
    Again(u64),
    /// The connection is reset: what is in flight is lost, both ends fail.
    Reset,
    /// The process at this end dies: no more sends, its locks stay held, the kernel sends FIN after what is in flight.
    Kill,
    /// As [`Fault::Kill`], with bytes unread in its receive buffer: the kernel sends RST.
    KillUnread,
    /// Threads that could be woken are woken in the reverse order.
    ReverseWakeups,
}

/// One fault of one end (0 or 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Whose fault.
    pub end: usize,
    /// From when.
    pub when: When,
    /// What.
    pub fault: Fault,
}

/// Everything that goes wrong in one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    rules: Vec<Rule>,
}

impl Plan {
    /// Nothing goes wrong.
    pub fn new() -> Self {
        Self::default()
    }

    /// One fault more.
    #[must_use]
    pub fn with(mut self, end: usize, when: When, fault: Fault) -> Self {
        self.rules.push(Rule { end, when, fault });
        self
    }

    /// Takes out the faults of `end` that begin now: before its `sends`-th send, with `bytes` sent, at `time`.
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
