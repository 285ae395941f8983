//! The store in an etcd, which outlives every gatekeeper and which gatekeepers of several hosts share.
//!
//! The keys of a session have the prefix `/PREFIX/UID/SESSION/`. A write is a transaction that compares the key's revision. While etcd does
//! not answer, operations fail after a moment, and watchers wait.

use super::{Change, Expected, StoreError};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, GetOptions, KeyValue, KvClient,
    PutOptions, TlsOptions, Txn, TxnOp,
};
use motet_session::etcd_address::EtcdAddress;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An operation that etcd does not answer fails after this time.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// An operation that fails at once, as during a restart of etcd, is tried again for this time.
const RETRY_LIMIT: Duration = Duration::from_millis(300);
/// Pause before an operation is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(30);
/// A connection on which nothing is heard is checked at this interval. etcd allows no shorter one than 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);
/// The most bytes of an answer.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A store in an etcd. A clone is another handle.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    url: String,
    /// The prefix of all keys of the session.
    prefix: String,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("url", &self.shared.url).field("prefix", &self.shared.prefix).finish()
    }
}

impl Etcd {
    /// The store of a session. Fails if etcd does not answer.
    pub async fn open(address: &EtcdAddress, session: &str) -> Result<Self, StoreError> {
        let parts = address.parts().map_err(StoreError::Unavailable)?;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(ANSWER_LIMIT)
            .with_keep_alive(PING_INTERVAL, ANSWER_LIMIT)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if parts.tls {
            let authorities = address.read_authorities().map_err(StoreError::Unavailable)?;
            options = options.with_tls(TlsOptions::new().ca_certificate(Certificate::from_pem(authorities)));
        }
        if let Some((user, password)) = address.read_login().map_err(StoreError::Unavailable)? {
            options = options.with_user(user, password);
        }
        let failed = |why: String| StoreError::Unavailable(format!("etcd at {}: {why}", address.url));
        let connecting = Client::connect(&parts.servers, Some(options));
        let client = match tokio::time::timeout(ANSWER_LIMIT, connecting).await {
            Ok(client) => client.map_err(|error| failed(reason(&error)))?,
            Err(_) => return Err(failed("no answer".to_owned())),
        };
        let uid = rustix::process::getuid().as_raw();
        let prefix = format!("/{}/{uid}/{session}/", parts.prefix);
        let etcd = Self { shared: Arc::new(Shared { client, url: address.url.clone(), prefix }) };
        etcd.get("").await?;
        Ok(etcd)
    }

    /// See [`super::Store::get`].
    pub async fn get(&self, key: &str) -> Result<Option<(u64, String)>, StoreError> {
        let key = self.key(key);
        let read = |mut kv: KvClient| {
            let key = key.clone();
            async move { kv.get(key, None).await }
        };
        let mut answer = self.repeat(read).await?;
        answer.take_kvs().pop().map(|pair| Ok((revision(pair.mod_revision()), value(pair)?))).transpose()
    }

    /// See [`super::Store::list`].
    pub async fn list(&self, prefix: &str) -> Result<(Vec<Change>, u64), StoreError> {
        let key = self.key(prefix);
        let read = |mut kv: KvClient| {
            let key = key.clone();
            async move { kv.get(key, Some(GetOptions::new().with_prefix())).await }
        };
        let mut answer = self.repeat(read).await?;
        let now = answer.header().map_or(0, |header| revision(header.revision()));
        let changes = answer.take_kvs().into_iter().map(|pair| self.change(pair, true)).collect::<Result<_, _>>()?;
        Ok((changes, now))
    }

    /// See [`super::Store::write`].
    pub async fn write(&self, key: &str, value: Option<String>, expected: Expected) -> Result<u64, StoreError> {
        let compares = match expected {
            Expected::Any => vec![],
            Expected::Absent => vec![self.is_absent(key)],
            Expected::Revision(revision) => vec![self.is_at(key, revision)],
        };
        self.write_if(key, value, compares, None).await
    }

