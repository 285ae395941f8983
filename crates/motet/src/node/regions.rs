//! Regions: memory of this node that peers access by key, and operations on theirs.

use super::{
    Atomic, CompletionOptions, Error, Key, LinkId, Node, OperationId, OperationMemory, Rights, SharedBytes, Target,
    borrowed_memory,
};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

impl Node {
    /// Registers words as a region, for peers that get the key. [`Node::revoke`] ends it.
    #[inline]
    pub fn register_words(&self, words: &Arc<[AtomicU64]>, rights: Rights) -> Result<Key, Error> {
        self.0.register(borrowed_memory::words(words), rights, Some(Box::new(words.clone())))
    }

    /// Registers `length` bytes of a file from `offset` as a region. The region keeps its own descriptor. Any alignment is allowed, but atomics
    /// need an offset that is a multiple of 8.
    ///
    /// When the file is cut short, an access to missing bytes is refused as out of bounds. When the disk is full or fails, an access is
    /// denied, and [`Node::sync_region`] says why. An access may wait for the disk, and everything of this node with it. An atomic is one step
    /// with respect to this region only, unless the file is a memfd that is sealed against shrinking.
    ///
    /// Errors: [`Error::AccessDenied`]: the file is not open for that, or sealed against it. [`Error::OutOfBounds`]: it does not have these bytes.
    /// [`Error::InvalidAtomic`]: atomics at another offset. [`Error::File`] with EISDIR, ESPIPE (no regular file), EBADF (O_PATH), EINVAL (no bytes;
    /// O_DIRECT; O_APPEND and writable), EFBIG (RLIMIT_FSIZE), EOPNOTSUPP (huge pages), and errors of the system.
    #[inline]
    pub fn register_file(&self, file: impl AsFd, offset: u64, length: u64, rights: Rights) -> Result<Key, Error> {
        self.0.register_file(file, offset, length, rights)
    }

    /// Waits until bytes of a region over a file are on the disk (fdatasync): those of every put and atomic that has completed, and other writes
    /// there. Other calls on the node continue.
    ///
    /// Errors: [`Error::Unknown`]: no such region. [`Error::InvalidAtomic`]: not a file's region. [`Error::OutOfBounds`]: out of bounds, or the file is shorter;
    /// what it has is on the disk. [`Error::File`]: after EIO or ENOSPC bytes may be lost.
    #[inline]
    pub fn sync_region(&self, key: Key, offset: u64, length: u64) -> Result<(), Error> {
        self.0.sync_region(key, offset, length)
    }

    /// Allocates a region of zeros that peers of this host can open. It is this node's until [`Node::revoke`]; the view reads as zeros after that.
    #[inline]
    pub fn alloc_region(&self, size: usize, rights: Rights) -> Result<(SharedBytes, Key), Error> {
        self.0.alloc_region(size, rights)
    }

    /// Ends a region: refuses new accesses, and waits until no access is in progress and every peer that could have it mapped has answered or lost
    /// its link. Then the memory is the caller's alone.
    ///
    /// Errors: [`Error::TimedOut`], or [`Error::WouldBlock`] in a handler: the memory is still used; call again. [`Error::Unknown`]: there is no
    /// such region, or it has ended since such a call.
    #[inline]
    pub fn revoke(&self, key: Key, deadline: Option<u64>) -> Result<(), Error> {
        self.0.revoke(key, deadline)
    }

    /// Opens a region of a peer. True: loads, stores, puts and gets use its memory directly until the peer revokes it. False: it cannot be
    /// mapped; everything goes by packets.
    #[inline]
    pub fn open_region(&self, link: LinkId, key: Key, deadline: Option<u64>) -> Result<bool, Error> {
        self.0.open_region(link, key, deadline)
    }

    /// Writes bytes into a region that is open. False: it is not open, or others of this node's accesses are outstanding; nothing is done.
    #[inline]
    pub fn store(&self, at: Target, bytes: &[u8]) -> Result<bool, Error> {
        self.0.store(at, bytes)
    }

    /// Reads bytes of a region that is open. False: it is not open, or others of this node's accesses are outstanding; nothing is done.
    #[inline]
    pub fn load(&self, at: Target, into: &mut [u8]) -> Result<bool, Error> {
        self.0.load(at, into)
    }

    /// Starts to write `memory` into a region of a peer; completes when the bytes are there. [`Error::WouldBlock`]: there is no room.
    #[inline]
    pub fn put(&self, at: Target, memory: OperationMemory, options: CompletionOptions) -> Result<OperationId, Error> {
        self.0.put(at, memory, options)
    }

    /// Starts a put, and waits until there is room for it.
    #[inline]
    pub fn put_until(
        &self,
        at: Target,
        memory: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.0.put_until(at, memory, options, deadline)
    }

    /// Starts to read bytes of a region of a peer, as many as `memory` has. [`Error::WouldBlock`]: there is no room.
    #[inline]
    pub fn get(&self, at: Target, memory: OperationMemory, options: CompletionOptions) -> Result<OperationId, Error> {
        self.0.get(at, memory, options)
    }

    /// Starts a get, and waits until there is room for it.
    #[inline]
    pub fn get_until(
        &self,
        at: Target,
        memory: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.0.get_until(at, memory, options, deadline)
    }

    /// Starts an atomic on a region of a peer. The values from before the change go to `result`, unless it is empty. [`Error::WouldBlock`]: there
    /// is no room.
    #[inline]
    pub fn atomic(
        &self,
        at: Target,
        atomic: &Atomic<'_>,
        result: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.0.atomic(at, atomic, result, options)
    }

    /// Starts an atomic, and waits until there is room for it.
    #[inline]
    pub fn atomic_until(
        &self,
        at: Target,
        atomic: &Atomic<'_>,
        result: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.0.atomic_until(at, atomic, result, options, deadline)
    }

    /// Starts a fence: it completes when every put, get and atomic that was started on the link before it has completed.
    #[inline]
    pub fn fence(&self, link: LinkId, options: CompletionOptions) -> Result<OperationId, Error> {
        self.0.fence(link, options)
    }
}
