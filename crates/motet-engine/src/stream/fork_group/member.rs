//! The number of this process in its fork group, and the number of the child that it forked last.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// What a process knows of its number in the fork group.
#[derive(Debug, Default)]
pub struct MemberSlot {
    /// The number of this process.
    pub(in crate::stream) number: AtomicU32,
    /// The number of the child that was forked last.
    pub(in crate::stream) child: AtomicU32,
    /// When that child was forked, ns.
    pub(in crate::stream) forked: AtomicU64,
}
