//! The end of a stream whose peer broke the protocol, or whose order of bytes is unknown.

use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::sync::Ordering::Release;

/// Ends the stream for both halves: every later call fails with ECONNRESET.
#[cold]
pub(crate) fn break_stream(record: &StreamRecord) {
    record.lifecycle.state.store(State::Broken as u32, Release);
}
