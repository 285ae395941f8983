//! Circuits in the gatekeeper's API: what a node says of its own, and how the API shows them.
//!
//! A gatekeeper has no part in a circuit. Nodes tell it which circuits are open at them, once at the opening and once at the end, so that the session's
//! user can see them.

use crate::process::Process;
use serde::{Deserialize, Serialize};

/// The longest name of a circuit, bytes.
pub const MAX_CIRCUIT_NAME_BYTES: usize = 256;
/// The most circuits of one node that its gatekeeper keeps.
pub const MAX_CIRCUITS: usize = 1024;

/// What distinguishes a circuit from all others of the session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CircuitId {
    /// Its group.
    pub group: String,
    /// The number of the view whose members it joins.
    pub view: u64,
    /// Its number in the group. Numbers begin again in a group that all members have left; views do not.
    pub number: u64,
}

/// A circuit that is open at a node, as the node says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitPart {
    /// The circuit.
    #[serde(flatten)]
    pub id: CircuitId,
    /// Its name, 1 to [`MAX_CIRCUIT_NAME_BYTES`] bytes.
    pub name: String,
    /// The node's rank in it.
    pub rank: u32,
    /// The number of its members.
    pub size: u32,
}

/// A circuit, as `GET /v1/circuits` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Circuit {
    /// Its group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// The number of the view whose members it joins.
    pub view: u64,
    /// Its number in the group: members open circuits in the order of their numbers.
    pub number: u64,
    /// The number of its members, on all hosts.
    pub size: u32,
    /// The members on this host at which it is open, by rank.
    pub members: Vec<CircuitMember>,
}

/// A member of a circuit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitMember {
    /// Its rank in the circuit.
    pub rank: u32,
    /// The node's identity.
    pub node: String,
    /// Its host.
    pub host: String,
    /// Its process.
    pub process: Process,
}

impl Circuit {
    /// The circuits of a session, from those of its hosts: the members of one circuit, by rank, are in one place. In the order of groups and numbers.
    pub fn of_hosts(hosts: impl IntoIterator<Item = Vec<Self>>) -> Vec<Self> {
        let mut all: Vec<Self> = hosts.into_iter().flatten().collect();
        all.sort_by(|a, b| a.key().cmp(&b.key()));
        all.dedup_by(|next, kept| {
            let is_same = next.key() == kept.key();
            if is_same {
                kept.members.append(&mut next.members);
            }
            is_same
        });
        all.iter_mut().for_each(|circuit| circuit.members.sort());
        all
    }

    fn key(&self) -> (&str, u64, u64, &str, u32) {
        (&self.group, self.view, self.number, &self.name, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuit(host: &str, name: &str, ranks: &[u32]) -> Circuit {
        let process = Process { pid: 1, started: 1 };
        let member = |rank: &u32| CircuitMember { rank: *rank, node: "n".to_owned(), host: host.to_owned(), process };
        let members = ranks.iter().map(member).collect();
        Circuit { group: "g".to_owned(), name: name.to_owned(), view: 2, number: 1, size: 3, members }
    }

    #[test]
    fn circuits_of_several_hosts_are_joined_by_rank() {
        let all = Circuit::of_hosts([vec![circuit("a", "c", &[1])], vec![], vec![circuit("b", "c", &[2, 0])]]);
        assert_eq!(all.len(), 1);
        let hosts: Vec<_> = all[0].members.iter().map(|member| (member.rank, &member.host[..])).collect();
        assert_eq!(hosts, [(0, "b"), (1, "a"), (2, "b")]);
        let other = Circuit::of_hosts([vec![circuit("a", "c", &[1])], vec![circuit("b", "d", &[0])]]);
        assert_eq!(other.len(), 2, "what has another name is another circuit");
    }

    #[test]
    fn part_is_one_flat_object() {
        let id = CircuitId { group: "g".to_owned(), view: 3, number: 1 };
        let part = CircuitPart { id, name: "halo".to_owned(), rank: 0, size: 2 };
        let text = serde_json::to_string(&part).unwrap();
        assert_eq!(text, r#"{"group":"g","view":3,"number":1,"name":"halo","rank":0,"size":2}"#);
        assert_eq!(serde_json::from_str::<CircuitPart>(&text).unwrap(), part);
    }
}
