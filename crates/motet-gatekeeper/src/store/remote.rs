//! The store of the primary gatekeeper, over the link to it.

use super::{Change, Expected, StoreError};
use crate::hosts::Hosts;
use crate::link::Answer;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The wait for a link, and for an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest answer, bytes: a list of the largest groups.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// An operation on the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// See [`super::Store::get`].
    Get {
        /// The key.
        key: String,
    },
    /// See [`super::Store::list`].
    List {
        /// The beginning of the keys.
        prefix: String,
    },
    /// See [`super::Store::write`].
    Write {
        /// The key.
        key: String,
        /// The new value.
        value: Option<String>,
        /// What must be true of the key.
        expected: Expected,
    },
}

/// The result of an operation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Of a get.
    Value(Option<(u64, String)>),
    /// Of a list.
    List(Vec<Change>, u64),
    /// Of a write.
    Written(u64),
    /// What was expected of the key is not true.
    Conflict,
    /// The store cannot be used.
    Unavailable(String),
}

/// The store.
#[derive(Debug, Clone)]
pub struct Remote {
    hosts: Hosts,
}

impl Remote {
    /// The store of the primary that these hosts are connected to.
    pub fn new(hosts: Hosts) -> Self {
        Self { hosts }
    }

    /// See [`super::Store::get`].
    pub async fn get(&self, key: &str) -> Result<Option<(u64, String)>, StoreError> {
        match self.run(&Operation::Get { key: key.to_owned() }).await? {
            Outcome::Value(value) => Ok(value),
            other => Err(unexpected(other)),
        }
    }

    /// See [`super::Store::list`].
    pub async fn list(&self, prefix: &str) -> Result<(Vec<Change>, u64), StoreError> {
        match self.run(&Operation::List { prefix: prefix.to_owned() }).await? {
            Outcome::List(changes, revision) => Ok((changes, revision)),
            other => Err(unexpected(other)),
        }
    }

    /// See [`super::Store::write`]. A link that breaks during a write leaves it open whether the write was done.
    pub async fn write(&self, key: &str, value: Option<String>, expected: Expected) -> Result<u64, StoreError> {
        match self.run(&Operation::Write { key: key.to_owned(), value, expected }).await? {
            Outcome::Written(revision) => Ok(revision),
            Outcome::Conflict => Err(StoreError::Conflict),
            other => Err(unexpected(other)),
        }
    }

    async fn run(&self, operation: &Operation) -> Result<Outcome, StoreError> {
        let body = serde_json::to_vec(operation).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let answer = self.request("POST", "/v1/store", body).await?;
        let status = answer.status;
        let body = answer.bytes(MAX_ANSWER_BYTES, LIMIT).await.map_err(|error| away(&error.to_string()))?;
        match status {
            200 => serde_json::from_slice(&body).map_err(|_| away("its answer is not understood")),
            _ => Err(away(&format!("it answers with HTTP status {status}"))),
        }
    }

    async fn request(&self, method: &str, path: &str, body: Vec<u8>) -> Result<Answer, StoreError> {
        let (_, link) = self.hosts.uplink(LIMIT).await.ok_or_else(|| away("it is not connected"))?;
        link.request(method, path, body, LIMIT).await.map_err(|error| away(&error.to_string()))
    }

    /// See [`super::Store::watch`].
    pub fn watch(&self, prefix: &str, revision: u64) -> Watch {
        Watch { store: self.clone(), prefix: prefix.to_owned(), revision, state: State::Closed, partial: Vec::new() }
    }
}

fn away(why: &str) -> StoreError {
    StoreError::Disconnected(format!("the primary gatekeeper: {why}"))
}

fn unexpected(outcome: Outcome) -> StoreError {
    match outcome {
        Outcome::Unavailable(why) => StoreError::Unavailable(why),
        _ => away("its answer is not understood"),
    }
}

/// A watcher. After a break of the link it reports [`StoreError::Compacted`]: the primary may be another process by then.
#[derive(Debug)]
pub struct Watch {
    store: Remote,
    prefix: String,
    revision: u64,
    state: State,
    /// A line that has not ended yet.
    partial: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Closed,
    Open(Answer),
    Broken,
}

impl Watch {
    /// See [`super::Watch::next`].
    pub async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            match &mut self.state {
                State::Broken => return Err(StoreError::Compacted),
                State::Closed => {
                    let path = format!("/v1/store/watch?revision={}&prefix={}", self.revision, self.prefix);
                    let answer = self.store.request("GET", &path, Vec::new()).await?;
                    self.state = if answer.status == 200 { State::Open(answer) } else { State::Broken };
                }
                State::Open(answer) => {
                    if let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
                        let line: Vec<u8> = self.partial.drain(..=end).collect();
                        return serde_json::from_slice(&line).map_err(|_| away("its changes are not understood"));
                    }
                    match answer.next().await {
                        Ok(Some(part)) if self.partial.len() + part.len() <= MAX_ANSWER_BYTES => {
                            self.partial.extend(part);
                        }
                        _ => self.state = State::Broken,
                    }
                }
            }
        }
    }
}
