//! The types of the gatekeeper's API, version 1. All are JSON; unknown fields are ignored, so later versions may add some.

use crate::circuits::{CircuitId, CircuitPart};
use crate::modules::{ModuleAnswer, ModuleQuestion, ModuleStatus};
use crate::process::Process;
use serde::{Deserialize, Serialize};

/// The prefix of all paths.
pub const PREFIX: &str = "/v1";
/// The longest line that a node may send, bytes.
pub const MAX_LINE_BYTES: usize = 256 << 10;
/// The longest line that a gatekeeper sends, bytes: a view of the largest group.
pub const MAX_ANSWER_LINE_BYTES: usize = 8 << 20;
/// Why a node is refused that was attached to a session which has ended.
pub const ANOTHER_SESSION: &str = "another session is up by now";
/// The most members of a group.
pub const MAX_MEMBERS: usize = 1024;
/// The name of the protocol on the connection of a node, in the `Upgrade` header.
pub const ATTACH_PROTOCOL: &str = "motet-attach/1";

/// Whether containers of a host share memory: processes that see the session's folder, but have other network namespaces.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Containers {
    /// Those of the session's user.
    #[default]
    #[serde(alias = "user")]
    SameUid,
    /// None.
    Off,
}

/// A session, as `GET /v1/session` describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// Its name.
    pub name: String,
    /// The host of the gatekeeper that answers.
    pub host: String,
    /// The gatekeeper's process.
    pub gatekeeper: Process,
    /// Version of Motet.
    pub version: String,
    /// Seconds since the gatekeeper started.
    pub uptime_s: u64,
    /// The session's identity, which its programs carry in their environment.
    pub id: String,
    /// The address of the API over TCP.
    pub listen: String,
    /// The address by which other hosts of the session know this one, if there are any: its nodes listen there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<std::net::IpAddr>,
    /// Whether containers of this host share memory.
    #[serde(default)]
    pub containers: Containers,
}

/// A program that `motet run` has started in the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Program {
    /// Its host. Empty in a request: the gatekeeper's.
    #[serde(default)]
    pub host: String,
    /// Its process.
    pub process: Process,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The group that it was started in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its rank among the processes that were started with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// A node in a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// The node's identity, 32 hexadecimal digits.
    pub node: String,
    /// Its host.
    pub host: String,
    /// Its process.
    pub process: Process,
    /// Its address for links. It contains the node's secret: only nodes that are attached get it, elsewhere it is empty.
    pub address: String,
    /// The number of the first view since which it has been a member without a break.
    #[serde(default)]
    pub since: u64,
    /// The rank that it asked for. Members are in the order of these; those without one come last, in the order in which they joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// The members of a group from one change to the next. All members see the same views in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct View {
    /// The group.
    pub group: String,
    /// The number of the view, from 1.
    pub number: u64,
    /// The members; the rank of each is its place.
    pub members: Vec<Member>,
}

impl View {
    /// The rank of a node.
    pub fn rank_of(&self, node: &str) -> Option<usize> {
        self.members.iter().position(|member| member.node == node)
    }

    /// Adds a member, or replaces the one with its identity; the order of members follows from the ranks that they asked for.
    pub fn insert(&mut self, member: Member) {
        let place = |member: &Member| member.rank.unwrap_or(u32::MAX);
        if let Some(rank) = self.rank_of(&member.node) {
            if self.members[rank].rank == member.rank {
                self.members[rank] = member;
                return;
            }
            self.members.remove(rank);
        }
        let at = self.members.partition_point(|other| place(other) <= place(&member));
        self.members.insert(at, member);
    }

    /// Makes the next view of this one. False: the change does not follow this view.
    pub fn apply(&mut self, change: &ViewChange) -> bool {
        if change.group != self.group || Some(change.number) != self.number.checked_add(1) {
            return false;
        }
        self.number = change.number;
        self.members.retain(|member| !change.left.contains(&member.node));
        for member in &change.joined {
            self.insert(member.clone());
        }
        true
    }
}

/// What makes the next view of a group from the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewChange {
    /// The group.
    pub group: String,
    /// The number of the new view.
    pub number: u64,
    /// Members that have joined, or joined again.
    pub joined: Vec<Member>,
    /// The identities of those that have left.
    pub left: Vec<String>,
}

/// An answer that is no success. The status of HTTP says which kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// What is wrong, and what to do.
    pub error: String,
}

