//! Credit: eager payload is sent only into space that the receiver has granted.
//!
//! Credit is counted in units of [`UNIT_BYTES`] over the whole link. A message costs what it can cost the receiver's memory while it is
//! unexpected ([`cost`]): its bytes and the record that keeps them. The credit that the sender has left, the credit in flight, the
//! units that the receiver keeps and the units that it owes always add up to the window of HELLO (invariant M3).
//!
//! Grants are carried in the head of packets of the other direction. A packet for a grant alone is sent in two cases. More
//! than half of the window is owed: so one-way traffic does not stop. The sender has asked: so two sides that only send cannot wait
//! for each other (the rule of the Crisp ORB paper).

use super::{ProtocolViolation, Rejected};

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 64;
/// What a message costs beside its bytes.
pub const RECORD_BYTES: usize = 256;
/// Largest window, in units.
pub const MAX_WINDOW: u32 = u32::MAX / 4;

/// Units that a message with `bytes` bytes of headers and body costs. `None`: more than any window.
#[inline(always)]
pub fn cost(bytes: u64) -> Option<u32> {
    let units = bytes.checked_add((RECORD_BYTES + UNIT_BYTES - 1) as u64)? / UNIT_BYTES as u64;
    (units <= u64::from(MAX_WINDOW)).then_some(units as u32)
}

/// Units that a message of one packet costs. It is too short to exceed a window.
#[inline(always)]
pub fn cost_of_short(bytes: usize) -> u32 {
    const RECORD_AND_ROUNDING_BYTES: usize = RECORD_BYTES + UNIT_BYTES - 1; // round up within the sum
    ((bytes + RECORD_AND_ROUNDING_BYTES) / UNIT_BYTES) as u32
}

/// Units that a long eager message costs, which has a second record. `None`: more than any window.
pub fn cost_of_long(headers: u16, length: u64) -> Option<u32> {
    cost(length.checked_add(u64::from(headers) + RECORD_BYTES as u64)?)
}

/// Credit of the sender.
#[derive(Debug, Default)]
pub struct TxCredit {
    window: u32,
    available: u32,
    /// Units that a rejected send lacked, and how many of them have been requested, since the last grant.
    shortfall: u32,
    requested: u32,
    /// Whether a send was rejected since the last grant.
    refused: bool,
}

impl TxCredit {
    /// HELLO has arrived: all of the peer's window may be used.
    pub fn open(&mut self, window: u32) {
        *self = Self { window, available: window, ..Self::default() };
    }

    /// Whether the credit covers a message of this cost.
    #[inline(always)]
    pub fn covers(&self, cost: u32) -> bool {
        cost <= self.available
    }

    /// Takes the cost of a message that was sent.
    #[inline(always)]
    pub fn spend(&mut self, cost: u32) {
        self.available -= cost;
    }

    /// A message of this cost was rejected: the peer is to be asked, unless the cost exceeds the window.
    pub fn record_shortfall(&mut self, cost: u32) {
        if cost <= self.window {
            self.shortfall = self.shortfall.max(cost - self.available.min(cost));
            self.refused = true;
        }
    }

    /// Why a message of this cost is rejected that must be sent eagerly: it has to wait for credit, or there will never be enough.
    #[cold]
    pub fn rejection(&self, cost: u32) -> Rejected {
        if self.window > 0 && cost > self.window { Rejected::TooLong } else { Rejected::WouldBlock }
    }

    /// The number of units for an ASK packet, if one is due.
    pub fn request_due(&self) -> Option<u32> {
        (self.shortfall > self.requested).then_some(self.shortfall)
    }

    /// The ASK was sent.
    pub fn requested(&mut self) {
        self.requested = self.shortfall;
    }

    /// Adds a grant. Returns true when a send was rejected before, and may be tried again.
    #[inline(always)]
    pub fn granted(&mut self, units: u32) -> Result<bool, ProtocolViolation> {
        let available = self.available.checked_add(units).filter(|&available| available <= self.window);
        self.available = available.ok_or(ProtocolViolation("grant of more credit than the window"))?;
        (self.shortfall, self.requested) = (0, 0);
        Ok(std::mem::take(&mut self.refused))
    }
}

/// Credit of the receiver.
#[derive(Debug)]
pub struct RxCredit {
    /// 0 until HELLO was sent.
    window: u32,
    planned: u32,
    /// What the sender may still spend.
    granted: u32,
    /// Units that are free again and not granted yet.
    unreturned: u32,
    /// Units that the sender has asked for and not received.
    requested: u32,
    /// A grant is sent alone when more than this is unreturned.
    return_threshold: u32,
}

