//! Where a client finds the server of an export.

use crate::Result;
use crate::exports::{self, Query};

/// How a server is found, each time a client connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// By its name on this host.
    Name(String),
    /// At this address, which contains a secret.
    Address(String),
}

impl Source {
    /// The address of the server at present.
    pub fn address(&self) -> Result<String> {
        match self {
            Self::Name(name) => Ok(exports::ask(name, &Query::default())?.info.address),
            Self::Address(address) => Ok(address.clone()),
        }
    }
}