    /// Writes a value if the conditions are true, under a lease if there is one.
    ///
    /// An answer may be lost after the write has happened. The next attempt conflicts with that write then, so what the key holds decides.
    pub(crate) async fn write_if(
        &self,
        key: &str,
        value: Option<String>,
        compares: Vec<Compare>,
        lease: Option<i64>,
    ) -> Result<u64, StoreError> {
        let options = PutOptions::new().with_lease(lease.unwrap_or(0));
        let operation = match &value {
            Some(value) => TxnOp::put(self.key(key), value.clone(), Some(options)),
            None => TxnOp::delete(self.key(key), None),
        };
        let txn = Txn::new().when(compares).and_then([operation]);
        let mut attempts = 0;
        let write = |mut kv: KvClient| {
            attempts += 1;
            let txn = txn.clone();
            async move { kv.txn(txn).await }
        };
        let answer = self.repeat(write).await?;
        if answer.succeeded() {
            return Ok(answer.header().map_or(0, |header| revision(header.revision())));
        }
        match self.get(key).await? {
            Some((revision, now)) if attempts > 1 && value.as_deref() == Some(&now) => Ok(revision),
            None if attempts > 1 && value.is_none() => Ok(0),
            _ => Err(StoreError::Conflict),
        }
    }

    /// Removes all keys if one of them has this value, or is absent. Otherwise nothing happens.
    pub(crate) async fn clear(&self, (key, value): (&str, Option<&str>)) -> Result<(), StoreError> {
        let condition = match value {
            Some(value) => Compare::value(self.key(key), CompareOp::Equal, value),
            None => self.is_absent(key),
        };
        let all = TxnOp::delete(self.key(""), Some(DeleteOptions::new().with_prefix()));
        let txn = Txn::new().when([condition]).and_then([all]);
        let remove = |mut kv: KvClient| {
            let txn = txn.clone();
            async move { kv.txn(txn).await }
        };
        self.repeat(remove).await.map(drop)
    }

    /// The condition that a key does not exist.
    pub(crate) fn is_absent(&self, key: &str) -> Compare {
        Compare::create_revision(self.key(key), CompareOp::Equal, 0)
    }

    /// The condition that a key was last changed by this change.
    pub(crate) fn is_at(&self, key: &str, revision: u64) -> Compare {
        Compare::mod_revision(self.key(key), CompareOp::Equal, i64::try_from(revision).unwrap_or(i64::MAX))
    }

    /// The library's client, for watches and leases.
    pub(crate) fn client(&self) -> Client {
        self.shared.client.clone()
    }

    /// What an error of the library means.
    pub(crate) fn failed(&self, error: &Error) -> StoreError {
        StoreError::Unavailable(format!("etcd at {}: {}", self.shared.url, reason(error)))
    }

    /// The change in a pair of etcd. Not `is_put`: the key was removed.
    pub(super) fn change(&self, pair: KeyValue, is_put: bool) -> Result<Change, StoreError> {
        let key = pair.key_str().ok().and_then(|key| key.strip_prefix(&self.shared.prefix));
        let Some(key) = key.map(str::to_owned) else {
            return Err(StoreError::Unavailable("a key in etcd is damaged".to_owned()));
        };
        let revision = revision(pair.mod_revision());
        Ok(Change { revision, key, value: is_put.then(|| value(pair)).transpose()? })
    }

    /// A key as etcd has it.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.shared.prefix)
    }

    /// Does an operation, again for a moment if etcd is not there.
    async fn repeat<T, F>(&self, mut operation: impl FnMut(KvClient) -> F + Send) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let began = Instant::now();
        loop {
            let kv = self.shared.client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES);
            let error = match tokio::time::timeout(ANSWER_LIMIT, operation(kv)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => self.failed(&error),
                Err(_) => StoreError::Unavailable(format!("etcd at {}: no answer", self.shared.url)),
            };
            if began.elapsed() >= RETRY_LIMIT {
                return Err(error);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// The deepest cause of an error, which says most: the library's own text is often "transport error".
fn reason(error: &Error) -> String {
    let text = match error {
        Error::GRpcStatus(status) => {
            let mut cause: &dyn std::error::Error = status;
            while let Some(next) = cause.source() {
                cause = next;
            }
            if std::error::Error::source(status).is_some() { cause.to_string() } else { status.message().to_owned() }
        }
        error => error.to_string(),
    };
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// A revision of etcd, which is positive.
pub(super) fn revision(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn value(pair: KeyValue) -> Result<String, StoreError> {
    let (_, value) = pair.into_key_value();
    String::from_utf8(value).map_err(|_| StoreError::Unavailable("a value in etcd is damaged".to_owned()))
}
