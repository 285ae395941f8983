//! How a client reaches the exported files.

use super::connection::{Connection, Due, Memory};
use super::direct::Direct;
use super::open_files::OpenState;
use crate::Result;
use crate::identity::Identity;
use crate::protocol::{Operation, Reply};
use std::sync::Arc;

/// How a client reaches the exported files.
#[derive(Debug)]
pub enum Transport {
    /// By messages to the server.
    Messages(Arc<Connection>),
    /// The directory itself.
    Direct(Box<Direct>),
}

impl Transport {
    /// Makes a request for a user, or for the client itself; returns its answer, with the number of bytes in `into`. `operation` is called for each attempt.
    pub fn call<'a>(
        &self,
        identity: Option<&Identity>,
        operation: impl Fn() -> Result<Operation<'a>>,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize)> {
        match self {
            Self::Messages(connection) => connection.call(identity, operation, data, into),
            Self::Direct(direct) => direct.call(identity, &operation()?, data, into),
        }
    }

    /// Does what no program waits for with an open file: now, or when a server that is away is back.
    pub fn finish(&self, state: &Arc<OpenState>, due: Due) {
        match self {
            Self::Messages(connection) => connection.finish(state, due),
            Self::Direct(direct) => {
                // A file that is lost is closed already.
                let number = state.number();
                let _ = number.and_then(|file| direct.call(state.identity(), &due.operation(file), &[], &mut []));
            }
        }
    }

    /// Makes several requests at once; returns the answers, each as [`Transport::call`] does. `operation` is called with the position of a request in
    /// `memory`.
    pub fn call_together<'a>(
        &self,
        operation: impl Fn(usize) -> Result<Operation<'a>>,
        memory: &mut [Memory<'_>],
    ) -> Vec<Result<(Reply, usize)>> {
        match self {
            Self::Messages(connection) => connection.call_together(operation, memory),
            Self::Direct(direct) => {
                let one = |(at, Memory { data, into }): (usize, &mut Memory<'_>)| {
                    direct.call(None, &operation(at)?, data, into)
                };
                memory.iter_mut().enumerate().map(one).collect()
            }
        }
    }
}
