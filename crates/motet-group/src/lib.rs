//! Groups of nodes, and circuits among their members.
//!
//! A [`Membership`] attaches a node to the session of its user. The node joins groups ([`Group`]) at any time, sees who else is in them, and opens
//! [`Circuit`]s: channels among the members, with ranks and collective operations. Messages of a circuit go from node to node; the gatekeeper
//! carries only who is there and which circuits are open.
//!
//! ```no_run
//! use motet::node::Node;
//! use motet_group::{Membership, op};
//! use std::sync::Arc;
//!
//! let node = Arc::new(Node::open("")?);
//! let membership = Membership::attach(&node)?;
//! let group = membership.join("fluid", None)?;
//! group.wait_for_members(4, None)?;
//! let circuit = group.open("halo", None)?; // by any member, or by all
//! circuit.send((circuit.rank() + 1) % circuit.size(), 7, b"to the next one")?;
//! let mut sum = [circuit.rank() as u64];
//! circuit.all_reduce(&mut sum, op::sum)?;
//! # Ok::<(), motet_group::Error>(())
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`token`] | who may open a circuit, within one view |
//! | [`opener`] | which circuits there are, although members come and go |
//! | `membership` | the node's part in the session: views and messages go to the openers |
//! | `group_state` | what a node knows of a group: view, agreement, open circuits |
//! | `group` | one group, for the program |
//! | `links` | the links to other members |
//! | `channels` | the channels of a circuit, opened when needed |
//! | `pairs` | the pairs of a circuit's members, each of which has one life |
//! | `turns` | one thread at a time opens the channel or the link to a member |
//! | `circuit` | messages between the members of a circuit |
//! | `pmix` | the size of a job of which only a PMIx server knows it |
//! | `arrivals` | messages that run code at their receiver: service, channels, long bodies |
//! | `active` | active messages: one function of each member |
//! | `end_points` | end points: many numbered functions of each member |
//! | `projection` | start points and end points, for the program |
//! | `collective` | barrier, broadcast, gather, reduce |
#![deny(unsafe_code)] // except in pmix.rs

mod active;
mod arrivals;
mod channels;
mod circuit;
mod collective;
mod end_points;
mod error;
mod group;
mod group_state;
mod links;
mod membership;
pub mod opener;
mod pairs;
mod pmix;
mod projection;
pub mod token;
mod turns;

pub use arrivals::MAX_ACTIVE_BYTES;
pub use circuit::{Circuit, Received};
pub use collective::{Element, op};
pub use end_points::{EndPoint, StartPoint};
pub use error::Error;
pub use group::Group;
pub use membership::Membership;
pub use motet_session::api::{Member, View};
