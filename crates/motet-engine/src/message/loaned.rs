//! A loaned message at its receiver, and the queue of loaned messages that were dropped.
//!
//! How loans are sent and received is in [`super::loans`].

use super::LinkId;
use motet_proto::message::slab::SlabId;
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::AsFd;
pub use motet_sys::shm_pool::{PeerBytes, ShmBlock as Loan};
use motet_sys::socket;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Loaned messages that the program has dropped, until the node releases them.
#[derive(Debug)]
pub struct ReleaseQueue {
    queue: Mutex<Vec<(LinkId, SlabId)>>,
    wakeup: Arc<PrivateFd>,
}

impl ReleaseQueue {
    /// An empty queue of a node that the eventfd `wakeup` wakes.
    pub fn new(wakeup: Arc<PrivateFd>) -> Self {
        Self { queue: Mutex::default(), wakeup }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Vec<(LinkId, SlabId)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message in the memory of its sender, which stays mapped as long as this value exists.
///
/// The sender's pool gets the block back when the message is released: by [`super::Node::release_loan`] at once, or, if this value is dropped, by the
/// next thread that makes progress.
#[derive(Debug)]
pub struct LoanedMessage {
    part: PeerBytes,
    pub(super) link: LinkId,
    pub(super) record: Option<SlabId>,
    releases: Arc<ReleaseQueue>,
}

impl LoanedMessage {
    pub(super) fn new(part: PeerBytes, link: LinkId, record: SlabId, releases: Arc<ReleaseQueue>) -> Self {
        Self { part, link, record: Some(record), releases }
    }

    /// The link on which the message arrived.
    pub fn link(&self) -> LinkId {
        self.link
    }
}

impl Deref for LoanedMessage {
    type Target = PeerBytes;
    fn deref(&self) -> &PeerBytes {
        &self.part
    }
}

impl Drop for LoanedMessage {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        let mut queue = self.releases.queue();
        queue.push((self.link, record));
        if queue.len() == 1 {
            socket::ring_eventfd(self.releases.wakeup.as_fd().as_raw_fd());
        }
    }
}
