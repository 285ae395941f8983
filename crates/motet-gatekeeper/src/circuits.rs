//! The circuits that are open at the nodes of this host, as the nodes tell of them.
//!
//! What a node says is checked and bounded like any other input, and it can say something only about itself. A node whose connection breaks keeps its
//! circuits until it is gone, or attaches again: then it says how many circuits it has, and those of before that are not among them are closed.

use motet_session::api::MAX_MEMBERS;
use motet_session::circuits::{Circuit, CircuitId, CircuitMember, CircuitPart, MAX_CIRCUIT_NAME_BYTES, MAX_CIRCUITS};
use motet_session::events::{CircuitPlace, What};
use motet_session::process::Process;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast;

/// The circuits. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Circuits {
    host: String,
    nodes: Arc<Mutex<HashMap<String, NodeCircuits>>>,
    happened: broadcast::Sender<What>,
}

/// The circuits of a node.
#[derive(Debug)]
struct NodeCircuits {
    process: Process,
    open: BTreeMap<CircuitId, Known>,
    /// The number of circuits that the node is about to say since it has attached.
    due: usize,
}

/// A circuit at a node.
#[derive(Debug)]
struct Known {
    name: String,
    rank: u32,
    size: u32,
    /// It was said on an earlier connection only.
    is_old: bool,
}

impl Circuits {
    /// None. `happened`: gets an event for each circuit that is opened or closed on this host.
    pub fn new(host: &str, happened: broadcast::Sender<What>) -> Self {
        Self { host: host.to_owned(), nodes: Arc::default(), happened }
    }

    /// A node has attached, and is about to say so many circuits.
    pub fn attached(&self, node: &str, process: Process, due: usize) {
        let mut nodes = self.lock();
        let Some(known) = nodes.get_mut(node) else {
            if due > 0 {
                nodes.insert(node.to_owned(), NodeCircuits { process, open: BTreeMap::new(), due });
            }
            return;
        };
        known.due = due;
        known.open.values_mut().for_each(|circuit| circuit.is_old = true);
        if due == 0 {
            self.close(&mut nodes, node, |_, _| true);
        }
    }

    /// A circuit is open at a node. `is_member`: the node is in its group. The error says what is wrong with that.
    pub fn opened(&self, node: &str, process: Process, part: CircuitPart, is_member: bool) -> Result<(), String> {
        let mut nodes = self.lock();
        let said = if is_member {
            self.enter(&mut nodes, node, process, part)
        } else {
            Err("the node is not in the group of this circuit".to_owned())
        };
        if let Some(known) = nodes.get_mut(node)
            && known.due > 0
        {
            known.due -= 1;
            if known.due == 0 {
                self.close(&mut nodes, node, |_, circuit| circuit.is_old);
            }
        }
        said
    }

    fn enter(
        &self,
        nodes: &mut HashMap<String, NodeCircuits>,
        node: &str,
        process: Process,
        CircuitPart { id, name, rank, size }: CircuitPart,
    ) -> Result<(), String> {
        if name.is_empty() || name.len() > MAX_CIRCUIT_NAME_BYTES {
            return Err(format!("a circuit's name has 1 to {MAX_CIRCUIT_NAME_BYTES} bytes"));
        }
        if id.view == 0 || rank >= size || size as usize > MAX_MEMBERS {
            return Err(format!("a circuit has a view, and a rank among at most {MAX_MEMBERS}"));
        }
        let is_first = nodes.values().all(|known| !known.open.contains_key(&id));
        let known =
            nodes.entry(node.to_owned()).or_insert_with(|| NodeCircuits { process, open: BTreeMap::new(), due: 0 });
        if known.open.len() >= MAX_CIRCUITS && !known.open.contains_key(&id) {
            return Err(format!("the gatekeeper keeps at most {MAX_CIRCUITS} circuits of a node"));
        }
        if is_first {
            self.tell(What::CircuitOpened, &id, &name, size);
        }
        known.open.insert(id, Known { name, rank, size, is_old: false });
        Ok(())
    }

    /// A circuit is open at a node no more.
    pub fn closed(&self, node: &str, id: &CircuitId) {
        self.close(&mut self.lock(), node, |known, _| known == id);
    }

    /// A node has left a group.
    pub fn left(&self, node: &str, group: &str) {
        self.close(&mut self.lock(), node, |id, _| id.group == group);
    }

    /// A node is gone.
    pub fn gone(&self, node: &str) {
        let mut nodes = self.lock();
        self.close(&mut nodes, node, |_, _| true);
        nodes.remove(node);
    }

    /// All circuits of this host, in the order of groups, views and numbers.
    pub fn list(&self) -> Vec<Circuit> {
        let nodes = self.lock();
        let of_node = |(node, known): (&String, &NodeCircuits)| {
            let circuit = |(id, circuit): (&CircuitId, &Known)| Circuit {
                group: id.group.clone(),
                name: circuit.name.clone(),
                view: id.view,
                number: id.number,
                size: circuit.size,
                members: vec![CircuitMember {
                    rank: circuit.rank,
                    node: node.clone(),
                    host: self.host.clone(),
                    process: known.process,
                }],
            };
            known.open.iter().map(circuit).collect()
        };
        Circuit::of_hosts(nodes.iter().map(of_node))
    }

