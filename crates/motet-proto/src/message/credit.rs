//! Credits: eager payload goes only into space that the receiver has granted.
//!
//! Counted in units of [`UNIT`] bytes over the whole link, and every message costs what it can cost the receiver's memory when
//! nobody waits for it ([`cost`]): its bytes and the record that keeps them. The sum of what the sender has left, what is on
//! its way, what the receiver keeps and what it owes is the window that the receiver has announced, always (invariant M3).
//!
//! RxCredit ride in the head of whatever goes the other way. Alone they go when half of the window is owed, so that one-way
//! traffic does not stop; and at once when the sender has asked, so that two senders that only send cannot wait for each
//! other (the rule of the Crisp ORB paper).

use super::ProtocolViolation;

/// Bytes of a unit.
pub const UNIT: usize = 64;
/// What keeping a message costs beside its bytes.
pub const RECORD: usize = 256;
/// Largest window, units.
pub const LARGEST: u32 = u32::MAX / 4;

/// Units that a message with so many bytes of headers and body costs. `None`: more than any window.
#[inline(always)]
pub fn cost(bytes: u64) -> Option<u32> {
    let units = bytes.checked_add((RECORD + UNIT - 1) as u64)? / UNIT as u64;
    (units <= u64::from(LARGEST)).then_some(units as u32)
}

/// The same of so few bytes that it cannot be too much.
#[inline(always)]
pub fn cost_of_short(bytes: usize) -> u32 {
    const UP: usize = RECORD + UNIT - 1; // the rounding is in the sum, not behind the division
    ((bytes + UP) / UNIT) as u32
}

/// The same for a long eager message, which has a second record.
pub fn cost_of_long(headers: u16, length: u64) -> Option<u32> {
    cost(length.checked_add(u64::from(headers) + RECORD as u64)?)
}

/// The sender's side.
#[derive(Debug, Default)]
pub struct TxCredit {
    window: u32,
    left: u32,
    /// Units that a refused send lacked, and how many of them have been asked for, since the last grant.
    lacking: u32,
    asked: u32,
    /// A send was refused since the last grant.
    refused: bool,
}

impl TxCredit {
    /// The peer has announced its window: all of it may be used.
    pub fn open(&mut self, window: u32) {
        *self = Self { window, left: window, ..Self::default() };
    }

    /// Whether a message of this cost may go.
    #[inline(always)]
    pub fn covers(&self, cost: u32) -> bool {
        cost <= self.left
    }

    /// A message of this cost has gone.
    #[inline(always)]
    pub fn spend(&mut self, cost: u32) {
        self.left -= cost;
    }

    /// A message of this cost was refused: the peer is to be asked, unless no window would do.
    pub fn lack(&mut self, cost: u32) {
        if cost <= self.window {
            self.lacking = self.lacking.max(cost - self.left.min(cost));
            self.refused = true;
        }
    }

    /// What to ask for: the number of the packet ASK.
    pub fn to_ask(&self) -> Option<u32> {
        (self.lacking > self.asked).then_some(self.lacking)
    }

    /// It has been asked for.
    pub fn asked(&mut self) {
        self.asked = self.lacking;
    }

    /// A grant. True when a send was refused before, and may be tried again.
    #[inline(always)]
    pub fn granted(&mut self, units: u32) -> Result<bool, ProtocolViolation> {
        let left = self.left.checked_add(units).filter(|&left| left <= self.window);
        self.left = left.ok_or(ProtocolViolation("more credit than the window"))?;
        (self.lacking, self.asked) = (0, 0);
        Ok(std::mem::take(&mut self.refused))
    }
}

/// The receiver's side.
#[derive(Debug)]
pub struct RxCredit {
    /// 0 until it is announced.
    window: u32,
    planned: u32,
    /// What the sender may still spend.
    granted: u32,
    /// What has been used and is free again.
    owed: u32,
    /// What the sender has asked for and not got.
    asked: u32,
    /// What may be owed before it goes by itself.
    most: u32,
}

