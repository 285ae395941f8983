//! The types of the API that concern modules: what a client asks for, what a module node answers, and what state a module is in.
//!
//! A module node is a process of `motet node`. It says which modules it has whenever that changes, so the gatekeeper answers questions about them
//! even while the node is busy.

use serde::{Deserialize, Serialize};

/// The most modules of a node.
pub const MAX_MODULES: usize = 128;
/// The most modules that one module requires.
pub const MAX_REQUIRES: usize = 16;
/// The longest text of an error, bytes.
pub const MAX_ERROR_BYTES: usize = 1024;
/// The most of a module's log in one answer, bytes. JSON may need six times as much.
pub const MAX_LOG_BYTES: usize = 32 << 10;
/// The longest path of a descriptor, bytes.
pub const MAX_PATH_BYTES: usize = 4096;
/// The name by which the API knows a host's default node.
pub const DEFAULT_NODE: &str = "default";

/// What a module node is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "operation", rename_all = "snake_case")]
pub enum Operation {
    /// Loads a module and those that it requires. All of them, or none.
    Load {
        /// The absolute path of the descriptor, on the node's host.
        descriptor: String,
        /// Starts it then.
        #[serde(default)]
        start: bool,
    },
    /// Starts a module, and before it those that it requires.
    Start {
        /// The module.
        module: String,
    },
    /// Stops a module.
    Stop {
        /// The module.
        module: String,
        /// Stops those that require it first. Otherwise it is refused while one of them runs.
        #[serde(default)]
        cascade: bool,
    },
    /// Unloads a module. One that runs is stopped first.
    Unload {
        /// The module.
        module: String,
        /// Unloads those that require it first. Otherwise it is refused while there is one.
        #[serde(default)]
        cascade: bool,
    },
}

impl Operation {
    /// The module that is loaded already. `None`: it is being loaded.
    pub fn module(&self) -> Option<&str> {
        match self {
            Self::Load { .. } => None,
            Self::Start { module } | Self::Stop { module, .. } | Self::Unload { module, .. } => Some(module),
        }
    }

    /// What it is called in a sentence about something that has been done.
    pub fn done(&self) -> &'static str {
        match self {
            Self::Load { start: false, .. } => "loaded",
            Self::Load { start: true, .. } => "loaded and started",
            Self::Start { .. } => "started",
            Self::Stop { .. } => "stopped",
            Self::Unload { .. } => "unloaded",
        }
    }
}

/// `POST /v1/modules`: an operation on one node, or on all nodes of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModuleRequest {
    /// The group. Without it, and for a module that names no group itself: the host's default node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// What to do.
    #[serde(flatten)]
    pub operation: Operation,
}

/// What came of an operation on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// The node.
    #[serde(default)]
    pub node: String,
    /// Its host.
    #[serde(default)]
    pub host: String,
    /// Its rank, if the operation was for a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The module that the operation was about.
    #[serde(default)]
    pub module: String,
    /// The modules that have changed, in that order.
    #[serde(default)]
    pub changed: Vec<String>,
    /// Why the operation failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ModuleState {
    /// It is loaded, and not started, or has been stopped.
    Loaded,
    /// It runs.
    Running,
    /// Its program has ended, and will be started again in a moment.
    Restarting,
    /// Its program has ended with success.
    Ended,
    /// Its program has failed, and is not started again.
    Failed,
}

impl ModuleState {
    /// The state as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }

    /// Whether the module runs, or will in a moment.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Restarting)
    }
}

/// A module of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModuleStatus {
    /// The node's identity. What the node itself says here is ignored.
    #[serde(default)]
    pub node: String,
    /// The node's host.
    #[serde(default)]
    pub host: String,
    /// Its name, which no other module of the node has.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Its state.
    pub state: ModuleState,
    /// When it got into this state, in seconds since 1970.
    pub since: u64,
    /// How often its program was started again after it had ended by itself.
    #[serde(default)]
    pub restarts: u32,
    /// How its program ended last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<String>,
    /// The process id of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The modules that it requires.
    #[serde(default)]
    pub requires: Vec<String>,
    /// The group whose nodes all have it (driver `multi`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The end of a module's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModuleLog {
    /// The text.
    pub text: String,
}

/// What the gatekeeper asks a module node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleQuestion {
    /// An operation.
    Do {
        /// What to do.
        operation: Operation,
        /// It is done on all nodes of a group. If it is not, a module for a group is not loaded: the answer names the group.
        in_group: bool,
    },
    /// The end of a module's log, at most so many bytes.
    Log {
        /// The module.
        module: String,
        /// How much.
        tail: usize,
    },
}

/// What a module node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleAnswer {
    /// The operation has ended, well or not.
    Outcome(Outcome),
    /// The module is for all nodes of this group.
    ForGroup(String),
    /// The end of a log.
    Log(ModuleLog),
    /// There is no answer: why.
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_one_flat_object() {
        let text = r#"{"on":"fluid","operation":"load","descriptor":"/m.toml"}"#;
        let request: ModuleRequest = serde_json::from_str(text).unwrap();
        let operation = Operation::Load { descriptor: "/m.toml".to_owned(), start: false };
        assert_eq!(request, ModuleRequest { on: Some("fluid".to_owned()), operation });
        assert_eq!(serde_json::from_str::<ModuleRequest>(&serde_json::to_string(&request).unwrap()).unwrap(), request);
        assert!(serde_json::from_str::<ModuleRequest>(r#"{"operation":"format","module":"m"}"#).is_err());
        assert!(serde_json::from_str::<ModuleRequest>(r#"{"operation":"start"}"#).is_err());
    }
}