    /// Forgets circuits of a node. Those that no other node of this host has are closed.
    fn close(&self, nodes: &mut HashMap<String, NodeCircuits>, node: &str, which: impl Fn(&CircuitId, &Known) -> bool) {
        let Some(known) = nodes.get_mut(node) else { return };
        let ended = known.open.iter().filter(|(id, circuit)| which(id, circuit)).map(|(id, _)| id.clone());
        let ended: Vec<_> = ended.collect();
        let ended: Vec<_> = ended.into_iter().filter_map(|id| known.open.remove_entry(&id)).collect();
        for (id, circuit) in ended {
            if nodes.values().all(|known| !known.open.contains_key(&id)) {
                self.tell(What::CircuitClosed, &id, &circuit.name, circuit.size);
            }
        }
    }

    fn tell(&self, what: impl FnOnce(CircuitPlace) -> What, id: &CircuitId, name: &str, size: u32) {
        let CircuitId { group, view, number } = id.clone();
        let place = CircuitPlace { host: self.host.clone(), group, circuit: name.to_owned(), view, number, size };
        let _ = self.happened.send(what(place)); // fails while nothing follows
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, NodeCircuits>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64, rank: u32) -> CircuitPart {
        let id = CircuitId { group: "g".to_owned(), view: 1, number };
        CircuitPart { id, name: format!("c{number}"), rank, size: 2 }
    }

    fn scene() -> (Circuits, broadcast::Receiver<What>, Process) {
        let (sender, events) = broadcast::channel(2 * MAX_CIRCUITS);
        (Circuits::new("h", sender), events, Process { pid: 1, started: 1 })
    }

    /// The events so far: whether a circuit was opened, and its number.
    fn happened(events: &mut broadcast::Receiver<What>) -> Vec<(bool, u64)> {
        let event = |what| match what {
            What::CircuitOpened(place) => (true, place.number),
            What::CircuitClosed(place) => (false, place.number),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| events.try_recv().ok()).map(event).collect()
    }

    #[test]
    fn circuit_lives_from_its_first_member_to_its_last() {
        let (circuits, mut events, process) = scene();
        circuits.opened("b", process, part(1, 1), true).unwrap();
        circuits.opened("a", process, part(1, 0), true).unwrap();
        circuits.opened("a", process, part(2, 0), true).unwrap();
        let list = circuits.list();
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].members.iter().map(|member| &member.node[..]).collect::<Vec<_>>(), ["a", "b"]);
        circuits.closed("a", &part(1, 0).id);
        circuits.closed("a", &part(1, 0).id);
        assert_eq!(happened(&mut events), [(true, 1), (true, 2)]);
        circuits.gone("b");
        circuits.left("a", "other");
        circuits.left("a", "g");
        assert_eq!(happened(&mut events), [(false, 1), (false, 2)]);
        assert_eq!(circuits.list(), []);
    }

    #[test]
    fn node_that_attaches_again_keeps_what_it_says_again() {
        let (circuits, mut events, process) = scene();
        circuits.attached("a", process, 0);
        (1..=3).for_each(|number| circuits.opened("a", process, part(number, 0), true).unwrap());
        happened(&mut events);
        circuits.attached("a", process, 2);
        circuits.opened("a", process, part(1, 0), true).unwrap();
        assert_eq!(circuits.list().len(), 3, "not all is said again yet");
        circuits.opened("a", process, part(4, 0), true).unwrap();
        assert_eq!(happened(&mut events), [(true, 4), (false, 2), (false, 3)]);
        circuits.attached("a", process, 0);
        assert_eq!(circuits.list(), []);
    }

    #[test]
    fn hostile_lines_change_nothing() {
        let (circuits, _events, process) = scene();
        let wrong: [fn(&mut CircuitPart); 5] = [
            |part| part.name.clear(),
            |part| part.name = "x".repeat(MAX_CIRCUIT_NAME_BYTES + 1),
            |part| part.rank = part.size,
            |part| part.size = MAX_MEMBERS as u32 + 1,
            |part| part.id.view = 0,
        ];
        for spoil in wrong {
            let mut part = part(1, 0);
            spoil(&mut part);
            circuits.opened("a", process, part, true).unwrap_err();
        }
        circuits.opened("a", process, part(1, 0), false).unwrap_err();
        assert_eq!(circuits.list(), []);
        (0..MAX_CIRCUITS as u64).for_each(|number| circuits.opened("a", process, part(number, 0), true).unwrap());
        circuits.opened("a", process, part(u64::MAX, 0), true).unwrap_err();
        circuits.opened("a", process, part(0, 1), true).unwrap();
        assert_eq!(circuits.list().len(), MAX_CIRCUITS);
    }
}
