//! The processes under Motet of this host and of the session's user, with the paths, reasons and rates of their streams and links.
//!
//! All processes are scanned at most once in [`SCAN_INTERVAL`] however many clients ask, and not at all while none asks. The scan runs in a thread of its
//! own, and the programs do not notice it.

use crate::directory::Directory;
use crate::events::Events;
use crate::members::Members;
use crate::programs;
use axum::body::Bytes;
use motet_inspect::falls::Fall;
use motet_inspect::report::HostReport;
use motet_inspect::sampler::Sampler;
use motet_session::events::{Place, What};
use std::collections::HashSet;
use std::sync::{Arc, Mutex as BlockingMutex, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The least time between two scans.
pub const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Rates are of the time since the last scan, if that was not longer ago.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Events about falls of one scan.
const MAX_FALLS: usize = 32;

/// The scans. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Processes {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    host: String,
    directory: Directory,
    members: Members,
    events: Events,
    sampler: BlockingMutex<Sampler>,
    last: Mutex<Option<Scanned>>,
}

/// The last scan, as it is sent.
#[derive(Debug)]
struct Scanned {
    at: Instant,
    text: Bytes,
    falls: HashSet<Fall>,
}

impl Processes {
    /// No scan so far.
    pub fn new(host: &str, directory: &Directory, members: &Members, events: Events) -> Self {
        let (host, directory, members) = (host.to_owned(), directory.clone(), members.clone());
        let (sampler, last) = (BlockingMutex::default(), Mutex::default());
        Self { shared: Arc::new(Shared { host, directory, members, events, sampler, last }) }
    }

    /// The report, as JSON, which is at most [`SCAN_INTERVAL`] old. New falls become events.
    pub async fn report(&self) -> Result<Bytes, String> {
        let mut last = self.shared.last.lock().await;
        if let Some(scanned) = last.as_ref().filter(|scanned| scanned.at.elapsed() < SCAN_INTERVAL) {
            return Ok(scanned.text.clone());
        }
        let (shared, at) = (self.shared.clone(), Instant::now());
        let registered = programs::registered(&shared.directory, &shared.host).await;
        let scan = tokio::task::spawn_blocking(move || {
            let mut sampler = shared.sampler.lock().unwrap_or_else(PoisonError::into_inner);
            let mut processes = sampler.sample_with_rates(MAX_AGE);
            let user = rustix::process::geteuid().as_raw();
            processes.retain(|process| process.uid == Some(user));
            let mut report = HostReport::of(&shared.host, processes);
            let members = shared.members.find(registered);
            report.mark_session(&members.iter().map(|process| process.pid).collect());
            let text = serde_json::to_vec(&report).map(Bytes::from);
            text.map(|text| (text, report.falls)).map_err(|error| error.to_string())
        });
        let (text, falls) = scan.await.map_err(|error| error.to_string())??;
        let known = last.take().map(|scanned| scanned.falls).unwrap_or_default();
        for fall in falls.iter().filter(|fall| !known.contains(fall)).take(MAX_FALLS) {
            let place = Place { host: self.shared.host.clone(), pid: fall.pid };
            self.shared.events.publish(What::Fall { place, what: fall.what.clone(), reason: fall.reason.clone() });
        }
        *last = Some(Scanned { at, text: text.clone(), falls: falls.into_iter().collect() });
        Ok(text)
    }

    /// Looks for falls while any client follows the events, for as long as the gatekeeper runs.
    pub async fn watch_falls(self, interval: Duration) {
        loop {
            self.shared.events.followed().await;
            let _ = self.report().await; // one that fails is made again
            tokio::time::sleep(interval).await;
        }
    }
}
