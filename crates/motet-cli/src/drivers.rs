//! The drivers of this build, and the verdict on each of them for a stream.

use motet_wire::stream::record::State;
use serde::Serialize;

use crate::process_scan::{Path, Stream};

/// The names of all drivers, as in MOTET_DRIVERS.
pub fn names() -> Vec<&'static str> {
    motet::driver_table::DRIVERS.iter().map(|driver| driver.name()).collect()
}

/// Whether a stream or link uses a driver, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriverVerdict {
    /// The driver's name.
    pub driver: String,
    /// Whether payload uses the driver.
    pub in_use: bool,
    /// Why payload uses the driver, or why not.
    pub reason: String,
}

/// One verdict for each driver, the driver in use first.
pub fn verdicts(stream: &Stream) -> Vec<DriverVerdict> {
    let mut verdicts: Vec<DriverVerdict> = motet::driver_table::DRIVERS
        .iter()
        .map(|driver| {
            let (wire, fast) = (driver.streams().is_some(), stream.path == Path::Shm);
            let text = stream.reason_text;
            let reason = match (wire, fast) {
                (true, _) => text,
                (false, true) => "slower; carries what the faster path cannot",
                (false, false) if stream.state == State::Attached => {
                    "most bytes of the last 250 ms took it (most of all bytes, if none moved)"
                }
                (false, false) => "every stream starts on it",
            };
            DriverVerdict { driver: driver.name().to_owned(), in_use: wire == fast, reason: reason.to_owned() }
        })
        .collect();
    verdicts.sort_by_key(|v| !v.in_use);
    verdicts
}
