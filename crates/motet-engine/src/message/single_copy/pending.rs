//! Bodies that wait to be copied between the processes of a link.

use motet_proto::message::{AssistRequest, CopyRequest};
use motet_wire::message::fifo::chunk_claims::ChunkClaims;

/// A body that the receiver copies.
#[derive(Debug, Clone, Copy)]
pub struct PendingCopy {
    /// What is wanted.
    pub request: CopyRequest,
    /// Bytes copied.
    pub done: u64,
    /// With the sender's help.
    pub help: bool,
}

/// The copy that is under way with the sender's help.
#[derive(Debug, Clone, Copy)]
pub struct CooperativeCopy {
    pub(super) claims: &'static ChunkClaims,
    pub(super) operation: u64,
    pub(super) stamp: u32,
    /// Chunks that may be claimed, and those that we have copied.
    pub(super) chunks: u32,
    pub(super) mine: u32,
}

/// A body of ours that the peer copies with our help.
#[derive(Debug, Clone, Copy)]
pub struct CopyAssist {
    /// What it has said.
    pub request: AssistRequest,
    /// Chunks that we have copied.
    pub done: u32,
}
