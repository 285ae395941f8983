//! The bytes of a region: memory, or a part of a file.
//!
//! Both kinds are read, written and changed by the same calls. Memory is changed by the processor's own atomic instructions. A part of a file is never loaded
//! from or stored to, so that a file that is cut short causes a refusal and no fault (docs/adr/0020). An atomic on a file reads, computes and writes; no
//! other access of this node happens in between, because every access holds the node's lock.
//!
//! The calls do not check key, rights and bounds: that is done before ([`crate::message::regions`]).

use super::{Atomic, SharedBytes};
use motet_proto::message::Status;
use motet_sys::file_region::{FileError, FileRegion};
use motet_sys::process_vm;
use std::sync::Arc;

/// The storage of a region.
#[derive(Debug, Clone)]
pub(in crate::message) enum RegionBytes {
    /// Memory of this process, valid as long as the region.
    Memory(SharedBytes),
    /// A part of a file.
    File(Arc<FileRegion>),
    /// A part of a memfd that is sealed against shrinking, and its mapping.
    Sealed(Arc<FileRegion>, SharedBytes),
}

/// The status of an access that a file has refused.
fn status(lost: FileError) -> Status {
    match lost {
        FileError::BeyondEnd => Status::OutOfBounds,
        FileError::System(_) => Status::AccessDenied,
    }
}

impl RegionBytes {
    /// The bytes of a part of a file.
    pub fn of(file: FileRegion) -> Self {
        let memory = file.memory();
        let file = Arc::new(file);
        match memory {
            Some(memory) => Self::Sealed(file, memory),
            None => Self::File(file),
        }
    }

    /// Number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Memory(memory) | Self::Sealed(_, memory) => memory.length() as u64,
            Self::File(file) => file.length() as u64,
        }
    }

    /// The part of a file, if the bytes are one.
    pub fn file(&self) -> Option<&Arc<FileRegion>> {
        match self {
            Self::Memory(_) => None,
            Self::File(file) | Self::Sealed(file, _) => Some(file),
        }
    }

    /// Writes bytes at an offset.
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        match self {
            Self::Memory(memory) | Self::Sealed(_, memory) => {
                memory.write(at as usize, bytes).map_err(|_| Status::OutOfBounds)
            }
            Self::File(file) => file.write(at as usize, bytes).map_err(status),
        }
    }

    /// Reads bytes at an offset.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        match self {
            Self::Memory(memory) | Self::Sealed(_, memory) => {
                memory.read(at as usize, into).map_err(|_| Status::OutOfBounds)
            }
            Self::File(file) => file.read(at as usize, into).map_err(status),
        }
    }

    /// Applies an atomic at an offset. `result` gets the previous values, or is empty.
    #[inline]
    pub fn apply_atomic(&self, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status> {
        match self {
            Self::Memory(memory) | Self::Sealed(_, memory) => {
                atomic.apply_shared(memory, at as usize, result).map_err(|_| Status::InvalidAtomic)
            }
            Self::File(file) => {
                let mut target = vec![0; atomic.length()];
                file.read(at as usize, &mut target).map_err(status)?;
                atomic.apply(&mut target, result).map_err(|_| Status::InvalidAtomic)?;
                file.write(at as usize, &target).map_err(status)
            }
        }
    }

    /// The address from which a peer can copy these bytes; `None`: there is none.
    pub fn address(&self, at: u64, length: u64) -> Option<u64> {
        match self {
            Self::Memory(memory) => Some(memory.base() as u64 + at),
            Self::File(file) | Self::Sealed(file, _) => file.address(at as usize, length as usize),
        }
    }

    /// Copies bytes out of another process's memory to an offset; returns how many. `None`: they cannot be copied in this way.
    pub fn copy_from(&self, pid: u32, from: u64, at: u64, length: usize) -> Option<usize> {
        match self {
            Self::Memory(memory) => {
                process_vm::read_into_shared(pid, from, &memory.part(at as usize, length).ok()?).ok()
            }
            Self::File(file) | Self::Sealed(file, _) => file.copy_from(pid, from, at as usize, length).ok(),
        }
    }
}
