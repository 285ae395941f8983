//! The token of a group: Suzuki and Kasami's algorithm within one view.
//!
//! The holder of the token alone may open a circuit. A member that wants the token numbers its request and sends it to all others. The token
//! carries the number of the last request of each member that was granted, so the holder knows which requests are still open; it queues
//! them and passes the token to the first one. A request is therefore never lost and never granted twice, in whichever order requests arrive.
//!
//! (I. Suzuki, T. Kasami: A distributed mutual exclusion algorithm, ACM TOCS 3(4), 1985.)
//!
//! Nothing here survives a view: [`crate::opener`] makes a new token for each.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The highest number of a circuit. No group reaches it; a member that says so is wrong.
pub const MAX_NUMBER: u64 = 1 << 62;

/// The right to open circuits. There is one in a view.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token<Id: Ord> {
    /// The number of the last request of each member that was granted (LN). A missing member has none.
    granted: BTreeMap<Id, u64>,
    /// Members that are to get the token, in order.
    queue: VecDeque<Id>,
    /// The number of the next circuit.
    pub next_number: u64,
}

impl<Id: Ord + Copy> Token<Id> {
    /// The token of a new view.
    pub fn new(next_number: u64) -> Self {
        Self { granted: BTreeMap::new(), queue: VecDeque::new(), next_number }
    }

    /// Whether a token that arrived in a message can be one of a group with these members.
    pub fn is_valid(&self, members: &[Id]) -> bool {
        let queued: BTreeSet<_> = self.queue.iter().collect();
        (1..=MAX_NUMBER).contains(&self.next_number)
            && queued.len() == self.queue.len()
            && self.queue.iter().chain(self.granted.keys()).all(|member| members.contains(member))
    }

    fn is_open(&self, member: Id, request: u64) -> bool {
        self.granted.get(&member).copied().unwrap_or(0).checked_add(1) == Some(request)
    }
}

/// What one member knows of the token in one view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenState<Id: Ord> {
    me: Id,
    /// The highest request number of each member that was seen (RN), this member's own among them.
    requests: BTreeMap<Id, u64>,
    token: Option<Token<Id>>,
    /// This member has requested the token and has not released it.
    requested: bool,
}

impl<Id: Ord + Copy> TokenState<Id> {
    /// A member without the token.
    pub fn new(me: Id) -> Self {
        Self { me, requests: BTreeMap::new(), token: None, requested: false }
    }

    /// Requests the token, unless that has been done. Returns the number of the request if it has to be sent to all others. Without one, this
    /// member has the token or has requested it already.
    pub fn request(&mut self) -> Option<u64> {
        if self.requested {
            return None;
        }
        self.requested = true;
        let number = self.requests.entry(self.me).or_insert(0);
        *number += 1;
        self.token.is_none().then_some(*number)
    }

    /// The token, if this member has requested it and has it.
    pub fn held(&mut self) -> Option<&mut Token<Id>> {
        self.token.as_mut().filter(|_| self.requested)
    }

    /// Whether the token is here, used or not.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// A member's request. Returns the token if it goes to that member at once.
    pub fn on_request(&mut self, from: Id, number: u64) -> Option<Token<Id>> {
        let seen = self.requests.entry(from).or_insert(0);
        *seen = (*seen).max(number);
        let (seen, idle) = (*seen, !self.requested);
        self.token.take_if(|token| idle && token.is_open(from, seen))
    }

    /// The token has arrived. False: there is one here already, which no correct member causes.
    pub fn on_token(&mut self, token: Token<Id>) -> bool {
        let is_first = self.token.is_none();
        if is_first {
            self.token = Some(token);
        }
        is_first
    }

    /// The first token of a view is here. Returns the member to which it goes at once: one that has requested it, if this member has not.
    pub fn grant_first(&mut self, token: Token<Id>) -> Option<(Id, Token<Id>)> {
        self.token = Some(token);
        if self.requested { None } else { self.release() }
    }

    /// Releases the token after use. Returns the member to which it goes, if any wants it.
    pub fn release(&mut self) -> Option<(Id, Token<Id>)> {
        self.requested = false;
        let token = self.token.as_mut()?;
        token.granted.insert(self.me, self.requests.get(&self.me).copied().unwrap_or(0));
        for (&member, &request) in &self.requests {
            if token.is_open(member, request) && !token.queue.contains(&member) {
                token.queue.push_back(member);
            }
        }
        let next = token.queue.pop_front()?;
        self.token.take().map(|token| (next, token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_passed_in_order_of_the_queue() {
        let mut states = [0u8, 1, 2].map(TokenState::new);
        assert!(states[0].on_token(Token::new(1)));
        assert_eq!(states[0].request(), None, "the holder sends no request");
        for member in [1usize, 2] {
            let number = states[member].request().unwrap();
            assert_eq!(states[0].on_request(member as u8, number), None, "the holder uses the token");
        }
        let (next, token) = states[0].release().unwrap();
        assert_eq!(next, 1);
        assert!(states[1].on_token(token) && states[1].held().is_some());
        let (next, token) = states[1].release().unwrap();
        assert_eq!(next, 2);
        assert!(states[2].on_token(token));
        assert_eq!(states[2].release(), None);
        assert!(states[2].has_token(), "the token stays with its last user");
    }

    #[test]
    fn late_request_is_granted_once() {
        let mut states = [0u8, 1].map(TokenState::new);
        assert!(states[0].on_token(Token::new(1)));
        let number = states[1].request().unwrap();
        let token = states[0].on_request(1, number).unwrap();
        assert!(states[1].on_token(token));
        assert_eq!(states[1].release(), None);
        // The request arrives again, late.
        assert_eq!(states[1].on_request(1, number), None);
    }

    #[test]
    fn tokens_with_unknown_members_are_refused() {
        let token = |granted: &[(u8, u64)], queue: &[u8], next_number| Token {
            granted: granted.iter().copied().collect(),
            queue: queue.iter().copied().collect(),
            next_number,
        };
        assert!(token(&[(1, 4)], &[2, 1], 1).is_valid(&[1, 2]));
        assert!(!token(&[(3, 1)], &[], 1).is_valid(&[1, 2]));
        assert!(!token(&[], &[1, 1], 1).is_valid(&[1, 2]));
        assert!(!token(&[], &[3], 1).is_valid(&[1, 2]));
        assert!(!token(&[], &[], 0).is_valid(&[1, 2]));
    }
}
