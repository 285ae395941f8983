//! Clients, files and completion queues by handle ([`crate::objects`]).

use motet_files::client::{Client, CompletionQueue, File};
use std::sync::Arc;

pub use crate::objects::{find, insert, remove_if};

/// A client.
pub struct OpenClient {
    pub client: Client,
    /// Has another reference for each file and queue that is open.
    pub users: Arc<()>,
}

/// A file.
pub struct OpenFile {
    pub file: Arc<File>,
    pub _user: Arc<()>,
}

/// A completion queue.
pub struct OpenQueue {
    pub queue: CompletionQueue,
    pub _user: Arc<()>,
}

crate::objects::kinds! {
    OpenClient, clients;
    OpenFile, files;
    OpenQueue, queues;
}
