//! The root that this process had when it was first asked for: paths that mean something else later are not followed.

use rustix::fs::stat;
use std::sync::OnceLock;

static BEGAN: OnceLock<Option<(u64, u64)>> = OnceLock::new();

fn now() -> Option<(u64, u64)> {
    stat("/").ok().map(|root| (root.st_dev, root.st_ino))
}

/// Remembers the root, once.
pub fn remember() {
    BEGAN.get_or_init(now);
}

/// Whether it still is the one that was remembered. A process that has entered a chroot must not write to, or read from, what a stranger
/// may have put there.
pub fn is_unchanged() -> bool {
    BEGAN.get_or_init(now).is_some_and(|began| now() == Some(began))
}
