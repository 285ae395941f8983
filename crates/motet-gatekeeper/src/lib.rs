//! The gatekeeper: one process on each host of a session.
//!
//! It knows the session's hosts, groups and programs, and tells members of a group who the others are. The programs' data never pass here: a link between
//! two nodes lives on when every gatekeeper is gone.
//!
//! | module | what |
//! | --- | --- |
//! | [`store`] | keys, values and watchers |
//! | [`directory`] | groups and programs, in the store |
//! | [`presence`] | which gatekeepers of a shared store live, and what dead hosts leave |
//! | [`views`] | the groups' views, parsed once for all connections |
//! | `meetings` | the folder in which nodes of a host meet |
//! | [`nodes`] | the nodes that are attached |
//! | `connection` | the connection of a node: views and messages between members |
//! | [`circuits`] | the circuits that are open at them |
//! | [`modules`] | the module nodes, and questions to them |
//! | `module_events` | what has happened to modules, between two lists of a node |
//! | `default_node` | the module node that the gatekeeper starts |
//! | [`programs`] | the programs of the session, and their end |
//! | `registrations` | programs that do not wait for an answer |
//! | [`hosts`] | the gatekeepers of other hosts |
//! | `link` | the link between two gatekeepers |
//! | `uplink` | the secondary gatekeeper's side of its link |
//! | `hosts_api` | the routes that concern other hosts |
//! | [`remote_port`], [`tls`] | the address for other hosts |
//! | `ending` | the end of a session |
//! | [`processes`] | the processes of this host, with their streams and links |
//! | [`events`] | what happens, as a stream |
//! | `watch_api` | the routes of both |
//! | [`live`] | what makes the events |
//! | [`dashboard`] | the page |
//! | [`logins`], [`origin`] | browsers that have logged in, and where their requests come from |
//! | `hidden` | processes of other PID namespaces |
//! | [`liveness`] | the end of a process |
//! | [`auth`] | who may use the API |
//! | [`context`] | what all routes use |
//! | [`api`] | the HTTP API |
//! | `peer` | who makes a request |
//! | `exports_api` | the exports of this host |
//! | `modules_api` | its routes about modules |
//! | `members` | the processes of the session on this host |
//! | `tcp_port`, `places`, `limited` | connections over TCP: how many, and for how long |
//! | `options` | what a later gatekeeper takes over |
//! | [`server`] | one gatekeeper, from its start to its end |
#![forbid(unsafe_code)]
// Standard error may be a full disk: see `motet_session::notes`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod api;
pub mod auth;
pub mod circuits;
mod connection;
pub mod context;
pub mod dashboard;
mod default_node;
pub mod directory;
mod ending;
pub mod events;
mod exports_api;
mod hidden;
pub mod hosts;
mod hosts_api;
mod limited;
mod link;
pub mod live;
pub mod liveness;
pub mod logins;
mod meetings;
mod members;
mod module_events;
pub mod modules;
mod modules_api;
pub mod nodes;
pub mod options;
pub mod origin;
mod peer;
mod places;
pub mod presence;
pub mod processes;
pub mod programs;
mod registrations;
pub mod remote_port;
pub mod server;
pub mod store;
mod tcp_port;
pub mod tls;
mod uplink;
pub mod views;
mod watch_api;
