//! The drivers that this build knows, and what a stream's reason says about each.

use motet_wire::stream::record::State;
use serde::Serialize;

use crate::process_scan::{Path, Stream};

/// Their names, as in MOTET_DRIVERS.
pub fn names() -> Vec<&'static str> {
    motet::driver_table::DRIVERS.iter().map(|driver| driver.name()).collect()
}

/// What became of one driver for one stream.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Verdict {
    /// Its name.
    pub driver: &'static str,
    /// Whether payload takes it now.
    pub in_use: bool,
    /// Why, or why not.
    pub reason: String,
}

/// One verdict for each driver, the one in use first.
pub fn verdicts(stream: &Stream) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = motet::driver_table::DRIVERS
        .iter()
        .map(|driver| {
            let (wire, fast) = (driver.capabilities().wire, stream.path == Path::Shm);
            let text = stream.reason_text;
            let reason = match (wire, fast) {
                (true, _) => text,
                (false, true) => "slower; carries what the faster path cannot",
                (false, false) if stream.state == State::Attached => {
                    "most bytes of the last moment, or of all, took it"
                }
                (false, false) => "every stream starts on it",
            };
            Verdict { driver: driver.name(), in_use: wire == fast, reason: reason.to_owned() }
        })
        .collect();
    verdicts.sort_by_key(|v| !v.in_use);
    verdicts
}
