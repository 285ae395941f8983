//! Squashed requests: those that are executed as the user of this process although another user makes them.
//!
//! What such a request makes or changes may belong to the user of this process, and its maker can often reach the file in another way, too. So it never becomes a program
//! that runs with the rights of its owner or group: the mode that a request names loses these bits, and a change of a file's content or owner removes them,
//! as the kernel does for users without capabilities.

use super::tree::Tree;
use crate::Result;
use crate::identity::Identity;
use rustix::fs::FileType;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::marker::PhantomData;

/// The bits of a mode that a squashed request may name: all but set-user-id and set-group-id.
const PERMISSIONS: u32 = 0o1777;
const SET_GROUP_ID: u32 = 0o2000;

/// How the modes of a request are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    squashed: bool,
}

impl Modes {
    /// Those of a request of this user.
    pub fn of(tree: &Tree, identity: Option<&Identity>) -> Self {
        Self { squashed: tree.squashes(identity) }
    }

    /// Whether the request is squashed.
    pub fn is_squashed(self) -> bool {
        self.squashed
    }

    /// The permissions of a new file for which a request names `mode`.
    pub fn of_new(self, mode: u32) -> u32 {
        if self.squashed { mode & PERMISSIONS } else { mode & 0o7777 }
    }

    /// The permissions that a file with the mode `found` gets if a request names `mode`. A directory keeps its set-group-id bit, which gives no rights to programs.
    pub fn changed(self, mode: u32, found: u32) -> u32 {
        let is_directory = FileType::from_raw_mode(found) == FileType::Directory;
        let kept = if is_directory { mode & found & SET_GROUP_ID } else { 0 };
        self.of_new(mode) | kept
    }
}

/// This thread lacks CAP_FSETID, with which changes of a file leave its set-user-id and set-group-id bits. Dropping it gives the capability back.
#[derive(Debug)]
#[must_use = "the thread lacks the capability as long as this exists"]
pub struct WithoutFsetid {
    before: Option<CapabilitySets>,
    /// A thread gives back what it has put away itself.
    _thread: PhantomData<*const ()>,
}

impl WithoutFsetid {
    /// Puts the capability away, if this thread has it.
    pub fn begin() -> Result<Self> {
        let sets = capabilities(None)?;
        let has_it = sets.effective.contains(CapabilitySet::FSETID);
        if has_it {
            set_capabilities(None, CapabilitySets { effective: sets.effective - CapabilitySet::FSETID, ..sets })?;
        }
        Ok(Self { before: has_it.then_some(sets), _thread: PhantomData })
    }
}

impl Drop for WithoutFsetid {
    fn drop(&mut self) {
        if let Some(sets) = self.before {
            // A thread that could not would have fewer rights than before, which is safe.
            let _ = set_capabilities(None, sets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_squashed_requests_give_programs_no_rights() {
        let (own, squashed) = (Modes { squashed: false }, Modes { squashed: true });
        assert_eq!((own.of_new(0o106_755), squashed.of_new(0o106_755)), (0o6755, 0o755));
        assert_eq!((own.of_new(0o1777), squashed.of_new(0o1777)), (0o1777, 0o1777));
        let (file, directory) = (0o102_755, 0o042_755);
        assert_eq!((own.changed(0o6755, file), squashed.changed(0o6755, file)), (0o6755, 0o755));
        assert_eq!(squashed.changed(0o6775, directory), 0o2775, "it had the bit");
        assert_eq!(squashed.changed(0o6775, 0o040_755), 0o775, "it had not");
    }

    #[test]
    fn a_thread_has_its_capability_again() {
        let effective = || capabilities(None).expect("capabilities").effective;
        let before = effective();
        let without = WithoutFsetid::begin().expect("put away");
        assert_eq!(effective(), before - CapabilitySet::FSETID);
        drop(without);
        assert_eq!(effective(), before);
    }
}
