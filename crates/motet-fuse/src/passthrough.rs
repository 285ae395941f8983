//! Files of this host that the kernel reads and writes itself (FUSE passthrough, Linux 6.9), without a request for each read and write.
//!
//! The kernel allows it to processes with CAP_SYS_ADMIN. All opens of a file share one backing file, or none has one: the kernel refuses a mixture (EIO).

use crate::convert::raising_bits;
use fuser::{BackingId, InitFlags, KernelConfig};
use motet_files::client::File;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The backing files of open files.
#[derive(Debug, Default)]
pub struct Passthrough {
    enabled: AtomicBool,
    open: Mutex<Open>,
}

/// Open files, by their numbers.
#[derive(Debug, Default)]
struct Open {
    backed: HashMap<u64, Weak<BackingId>>,
    /// How many opens of a file have no backing file.
    plain: HashMap<u64, usize>,
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

    /// The backing file of an open file with this mode. `register` makes one of a descriptor. `None`: the kernel asks for each read and write, until
    /// [`Passthrough::closed`].
    pub fn backing(
        &self,
        (number, mode): (u64, u32),
        file: &File,
        register: impl FnOnce(OwnedFd) -> std::io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        if !self.enabled.load(Ordering::Relaxed) {
            return None;
        }
        let Open { backed, plain } = &mut *self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = backed.get(&number).and_then(Weak::upgrade) {
            return Some(backing);
        }
        // The kernel would write to a program that raises as who has opened it, and the program would go on to raise.
        let backing =
            if plain.contains_key(&number) || raising_bits(mode) != 0 { None } else { self.registered(file, register) };
        let Some(backing) = backing else {
            *plain.entry(number).or_default() += 1;
            return None;
        };
        if backed.len() == backed.capacity() {
            backed.retain(|_, backing| backing.strong_count() > 0);
        }
        backed.insert(number, Arc::downgrade(&backing));
        Some(backing)
    }

    fn registered(
        &self,
        file: &File,
        register: impl FnOnce(OwnedFd) -> std::io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        let registered = Self::register(file, register);
        // Without the privilege no file can have one.
        if registered.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
            self.enabled.store(false, Ordering::Relaxed);
        }
        registered.ok().map(Arc::new)
    }

    /// An open of a file without a backing file has ended.
    pub fn closed(&self, number: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = open.plain.entry(number) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
