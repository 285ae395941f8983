//! The driver table: the only place that names drivers.

use motet_config::Config;
use motet_engine::Options;
use motet_engine::driver::Driver;

/// All drivers.
pub static DRIVERS: &[&dyn Driver] = &[&motet_driver_shm::Shm, &motet_driver_tcp::Tcp];

/// The large ring of a stream with bulk data, bytes: larger than the caches between two uses of a line.
const LARGE_RING_BYTES: usize = 4 << 20;
/// Shortest single copy without a profile, bytes: between CPUs that share a cache, and between others (docs/hot-path.md).
const SINGLE_COPY_MIN_BYTES: usize = 2 << 20;
const SINGLE_COPY_MIN_BYTES_FAR: usize = 512 << 10;

/// The engine's options from the settings.
pub fn options(config: Config) -> Options {
    let allowed = DRIVERS.iter().map(|d| d.name()).filter(|name| !config.disable && config.drivers.allows(name));
    let mut allowed: Vec<String> = allowed.map(str::to_owned).collect();
    if allowed.is_empty() {
        allowed.push("none".to_owned());
    }
    let single_copy = |bytes: u64, default: usize| match (config.single_copy, bytes as usize) {
        (false, _) => usize::MAX,
        (true, 0) => default,
        (true, bytes) => bytes,
    };
    Options {
        drivers: DRIVERS,
        allowed,
        ring: config.ring,
        bulk: LARGE_RING_BYTES,
        streams: config.streams,
        memory: config.memory as usize,
        huge: config.huge_pages,
        spin: config.spin,
        patience: config.patience,
        hot: config.hot,
        single_copy: single_copy(config.single_copy_min, SINGLE_COPY_MIN_BYTES),
        single_copy_far: single_copy(config.single_copy_min_far, SINGLE_COPY_MIN_BYTES_FAR),
        half_copy: config.half_copy_min as usize,
        log: config.log,
        profile: config.profile,
    }
}
