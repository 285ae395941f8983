//! Bodies whose copy between the two processes of a link is under way.

use motet_proto::message::{AssistRequest, CopyRequest};
use motet_wire::message::fifo::chunk_claims::ChunkClaims;

/// A body that this side, the receiver, copies.
#[derive(Debug, Clone, Copy)]
pub struct PendingCopy {
    /// The request of the protocol.
    pub request: CopyRequest,
    /// Bytes copied.
    pub done: u64,
    /// The copy is to be a cooperative one.
    pub assisted: bool,
}

/// The cooperative copy that is under way on a link.
#[derive(Debug, Clone, Copy)]
pub struct CooperativeCopy {
    pub(super) claims: &'static ChunkClaims,
    pub(super) operation: u64,
    pub(super) copy_id: u32,
    /// Number of chunks of the body.
    pub(super) chunks: u32,
    /// Number of chunks that this side has copied.
    pub(super) copied_here: u32,
}

/// A body of this side that the peer copies with our help.
#[derive(Debug, Clone, Copy)]
pub struct CopyAssist {
    /// The request of the peer.
    pub request: AssistRequest,
    /// Number of chunks that this side has copied.
    pub done: u32,
}
