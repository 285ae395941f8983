//! A loaned message at its receiver, and the queue of those that were dropped.
//!
//! [`super::loans`] sends and receives loans.

use super::LinkId;
use motet_proto::message::slab::SlabId;
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::AsFd;
pub use motet_sys::shm_pool::{PeerBytes, ShmBlock as Loan};
use motet_sys::socket;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Loans that were dropped, until the node gives them back.
#[derive(Debug)]
pub struct ReleaseQueue {
    queue: Mutex<Vec<(LinkId, SlabId)>>,
    wakeup: Arc<PrivateFd>,
}

impl ReleaseQueue {
    /// Of a node that is woken by this eventfd.
    pub fn new(wakeup: Arc<PrivateFd>) -> Self {
        Self { queue: Mutex::default(), wakeup }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Vec<(LinkId, SlabId)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that lies where its sender has put it, and stays mapped as long as this.
///
/// The sender waits for its release: at once by [`super::Node::release_loan`]; by the next thread that makes progress when it is dropped.
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

    /// Over which link it came.
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
