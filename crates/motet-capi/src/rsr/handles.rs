//! Attachments, endpoints, startpoints and buffers by handle ([`crate::objects`]).

use motet_rsr::{Buffer, Endpoint, Rsr, Startpoint};
use std::sync::{Arc, Mutex};

pub use crate::objects::{find, insert, remove_if};
pub use crate::pin::Pin;

/// A node's part in requests. It ends before its node is unpinned.
pub struct Attached {
    pub rsr: Rsr,
    /// Has another reference for each endpoint that is open.
    pub users: Arc<()>,
    pub _pin: Pin,
}

/// An endpoint.
pub struct OpenEndpoint {
    pub endpoint: Endpoint,
    pub _user: Arc<()>,
}

/// A startpoint, which may be changed.
pub type OpenStartpoint = Mutex<Startpoint>;

/// A buffer. The memory that it borrows is the program's, which keeps it as `motet_rsr.h` says.
pub type OpenBuffer = Mutex<Buffer<'static>>;

crate::objects::kinds! {
    Attached, attached;
    OpenEndpoint, endpoints;
    OpenStartpoint, startpoints;
    OpenBuffer, buffers;
}