/// What a node says on its connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromNode {
    /// The first line: who it is.
    Hello {
        /// The node's identity.
        node: String,
        /// Its address for links.
        address: String,
        /// The groups that it is in, with the ranks that it has asked for. It leaves all others.
        #[serde(default)]
        groups: Vec<(String, Option<u32>)>,
        /// The session's identity, if the node has been attached before.
        #[serde(default)]
        session: Option<String>,
        /// The number of circuits that are open at it, each of which it says next. All others of before are closed.
        #[serde(default)]
        circuits: usize,
    },
    /// It joins a group.
    Join {
        /// The group.
        group: String,
        /// The rank that it asks for.
        rank: Option<u32>,
    },
    /// It leaves a group.
    Leave {
        /// The group.
        group: String,
    },
    /// A message to another member of a group.
    Send {
        /// The group.
        group: String,
        /// The receiver's identity.
        to: String,
        /// The message.
        body: serde_json::Value,
    },
    /// A circuit is open at it, of a group that it is in. There is no answer.
    CircuitOpened(CircuitPart),
    /// A circuit is open at it no more. There is no answer. Leaving a group closes the circuits there without this line.
    CircuitClosed(CircuitId),
    /// It is a module node, and these are its modules. It says so again whenever they change.
    Modules {
        /// It is the host's default node.
        is_default: bool,
        /// All of them.
        modules: Vec<ModuleStatus>,
    },
    /// The answer to a question about modules.
    ModuleAnswer {
        /// The number of the question.
        request: u64,
        /// The answer.
        answer: ModuleAnswer,
    },
    /// It ends in order: it leaves all groups at once.
    Bye,
}

/// What the gatekeeper says on the connection of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNode {
    /// The answer to the first line.
    Welcome {
        /// The gatekeeper's host.
        host: String,
        /// The session's identity. A node that attaches again and finds another session has lost its own.
        session: String,
    },
    /// A view of a group that the node is in.
    View(View),
    /// The next view of a group that the node is in, or was in until the gatekeeper has removed it.
    Change(ViewChange),
    /// The node has left a group, as it wanted. Lines about the group from before this one are void.
    Left {
        /// The group.
        group: String,
    },
    /// A message of another member.
    Message {
        /// The group.
        group: String,
        /// The sender's identity.
        from: String,
        /// The message.
        body: serde_json::Value,
    },
    /// A question about modules. Only nodes that have said that they are module nodes get it.
    Module {
        /// Its number, which the answer repeats.
        request: u64,
        /// The question.
        question: ModuleQuestion,
    },
    /// A line was refused.
    Refused {
        /// The group that it was about, if any.
        group: Option<String>,
        /// What is wrong.
        error: String,
    },
}

/// An exported directory of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Export {
    /// Its name.
    pub name: String,
    /// The directory.
    pub directory: String,
    /// The server's process.
    pub process: u32,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Clients that use it by messages.
    pub clients: u64,
    /// Files that they have open.
    pub open_files: u64,
    /// Owners of locks on them.
    #[serde(default)]
    pub locks: u64,
    /// Whether clients of its host may use the directory itself.
    #[serde(default)]
    pub direct: bool,
    /// Requests since the server started.
    pub requests: u64,
    /// Bytes that clients have read.
    pub bytes_read: u64,
    /// Bytes that clients have written.
    pub bytes_written: u64,
    /// What reads the storage of its server, and what opens with O_DIRECT have brought, in words.
    #[serde(default)]
    pub storage: String,
}

/// The use of an export by a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExportUse {
    /// The process, as the kernel says.
    #[serde(default)]
    pub process: u32,
    /// What uses it: `mount`, `run` or `nbd`.
    pub front: String,
    /// The export, NAME or HOST:NAME; for a disk of this host that no server exports, the name of the disk.
    pub export: String,
    /// Where it appears: a directory, or the address of a disk.
    pub at: String,
    /// The directory itself is used, not messages to its server.
    pub direct: bool,
    /// Why.
    pub why: String,
    /// Files that are open.
    pub open_files: u64,
    /// Owners of locks on them.
    pub locks: u64,
    /// Requests so far.
    pub requests: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// What became of its opens with O_DIRECT, in words; empty if all are as the programs want them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage: String,
}

/// Where the server of an export is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExportAddress {
    /// The address, with a secret.
    pub address: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: &str, rank: Option<u32>) -> Member {
        let process = Process { pid: 1, started: 1 };
        Member { node: node.to_owned(), host: "h".to_owned(), process, address: String::new(), since: 1, rank }
    }

    fn names(view: &View) -> Vec<&str> {
        view.members.iter().map(|member| &member.node[..]).collect()
    }

    #[test]
    fn members_are_in_the_order_of_ranks_then_of_joining() {
        let mut view = View { group: "g".to_owned(), number: 0, members: Vec::new() };
        for (node, rank) in [("x", None), ("c", Some(2)), ("a", Some(0)), ("y", None), ("b", Some(1)), ("x", None)] {
            view.insert(member(node, rank));
        }
        assert_eq!(names(&view), ["a", "b", "c", "x", "y"]);
        view.insert(member("a", Some(7)));
        assert_eq!(names(&view), ["b", "c", "a", "x", "y"]);
    }

    #[test]
    fn changes_apply_to_the_view_before_them_only() {
        let mut view = View { group: "g".to_owned(), number: 3, members: vec![member("a", None), member("b", None)] };
        let change = ViewChange {
            group: "g".to_owned(),
            number: 4,
            joined: vec![member("c", Some(0))],
            left: vec!["a".to_owned()],
        };
        assert!(view.apply(&change));
        assert_eq!((view.number, names(&view)), (4, vec!["c", "b"]));
        assert!(!view.apply(&change));
        assert!(!view.apply(&ViewChange { group: "other".to_owned(), number: 5, ..change }));
    }
}
