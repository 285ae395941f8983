//! The number of this process in its fork group, and that of the child that it has forked last.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// What a process knows of its number in the fork group.
#[derive(Debug, Default)]
pub struct MemberSlot {
    pub(in crate::stream) number: AtomicU32,
    /// The number of the child that was forked last, and when (ns).
    pub(in crate::stream) child: AtomicU32,
    pub(in crate::stream) forked: AtomicU64,
}
