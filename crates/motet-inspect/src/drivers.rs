//! The drivers of this build, and the verdict on a driver for a stream or link.

use serde::{Deserialize, Serialize};

/// The names of all drivers, as in MOTET_DRIVERS.
pub fn names() -> Vec<&'static str> {
    motet::driver_table::DRIVERS.iter().map(|driver| driver.name()).collect()
}

/// Whether a stream or link uses a driver, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DriverVerdict {
    /// The driver's name.
    pub driver: String,
    /// Whether payload uses the driver.
    pub in_use: bool,
    /// Why payload uses the driver, or why not.
    pub reason: String,
}
