//! Events of a session, as `GET /v1/events` streams them.

use serde::{Deserialize, Serialize};

/// The most members that an event names; it counts all.
pub const MAX_NAMED: usize = 16;

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionEvent {
    /// Its identity. A client that names the last one that it has seen gets those after it.
    pub id: String,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// A process on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Place {
    /// The host.
    pub host: String,
    /// The process id.
    pub pid: u32,
}

/// A circuit on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitPlace {
    /// The host.
    pub host: String,
    /// The group.
    pub group: String,
    /// The circuit's name.
    pub circuit: String,
    /// The number of the view whose members it joins.
    pub view: u64,
    /// Its number in the group.
    pub number: u64,
    /// The number of its members, on all hosts.
    pub size: u32,
}

/// A module of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModulePlace {
    /// The node's host.
    pub host: String,
    /// The node's identity.
    pub node: String,
    /// The module.
    pub module: String,
    /// The group whose nodes all have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How its program has ended, if it has ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum What {
    /// Events between the last one that the client has seen and the next one are not kept any more: what the client knows may be outdated.
    Gap,
    /// A group has a new view.
    View {
        /// The group.
        group: String,
        /// The number of the view.
        number: u64,
        /// The number of members.
        members: usize,
        /// Members that have joined, at most [`MAX_NAMED`].
        joined: Vec<Place>,
        /// The number of all that have joined.
        joined_count: usize,
        /// The number of those that have left.
        left_count: usize,
    },
    /// A program of the session has started.
    ProgramStarted {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// The program and its arguments.
        command: Vec<String>,
        /// The group that it was started in.
        group: Option<String>,
    },
    /// A program of the session has ended.
    ProgramEnded {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// The program and its arguments.
        command: Vec<String>,
        /// The group that it was started in.
        group: Option<String>,
    },
    /// A node has attached to the gatekeeper of its host.
    NodeAttached {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// The node's identity.
        node: String,
    },
    /// A node has left the session, or has died.
    NodeGone {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// The node's identity.
        node: String,
    },
    /// A circuit is open at the first member on this host.
    CircuitOpened(CircuitPlace),
    /// A circuit is open at no member on this host any more.
    CircuitClosed(CircuitPlace),
    /// A node has loaded a module.
    ModuleLoaded(ModulePlace),
    /// A module has been started, by a user or because its program had ended.
    ModuleStarted(ModulePlace),
    /// A module has been stopped, or its program has ended with success.
    ModuleStopped(ModulePlace),
    /// A node has unloaded a module, or has ended.
    ModuleUnloaded(ModulePlace),
    /// The program of a module has failed, or its node has died while it ran.
    ModuleCrashed(ModulePlace),
    /// A stream or link is on TCP although nothing has chosen that.
    Fall {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// The stream's addresses, or the link's peer.
        what: String,
        /// The reason, in the words of `motet why`.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_flat_objects() {
        let place = Place { host: "h".to_owned(), pid: 7 };
        let what = What::NodeGone { place, node: "n".to_owned() };
        let event = SessionEvent { id: "a.1".to_owned(), at_ms: 5, what };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"id":"a.1","at_ms":5,"kind":"node_gone","host":"h","pid":7,"node":"n"}"#);
        assert_eq!(serde_json::from_str::<SessionEvent>(&text).unwrap(), event);
    }
}
