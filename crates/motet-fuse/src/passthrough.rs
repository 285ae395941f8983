//! Files of this host that the kernel reads and writes itself (FUSE passthrough, Linux 6.9), without a request for each read and write.
//!
//! The kernel allows it to processes with CAP_SYS_ADMIN. All opens of a file share one backing file.

use fuser::{BackingId, InitFlags, KernelConfig};
use motet_files::client::File;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The backing files of open files.
#[derive(Debug, Default)]
pub struct Passthrough {
    enabled: AtomicBool,
    open: Mutex<HashMap<u64, Weak<BackingId>>>,
}

impl Passthrough {
    /// Asks the kernel for it.
    pub fn prepare(&self, config: &mut KernelConfig) {
        let asked =
            config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() && config.set_max_stack_depth(1).is_ok();
        self.enabled.store(asked, Ordering::Relaxed);
    }

    /// The backing file of an open file. `register` makes one of a descriptor. `None`: the kernel asks for each read and write.
    pub fn backing(
        &self,
        number: u64,
        file: &File,
        register: impl FnOnce(OwnedFd) -> std::io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        if !self.enabled.load(Ordering::Relaxed) {
            return None;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = open.get(&number).and_then(Weak::upgrade) {
            return Some(backing);
        }
        let Ok(backing) = register(file.descriptor()?) else {
            // Without the privilege no file can have one.
            self.enabled.store(false, Ordering::Relaxed);
            return None;
        };
        let backing = Arc::new(backing);
        if open.len() == open.capacity() {
            open.retain(|_, backing| backing.strong_count() > 0);
        }
        open.insert(number, Arc::downgrade(&backing));
        Some(backing)
    }
}
