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

    /// Registers a file. The kernel reads and writes it with the credentials that this thread has now: those of who has opened the file, so that quotas
    /// and reserved space are that user's. All opens share what the first one has registered.
    fn register(
        file: &File,
        register: impl FnOnce(OwnedFd) -> std::io::Result<BackingId>,
    ) -> std::io::Result<BackingId> {
        let descriptor = file.descriptor().ok_or(std::io::ErrorKind::Unsupported)?;
        let assumed = file.assume_opener()?;
        if let Some(assumed) = &assumed {
            assumed.with_administration()?;
        }
        register(descriptor)
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
        let backing = match Self::register(file, register) {
            Ok(backing) => Arc::new(backing),
            Err(error) => {
                // Without the privilege no file can have one.
                if error.kind() == std::io::ErrorKind::PermissionDenied {
                    self.enabled.store(false, Ordering::Relaxed);
                }
                return None;
            }
        };
        if open.len() == open.capacity() {
            open.retain(|_, backing| backing.strong_count() > 0);
        }
        open.insert(number, Arc::downgrade(&backing));
        Some(backing)
    }
}
