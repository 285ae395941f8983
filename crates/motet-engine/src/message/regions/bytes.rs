//! The bytes of a region: memory, or a part of a file.
//!
//! What it is: one way to read, write and change them, whatever they are. Memory is changed by the processor's own atomic instructions. A part of
//! a file is never loaded from or stored to, so that a file that is cut short is a refusal and no fault (docs/adr/0020); an atomic there
//! reads, computes and writes. Nobody else of this node's is in between, as all that happens under the node's lock.
//!
//! What it is not: key, rights and bounds have been checked before ([`super::regions`]).

use super::{Atomic, SharedBytes};
use motet_proto::message::Status;
use motet_sys::file_region::{FileError, FileRegion};
use motet_sys::process_vm;
use std::sync::Arc;

/// What lies behind a region.
#[derive(Debug, Clone)]
pub(in crate::message) enum Bytes {
    /// Memory of this process, for as long as the region.
    Memory(SharedBytes),
    /// A part of a file.
    File(Arc<FileRegion>),
    /// A part of a file that is memory, and cannot shrink.
    Sealed(Arc<FileRegion>, SharedBytes),
}

/// How an access ends that a file does not let through.
fn status(lost: FileError) -> Status {
    match lost {
        FileError::BeyondEnd => Status::OutOfBounds,
        FileError::System(_) => Status::AccessDenied,
    }
}

impl Bytes {
    /// Of a file.
    pub fn of(part: FileRegion) -> Self {
        let callbacks = part.memory();
        let part = Arc::new(part);
        match callbacks {
            Some(callbacks) => Self::Sealed(part, callbacks),
            None => Self::File(part),
        }
    }

    /// How many.
    pub fn length(&self) -> u64 {
        match self {
            Self::Memory(callbacks) | Self::Sealed(_, callbacks) => callbacks.length() as u64,
            Self::File(part) => part.length() as u64,
        }
    }

    /// The file's part, if they are one.
    pub fn file(&self) -> Option<&Arc<FileRegion>> {
        match self {
            Self::Memory(_) => None,
            Self::File(part) | Self::Sealed(part, _) => Some(part),
        }
    }

    /// Writes some.
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        match self {
            Self::Memory(callbacks) | Self::Sealed(_, callbacks) => {
                callbacks.write(at as usize, bytes).map_err(|_| Status::OutOfBounds)
            }
            Self::File(part) => part.write(at as usize, bytes).map_err(status),
        }
    }

    /// Reads some.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        match self {
            Self::Memory(callbacks) | Self::Sealed(_, callbacks) => {
                callbacks.read(at as usize, into).map_err(|_| Status::OutOfBounds)
            }
            Self::File(part) => part.read(at as usize, into).map_err(status),
        }
    }

    /// Does an atomic; `result` takes the values before, or is empty.
    #[inline]
    pub fn change(&self, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status> {
        match self {
            Self::Memory(callbacks) | Self::Sealed(_, callbacks) => {
                atomic.apply_shared(callbacks, at as usize, result).map_err(|_| Status::InvalidAtomic)
            }
            Self::File(part) => {
                let mut target = vec![0; atomic.length()];
                part.read(at as usize, &mut target).map_err(status)?;
                atomic.apply(&mut target, result).map_err(|_| Status::InvalidAtomic)?;
                part.write(at as usize, &target).map_err(status)
            }
        }
    }

    /// Where a peer can copy these from; `None`: nowhere.
    pub fn address(&self, at: u64, length: u64) -> Option<u64> {
        match self {
            Self::Memory(callbacks) => Some(callbacks.base() as u64 + at),
            Self::File(part) | Self::Sealed(part, _) => part.address(at as usize, length as usize),
        }
    }

    /// Copies bytes out of another process's memory; returns how many. `None`: not in this way.
    pub fn copy_from(&self, pid: u32, from: u64, at: u64, length: usize) -> Option<usize> {
        match self {
            Self::Memory(callbacks) => {
                process_vm::read_into_shared(pid, from, &callbacks.part(at as usize, length).ok()?).ok()
            }
            Self::File(part) | Self::Sealed(part, _) => part.copy_from(pid, from, at as usize, length).ok(),
        }
    }
}
