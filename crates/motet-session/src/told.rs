//! What the gatekeeper still has to be told of a node's circuits.
//!
//! Lines about circuits are written as far as the connection takes them at once. What is left is kept as the set of circuits that differ, so its size is
//! bounded by the circuits that are or were open, however long the gatekeeper reads nothing.

use crate::api::FromNode;
use crate::circuits::{CircuitId, CircuitPart};
use std::collections::{BTreeMap, BTreeSet};

/// The circuits that are open at the node, and what is left to say about them.
#[derive(Debug, Default)]
pub struct Told {
    open: BTreeMap<CircuitId, CircuitPart>,
    /// Circuits that a new connection has announced. Each is said, also one that has ended meanwhile: the gatekeeper counts them.
    announced: BTreeMap<CircuitId, CircuitPart>,
    /// Circuits that the gatekeeper takes for open, or will.
    ended: BTreeSet<CircuitId>,
    /// Open circuits that the gatekeeper does not know.
    unknown: BTreeSet<CircuitId>,
}

impl Told {
    /// A circuit is open.
    pub fn opened(&mut self, part: CircuitPart) {
        self.ended.remove(&part.id);
        self.unknown.insert(part.id.clone());
        self.open.insert(part.id.clone(), part);
    }

    /// A circuit is open no more.
    pub fn closed(&mut self, id: &CircuitId) {
        if self.open.remove(id).is_some() && !self.unknown.remove(id) {
            self.ended.insert(id.clone());
        }
    }

    /// The node has left a group: the gatekeeper forgets the circuits that it knows by itself.
    pub fn left(&mut self, group: &str) {
        self.open.retain(|id, _| id.group != group);
        self.unknown.retain(|id| id.group != group);
        self.ended.retain(|id| id.group != group);
        self.ended.extend(self.announced.keys().filter(|id| id.group == group).cloned());
    }

    /// The connection is a new one. Returns the number of circuits that it announces.
    pub fn begin_again(&mut self) -> usize {
        self.ended.clear();
        self.unknown.clear();
        self.announced.clone_from(&self.open);
        self.announced.len()
    }

    /// The next line. It counts as said from then on.
    pub fn next(&mut self) -> Option<FromNode> {
        if let Some((_, part)) = self.announced.pop_first() {
            return Some(FromNode::CircuitOpened(part));
        }
        if let Some(id) = self.ended.pop_first() {
            return Some(FromNode::CircuitClosed(id));
        }
        let id = self.unknown.pop_first()?;
        self.open.get(&id).cloned().map(FromNode::CircuitOpened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(group: &str, number: u64) -> CircuitPart {
        let id = CircuitId { group: group.to_owned(), view: 1, number };
        CircuitPart { id, name: "c".to_owned(), rank: 0, size: 1 }
    }

    fn rest(told: &mut Told) -> Vec<FromNode> {
        std::iter::from_fn(|| told.next()).collect()
    }

    #[test]
    fn each_change_is_said_once() {
        let mut told = Told::default();
        told.opened(part("g", 1));
        assert_eq!(rest(&mut told), [FromNode::CircuitOpened(part("g", 1))]);
        told.closed(&part("g", 1).id);
        told.closed(&part("g", 1).id);
        told.closed(&part("g", 9).id);
        assert_eq!(rest(&mut told), [FromNode::CircuitClosed(part("g", 1).id)]);
        assert_eq!(rest(&mut told), []);
    }

    #[test]
    fn circuit_that_ends_before_it_was_said_is_not_said() {
        let mut told = Told::default();
        (0..1000).for_each(|number| {
            told.opened(part("g", number));
            told.closed(&part("g", number).id);
        });
        assert!(told.open.is_empty());
        assert_eq!(rest(&mut told), []);
    }

    #[test]
    fn new_connection_gets_the_open_ones() {
        let mut told = Told::default();
        [1, 2, 3].into_iter().for_each(|number| told.opened(part("g", number)));
        told.opened(part("left", 1));
        rest(&mut told);
        told.closed(&part("g", 2).id);
        told.left("left");
        assert_eq!(told.begin_again(), 2);
        assert_eq!(rest(&mut told), [1, 3].map(|number| FromNode::CircuitOpened(part("g", number))));
    }

    #[test]
    fn all_that_is_announced_is_said() {
        let mut told = Told::default();
        [1, 2].into_iter().for_each(|number| told.opened(part("g", number)));
        told.opened(part("left", 1));
        rest(&mut told);
        assert_eq!(told.begin_again(), 3);
        told.opened(part("a", 1));
        told.closed(&part("g", 1).id);
        told.left("left");
        let opened = |group, number| FromNode::CircuitOpened(part(group, number));
        let closed = |group, number| FromNode::CircuitClosed(part(group, number).id);
        let expected = [opened("g", 1), opened("g", 2), opened("left", 1), closed("g", 1), closed("left", 1)];
        assert_eq!(rest(&mut told), [&expected[..], &[opened("a", 1)]].concat());
    }
}