impl RxCredit {
    /// A window of so many units, not yet announced.
    pub fn new(planned: u32) -> Self {
        Self { window: 0, planned, granted: 0, owed: 0, asked: 0, most: 0 }
    }

    /// The window has been announced.
    pub fn announce_window(&mut self) {
        (self.window, self.granted) = (self.planned, self.planned);
        self.set_most();
    }

    /// A message of this cost has come.
    #[inline(always)]
    pub fn spend(&mut self, cost: u32) -> Result<(), ProtocolViolation> {
        self.granted = self.granted.checked_sub(cost).ok_or(ProtocolViolation("eager payload without credit"))?;
        Ok(())
    }

    /// Whether a message of this cost may come.
    #[inline(always)]
    pub fn covers(&self, cost: u32) -> bool {
        cost <= self.granted
    }

    /// A message of this cost has come and is gone already.
    #[inline(always)]
    pub fn use_and_free(&mut self, cost: u32) {
        self.granted -= cost;
        self.owed += cost;
    }

    /// A message that has just come, and was said to be gone, stays.
    pub fn use_on(&mut self, cost: u32) {
        self.owed -= cost;
    }

    /// Its space is free again.
    #[inline(always)]
    pub fn free(&mut self, cost: u32) {
        self.owed += cost;
    }

    /// Units in use: they bound what the receiver keeps.
    pub fn used(&self) -> u32 {
        self.window - self.granted - self.owed
    }

    /// The sender waits for so many.
    pub fn ask(&mut self, units: u32) {
        self.asked = units.min(self.window);
        self.set_most();
    }

    #[inline(always)]
    fn set_most(&mut self) {
        self.most = if self.asked > 0 { 0 } else { self.window / 2 };
    }

    /// Whether a grant must not wait for a packet to ride on.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.owed > self.most
    }

    /// What the next packet carries; [`RxCredit::gone`] once it is on its way.
    #[inline(always)]
    pub fn next(&self) -> u16 {
        self.owed.min(u32::from(u16::MAX)) as u16
    }

    /// A packet with this grant is on its way.
    #[inline(always)]
    pub fn mark_sent(&mut self, units: u16) {
        let units = u32::from(units);
        self.owed -= units;
        self.granted += units;
        if self.asked > 0 {
            self.asked = self.asked.saturating_sub(units);
            self.set_most();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_before_the_window_is_announced() {
        let mut rx_credit = RxCredit::new(100);
        assert!(rx_credit.spend(1).is_err());
        rx_credit.announce_window();
        assert!(rx_credit.spend(100).is_ok() && rx_credit.spend(1).is_err());
    }

    #[test]
    fn an_asked_grant_goes_alone() {
        let (mut tx_credit, mut rx_credit) = (TxCredit::default(), RxCredit::new(100));
        tx_credit.open(100);
        rx_credit.announce_window();
        tx_credit.spend(100);
        rx_credit.spend(100).unwrap();
        tx_credit.lack(10);
        rx_credit.free(4);
        assert!(!rx_credit.is_due(), "it may ride");
        rx_credit.ask(tx_credit.to_ask().unwrap());
        for _ in 0..2 {
            assert!(rx_credit.is_due());
            let units = rx_credit.next();
            rx_credit.mark_sent(units);
            tx_credit.granted(u32::from(units)).unwrap();
            rx_credit.free(6);
        }
        assert!(tx_credit.covers(10) && !rx_credit.is_due() && rx_credit.used() == 84);
    }

    #[test]
    fn a_grant_beyond_the_window_breaks() {
        let mut tx_credit = TxCredit::default();
        tx_credit.open(10);
        assert!(tx_credit.granted(1).is_err());
        tx_credit.spend(1);
        assert!(tx_credit.granted(u32::MAX).is_err());
    }

    #[test]
    fn costs_cannot_overflow() {
        assert_eq!(cost(0), Some(4));
        assert_eq!(cost(1), Some(5));
        assert_eq!(cost(u64::MAX), None);
        assert_eq!(cost(u64::from(LARGEST) * 64), None);
    }
}
