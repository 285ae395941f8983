//! Remote service requests: startpoints that can be sent anywhere, and endpoints with handlers.
//!
//! An [`Endpoint`] is fixed on a node and has handlers. A [`Startpoint`] refers to one endpoint or several; it is plain data, and works in every
//! process that it is sent to. [`Rsr::request`] runs a handler at the other side with the data of a [`Buffer`]; it is one-way. A startpoint in the
//! data is where replies go; [`Rsr::call`] does that.
//!
//! The words and the ideas are those of Nexus (I. Foster, C. Kesselman, S. Tuecke, *The Nexus approach to integrating multithreading and
//! communication*, 1996), in the form of A. Denis, *Adaptation de l'environnement générique de metacomputing Globus à des réseaux haut débit*, 2000.
//!
//! ```
//! use motet::node::Node;
//! use motet_rsr::{Buffer, Handlers, Options, Rsr, Startpoint};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! let server = Rsr::attach(&Arc::new(Node::open("")?), Options::default())?;
//! let handlers = Handlers::new().on("add", |request| {
//!     let mut reader = request.reader();
//!     if let (Ok(one), Ok(other)) = (reader.get::<f64>(), reader.get::<f64>()) {
//!         let _ = request.reply(Buffer::new().put(one + other));
//!     }
//! });
//! let endpoint = server.endpoint(handlers)?;
//! let text = endpoint.startpoint()?.to_text(); // for any other process; it is a secret
//!
//! let client = Rsr::attach(&Arc::new(Node::open("")?), Options::default())?;
//! let start: Startpoint = text.parse()?;
//! let reply = client.call(&start, "add", Buffer::new().put(1.5).put(2.0), Some(Duration::from_secs(10)))?;
//! assert_eq!(reply.reader().get::<f64>()?, 3.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | `buffer`, `block`, `format` | the data, and their conversion |
//! | `startpoint` | references, as bytes and text |
//! | [`wire`] | the head of a request |
//! | `rsr` | the calls of a program; threads |
//! | `call` | requests with replies |
//! | `sender`, `routes` | one packet or two; links, drivers |
//! | `delayed` | replies that cannot leave at once |
//! | `reception` | packets that arrive, and the checks |
//! | `lines` | the order of requests behind long ones |
//! | `endpoint`, `request`, `workers` | handlers, and who runs them |
//! | `memory` | bounds |
//! | `numbers` | maps on the way of each request |
#![forbid(unsafe_code)]

mod block;
mod buffer;
mod call;
mod counters;
mod deadline;
mod delayed;
mod endpoint;
mod error;
mod format;
mod lines;
mod memory;
mod numbers;
mod options;
mod reception;
mod request;
mod routes;
mod rsr;
mod sender;
mod startpoint;
pub mod wire;
mod workers;

pub use buffer::{Buffer, Element, Reader};
pub use call::Reply;
pub use endpoint::{Endpoint, Handlers};
pub use error::Error;
pub use format::{Format, Malformed};
pub use options::{Counts, MAX_ONE_PACKET, Options, Reception};
pub use request::Request;
pub use routes::SERVICE;
pub use rsr::{Rsr, Way};
pub use startpoint::{MAX_ADDRESS, MAX_BYTES, MAX_ENDPOINTS, Startpoint};
pub use wire::Handler;
