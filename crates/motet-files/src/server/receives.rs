//! The receives that a server has posted for what its clients send unasked: requests and acknowledgements.
//!
//! Any client can take any of them, so they are for whole messages: a request that is announced, or begins to arrive, and does not come waits at the engine
//! within the bounds of its own link, without a receive.
//!
//! One that cannot be posted, because the engine has no operation left, is *owed*: the thread that has the turn tries it again. No thread ends for it.

use super::{ACKNOWLEDGEMENTS, ACKNOWLEDGEMENTS_POSTED, MAX_ACKNOWLEDGEMENT_BYTES, POSTED, REQUESTS, Shared};
use crate::Result;
use crate::engine_error as failed;
use crate::protocol::{MAX_REQUEST_BYTES, SLOT_MASK, acknowledgement_tag, request_tag};
use motet::node::{CompletionOptions, OperationMemory, RecvFrom, deadline_in};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How soon receives that are owed are tried again, ns.
const RETRY_NS: u64 = 50_000_000;

/// What is received.
#[derive(Debug, Clone, Copy)]
pub enum Expected {
    /// A request.
    Request,
    /// An acknowledgement.
    Acknowledgement,
}

/// How many receives of each kind are owed.
#[derive(Debug, Default)]
pub struct Owed([AtomicUsize; 2]);

impl Owed {
    fn of(&self, expected: Expected) -> &AtomicUsize {
        match expected {
            Expected::Request => &self.0[0],
            Expected::Acknowledgement => &self.0[1],
        }
    }
}

impl Shared {
    /// Posts the receives of a server that starts.
    pub(super) fn post_receives(&self) -> Result<()> {
        (0..POSTED).try_for_each(|_| self.post(Expected::Request, Vec::new()))?;
        (0..ACKNOWLEDGEMENTS_POSTED).try_for_each(|_| self.post(Expected::Acknowledgement, Vec::new()))
    }

    /// Posts a receive with this memory, which gets the length of the longest message.
    fn post(&self, expected: Expected, mut memory: Vec<u8>) -> Result<()> {
        let (user_data, tag, ignore, length) = match expected {
            Expected::Request => (REQUESTS, request_tag(0), SLOT_MASK, MAX_REQUEST_BYTES),
            Expected::Acknowledgement => (ACKNOWLEDGEMENTS, acknowledgement_tag(), 0, MAX_ACKNOWLEDGEMENT_BYTES),
        };
        memory.resize(length, 0);
        let options = CompletionOptions { cq: Some(self.cq), user_data, errors_only: false };
        let memory = OperationMemory::Owned(memory);
        self.node.post(RecvFrom::Any(self.context), tag, ignore, memory, options).map(drop).map_err(failed)
    }

    /// A receive has completed: posts it again with its memory, or owes it.
    pub(super) fn post_again(&self, expected: Expected, memory: Vec<u8>) {
        if self.post(expected, memory).is_err() {
            self.owed.of(expected).fetch_add(1, Ordering::AcqRel);
            // The thread that has the turn may wait already, and without a limit.
            let _ = self.node.signal_cq(self.cq);
        }
    }

    /// Posts the receives that are owed. Returns until when the caller may wait: there are more of them. Called by the thread that has the turn.
    pub(super) fn post_owed(&self) -> Option<u64> {
        for expected in [Expected::Request, Expected::Acknowledgement] {
            let owed = self.owed.of(expected);
            while owed.load(Ordering::Acquire) > 0 {
                if self.post(expected, Vec::new()).is_err() {
                    return Some(deadline_in(RETRY_NS));
                }
                owed.fetch_sub(1, Ordering::AcqRel);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, Server, THREADS};
    use super::*;
    use crate::client::{Client, Source};
    use motet::node::OperationId;
    use std::iter;
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(60);

    fn count(Owed(owed): &Owed) -> usize {
        owed.iter().map(|owed| owed.load(Ordering::Acquire)).sum()
    }

    /// Waits until a server owes so many receives.
    fn wait_for_owed(shared: &Shared, expected: usize) {
        let until = Instant::now() + LIMIT;
        while count(&shared.owed) != expected {
            assert!(Instant::now() < until, "{} receives are owed", count(&shared.owed));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Each client takes the operation that the receive of its first request has left.
    #[test]
    fn no_thread_ends_when_operations_are_used_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("receives-{}", std::process::id());
        let options = Options { name: name.clone(), directory: folder.path().to_owned(), ..Options::default() };
        let server = Server::start(options).expect("a server");
        let shared = &server.part.shared;
        let context = shared.node.context().expect("a context");
        let cq = shared.node.add_cq().expect("a queue");
        let options = CompletionOptions { cq: Some(cq), user_data: 0, errors_only: false };
        let post = || {
            let memory = OperationMemory::Owned(Vec::new());
            shared.node.post(RecvFrom::Any(context), 0, 0, memory, options).ok()
        };
        let used: Vec<OperationId> = iter::from_fn(post).collect();
        let clients: Vec<_> = (0..2 * THREADS)
            .map(|number| {
                let client = Client::connect(Source::Name(name.clone()), Some(LIMIT));
                client.unwrap_or_else(|error| panic!("client {number}: {error}"))
            })
            .collect();
        wait_for_owed(shared, clients.len());
        // There are operations again.
        for operation in used.iter().take(4 * THREADS) {
            shared.node.cancel(*operation).expect("a receive");
            shared.node.wait_cq(cq, None).expect("its completion");
        }
        wait_for_owed(shared, 0);
        for client in &clients {
            client.attributes(b"").expect("the export");
            client.close();
        }
        assert!(server.part.threads.iter().all(|thread| !thread.is_finished()));
    }
}
