//! The gatekeeper: one process on each host of a session.
//!
//! It knows the session's hosts, groups and programs, and tells members of a group who the others are. The programs' data never pass here: a link between
//! two nodes lives on when every gatekeeper is gone.
//!
//! | module | what |
//! | --- | --- |
//! | [`store`] | keys, values and watchers |
//! | [`directory`] | groups and programs, in the store |
//! | [`views`] | the groups' views, parsed once for all connections |
//! | [`nodes`] | the nodes that are attached |
//! | `connection` | the connection of a node: views and messages between members |
//! | [`programs`] | the programs of the session, and their end |
//! | [`liveness`] | the end of a process |
//! | [`auth`] | who may use the API |
//! | [`api`] | the HTTP API |
//! | `limited` | connections over TCP: how many, and for how long |
//! | [`server`] | one gatekeeper, from its start to its end |
#![forbid(unsafe_code)]

pub mod api;
pub mod auth;
mod connection;
pub mod directory;
mod limited;
pub mod liveness;
pub mod nodes;
pub mod programs;
pub mod server;
pub mod store;
pub mod views;
