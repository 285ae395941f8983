//! Credits: eager payload goes only into space that the receiver has granted.
//!
//! Counted in units of [`UNIT`] bytes over the whole link, and every message costs what it can cost the receiver's memory when
//! nobody waits for it ([`cost`]): its bytes and the record that keeps them. The sum of what the sender has left, what is on
//! its way, what the receiver keeps and what it owes is the window that the receiver has announced, always (invariant M3).
//!
//! Grants ride in the head of whatever goes the other way. Alone they go when half of the window is owed, so that one-way
//! traffic does not stop; and at once when the sender has asked, so that two senders that only send cannot wait for each
//! other (the rule of the Crisp ORB paper).

use super::Broken;

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
pub struct Allowance {
    window: u32,
    left: u32,
    /// Units that a refused send lacked, and how many of them have been asked for, since the last grant.
    lacking: u32,
    asked: u32,
    /// A send was refused since the last grant.
    refused: bool,
}

impl Allowance {
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
    pub fn granted(&mut self, units: u32) -> Result<bool, Broken> {
        let left = self.left.checked_add(units).filter(|&left| left <= self.window);
        self.left = left.ok_or(Broken("more credit than the window"))?;
        (self.lacking, self.asked) = (0, 0);
        Ok(std::mem::take(&mut self.refused))
    }
}

/// The receiver's side.
#[derive(Debug)]
pub struct Grants {
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

impl Grants {
    /// A window of so many units, not yet announced.
    pub fn new(planned: u32) -> Self {
        Self { window: 0, planned, granted: 0, owed: 0, asked: 0, most: 0 }
    }

    /// The window has been announced.
    pub fn announce(&mut self) {
        (self.window, self.granted) = (self.planned, self.planned);
        self.set_most();
    }

    /// A message of this cost has come.
    #[inline(always)]
    pub fn spend(&mut self, cost: u32) -> Result<(), Broken> {
        self.granted = self.granted.checked_sub(cost).ok_or(Broken("eager payload without credit"))?;
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

    /// What the next packet carries; [`Grants::gone`] once it is on its way.
    #[inline(always)]
    pub fn next(&self) -> u16 {
        self.owed.min(u32::from(u16::MAX)) as u16
    }

    /// A packet with this grant is on its way.
    #[inline(always)]
    pub fn gone(&mut self, units: u16) {
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
        let mut grants = Grants::new(100);
        assert!(grants.spend(1).is_err());
        grants.announce();
        assert!(grants.spend(100).is_ok() && grants.spend(1).is_err());
    }

    #[test]
    fn an_asked_grant_goes_alone() {
        let (mut allowance, mut grants) = (Allowance::default(), Grants::new(100));
        allowance.open(100);
        grants.announce();
        allowance.spend(100);
        grants.spend(100).unwrap();
        allowance.lack(10);
        grants.free(4);
        assert!(!grants.is_due(), "it may ride");
        grants.ask(allowance.to_ask().unwrap());
        for _ in 0..2 {
            assert!(grants.is_due());
            let units = grants.next();
            grants.gone(units);
            allowance.granted(u32::from(units)).unwrap();
            grants.free(6);
        }
        assert!(allowance.covers(10) && !grants.is_due() && grants.used() == 84);
    }

    #[test]
    fn a_grant_beyond_the_window_breaks() {
        let mut allowance = Allowance::default();
        allowance.open(10);
        assert!(allowance.granted(1).is_err());
        allowance.spend(1);
        assert!(allowance.granted(u32::MAX).is_err());
    }

    #[test]
    fn costs_cannot_overflow() {
        assert_eq!(cost(0), Some(4));
        assert_eq!(cost(1), Some(5));
        assert_eq!(cost(u64::MAX), None);
        assert_eq!(cost(u64::from(LARGEST) * 64), None);
    }
}
