//! Detects a changed root directory (chroot): paths of the settings are not followed in another root than the first one.

use rustix::fs::stat;
use std::sync::OnceLock;

static FIRST_ROOT: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// Device and inode of the root directory.
fn current() -> Option<(u64, u64)> {
    stat("/").ok().map(|root| (root.st_dev, root.st_ino))
}

/// Remembers the current root. Later calls do nothing.
pub fn remember() {
    FIRST_ROOT.get_or_init(current);
}

/// Whether the root is the remembered one; the first call of either function remembers it. In a chroot another user may have prepared the
/// files at a path, so the process must neither read nor write them.
pub fn is_unchanged() -> bool {
    FIRST_ROOT.get_or_init(current).is_some_and(|first| current() == Some(first))
}
