//! A session: the programs of one user that run together on one or more hosts, and the gatekeepers that keep their directory.
//!
//! This crate is what all of them share. It has no thread of its own, except one for each [`attach::Attachment`], and no async runtime, so
//! that any program can use it.
//!
//! | module | what |
//! | --- | --- |
//! | [`paths`] | the folder of a session, and who may use it |
//! | [`api`] | the types of the gatekeeper's API |
//! | [`circuits`] | circuits, as nodes tell of them and as the API shows them |
//! | [`hosts`] | the hosts of a session, and what a host needs to join it |
//! | [`events`] | events of a session |
//! | [`login`] | the login of a browser |
//! | [`etcd_address`] | where an etcd is that holds the directory |
//! | [`modules`] | those of them that concern modules |
//! | [`client`] | one request to the gatekeeper |
//! | [`attach`] | the connection of a node, which carries views and messages |
//! | `told` | what the gatekeeper still has to be told of circuits |
//! | [`launcher`] | the rank of a process in its parallel job |
//! | [`link_frame`] | the frames of a link between two gatekeepers |
//! | [`notes`] | lines on standard error, whose loss harms nothing |
//! | [`registration`] | how a program is registered that does not wait |
//! | [`private_file`] | files that only their user may read |
//! | [`unix_socket`] | connections to Unix sockets within a limit |
//! | [`process`] | a process that cannot be confused with a later one of the same id |
#![forbid(unsafe_code)]

pub mod api;
pub mod attach;
pub mod circuits;
pub mod client;
pub mod etcd_address;
pub mod events;
pub mod hosts;
pub mod launcher;
pub mod link_frame;
pub mod login;
pub mod modules;
pub mod notes;
pub mod paths;
pub mod private_file;
pub mod process;
pub mod registration;
mod told;
pub mod unix_socket;

/// The variable by which programs of a session carry its identity, and with which `motet down` finds them.
pub const SESSION_ID_VARIABLE: &str = "MOTET_SESSION_ID";
/// The variable with the identity of the module node that has started a program.
pub const MODULE_NODE_VARIABLE: &str = "MOTET_MODULE_NODE";
/// The variable with the group that a program was started in.
pub const GROUP_VARIABLE: &str = "MOTET_GROUP";
/// The variable with the rank of a program among those that were started with it.
pub const RANK_VARIABLE: &str = "MOTET_GROUP_RANK";
/// The variable with the number of programs that were started together.
pub const SIZE_VARIABLE: &str = "MOTET_GROUP_SIZE";
/// The variable with the place that `motet run --group` itself had in the job of a launcher.
pub const GROUP_LAUNCHER_VARIABLE: &str = "MOTET_GROUP_LAUNCHER";