impl RxCredit {
    /// A window of `planned` units, which HELLO has not carried yet.
    pub fn new(planned: u32) -> Self {
        Self { window: 0, planned, granted: 0, unreturned: 0, requested: 0, return_threshold: 0 }
    }

    /// HELLO was sent: the window is in effect.
    pub fn announce_window(&mut self) {
        (self.window, self.granted) = (self.planned, self.planned);
        self.set_return_threshold();
    }

    /// Takes the cost of a message that arrived.
    #[inline(always)]
    pub fn spend(&mut self, cost: u32) -> Result<(), ProtocolViolation> {
        self.granted = self.granted.checked_sub(cost).ok_or(ProtocolViolation("eager message without credit"))?;
        Ok(())
    }

    /// Whether the sender has the credit for a message of this cost.
    #[inline(always)]
    pub fn covers(&self, cost: u32) -> bool {
        cost <= self.granted
    }

    /// Takes and frees the cost of a message that was received at once.
    #[inline(always)]
    pub fn use_and_free(&mut self, cost: u32) {
        self.granted -= cost;
        self.unreturned += cost;
    }

    /// Takes the cost back of a message that [`RxCredit::use_and_free`] has freed but that stays.
    pub fn keep_in_use(&mut self, cost: u32) {
        self.unreturned -= cost;
    }

    /// Frees the cost of a message.
    #[inline(always)]
    pub fn free(&mut self, cost: u32) {
        self.unreturned += cost;
    }

    /// Units in use: they bound what the receiver keeps.
    pub fn used(&self) -> u32 {
        self.window - self.granted - self.unreturned
    }

    /// ASK: the sender waits for this many units.
    pub fn ask(&mut self, units: u32) {
        self.requested = units.min(self.window);
        self.set_return_threshold();
    }

    #[inline(always)]
    fn set_return_threshold(&mut self) {
        self.return_threshold = if self.requested > 0 { 0 } else { self.window / 2 };
    }

    /// Whether a grant is to be sent without waiting for another packet.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.unreturned > self.return_threshold
    }

    /// The grant for the next packet; [`RxCredit::mark_sent`] follows once the packet is sent.
    #[inline(always)]
    pub fn next_grant(&self) -> u16 {
        self.unreturned.min(u32::from(u16::MAX)) as u16
    }

    /// A packet with this grant was sent.
    #[inline(always)]
    pub fn mark_sent(&mut self, units: u16) {
        let units = u32::from(units);
        self.unreturned -= units;
        self.granted += units;
        if self.requested > 0 {
            self.requested = self.requested.saturating_sub(units);
            self.set_return_threshold();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credit_before_the_window_is_announced() {
        let mut rx_credit = RxCredit::new(100);
        assert!(rx_credit.spend(1).is_err());
        rx_credit.announce_window();
        assert!(rx_credit.spend(100).is_ok() && rx_credit.spend(1).is_err());
    }

    #[test]
    fn what_exceeds_the_window_is_too_long_and_other_messages_wait() {
        let mut tx_credit = TxCredit::default();
        assert_eq!(tx_credit.rejection(101), Rejected::WouldBlock, "the window is not known yet");
        tx_credit.open(100);
        tx_credit.spend(100);
        assert_eq!(tx_credit.rejection(100), Rejected::WouldBlock);
        assert_eq!(tx_credit.rejection(101), Rejected::TooLong);
    }

    #[test]
    fn requested_grant_is_sent_alone() {
        let (mut tx_credit, mut rx_credit) = (TxCredit::default(), RxCredit::new(100));
        tx_credit.open(100);
        rx_credit.announce_window();
        tx_credit.spend(100);
        rx_credit.spend(100).unwrap();
        tx_credit.record_shortfall(10);
        rx_credit.free(4);
        assert!(!rx_credit.is_due(), "it may wait for a packet");
        rx_credit.ask(tx_credit.request_due().unwrap());
        for _ in 0..2 {
            assert!(rx_credit.is_due());
            let units = rx_credit.next_grant();
            rx_credit.mark_sent(units);
            tx_credit.granted(u32::from(units)).unwrap();
            rx_credit.free(6);
        }
        assert!(tx_credit.covers(10) && !rx_credit.is_due() && rx_credit.used() == 84);
    }

    #[test]
    fn grant_beyond_the_window_is_a_violation() {
        let mut tx_credit = TxCredit::default();
        tx_credit.open(10);
        assert!(tx_credit.granted(1).is_err());
        tx_credit.spend(1);
        assert!(tx_credit.granted(u32::MAX).is_err());
    }

    #[test]
    fn cost_does_not_overflow() {
        assert_eq!(cost(0), Some(4));
        assert_eq!(cost(1), Some(5));
        assert_eq!(cost(u64::MAX), None);
        assert_eq!(cost(u64::from(MAX_WINDOW) * 64), None);
    }
}
