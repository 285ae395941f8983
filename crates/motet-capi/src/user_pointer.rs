//! The pointer that a program passes with a function, and that comes back with each call of it.

use std::ffi::c_void;

/// The pointer. It is never dereferenced here.
pub struct UserPointer(pub *mut c_void);

// SAFETY: it is passed back unchanged and never dereferenced; the headers say in which threads functions run.
unsafe impl Send for UserPointer {}
// SAFETY: it is passed back unchanged and never dereferenced.
unsafe impl Sync for UserPointer {}

impl UserPointer {
    /// The pointer, for a call of the program's function.
    pub fn pointer(&self) -> *mut c_void {
        self.0
    }
}
