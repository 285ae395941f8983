//! The table of settings. A new setting needs one row here and the field of [`Config`] that it fills.

use crate::config::{Config, Drivers, Mpi};
use crate::kind::{Value, ValueKind};

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Key in the file, and name for `motet run --set`.
    pub name: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// What a value looks like.
    pub kind: ValueKind,
    /// The value when nothing sets it, as a user would write it.
    pub default: &'static str,
    /// One or two sentences.
    pub help: &'static str,
    /// Puts a checked value into its field.
    pub(crate) apply: fn(&mut Config, Value),
}

/// Every setting.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "disable",
        env: "MOTET_DISABLE",
        kind: ValueKind::Bool,
        default: "false",
        help: "Keep every connection on TCP, as without Motet.",
        apply: |c, v| c.disable = v.flag(),
    },
    Setting {
        name: "drivers",
        env: "MOTET_DRIVERS",
        kind: ValueKind::List,
        default: "",
        help: "Drivers that may be used, such as `shm,tcp`; or, each with a minus sign, drivers that may not: `-shm`. \
               Empty allows all. Every stream starts on TCP, which is never off.",
        apply: |c, v| c.drivers = Drivers::parse(&v.words()),
    },
    Setting {
        name: "ring",
        env: "MOTET_RING",
        kind: ValueKind::Bytes { min: 4096, max: 1 << 24, power_of_two: true },
        default: "64KiB",
        help: "Shared-memory ring of one direction of a stream. A larger one lets a sender run further ahead.",
        apply: |c, v| c.ring = v.number() as usize,
    },
    Setting {
        name: "streams",
        env: "MOTET_STREAMS",
        kind: ValueKind::Number { min: 16, max: 1 << 20, unit: "streams" },
        default: "16384",
        help: "Streams that a process has room for at one time; further streams stay on TCP. Memory is allocated as it is used.",
        apply: |c, v| c.streams = v.number() as usize,
    },
    Setting {
        name: "memory",
        env: "MOTET_MEMORY",
        kind: ValueKind::Bytes { min: 0, max: 1 << 46, power_of_two: false },
        default: "4GiB",
        help: "Most shared memory that the streams of a process may take, two rings and a page each; further streams stay on TCP. \
               Pages are allocated when a stream first receives. Large rings for bulk data are not counted: 128 MiB at most.",
        apply: |c, v| c.memory = v.number(),
    },
    Setting {
        name: "huge_pages",
        env: "MOTET_HUGE_PAGES",
        kind: ValueKind::Choice(&["off", "try"]),
        default: "off",
        help: "Ask for huge pages for the large rings of streams with bulk data. They are used where the system allows them for \
               shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise, within_size or always).",
        apply: |c, v| c.huge_pages = v.choice() == 1,
    },
    Setting {
        name: "omniorb",
        env: "MOTET_OMNIORB",
        kind: ValueKind::Choice(&["off", "on"]),
        default: "on",
        help: "Use the omniORB adapter, a transport inside the ORB. Off leaves its connections to the sockets adapter.",
        apply: |c, v| c.omniorb = v.choice() == 1,
    },
    Setting {
        name: "omniorb_message",
        env: "MOTET_OMNIORB_MESSAGE",
        kind: ValueKind::Bytes { min: 0, max: u32::MAX as u64, power_of_two: false },
        default: "256MiB",
        help: "Largest message that omniORB sends and accepts under Motet, where the program and its user set no limit \
               (giopMaxMsgSize). 0 keeps the ORB's own limit, 2 MiB.",
        apply: |c, v| c.omniorb_message = v.number(),
    },
    Setting {
        name: "omniorb_huge",
        env: "MOTET_OMNIORB_HUGE",
        kind: ValueKind::Choice(&["off", "on"]),
        default: "on",
        help: "Ask for huge pages where omniORB receives 4 MiB and more at once: fresh memory then takes one page fault for 2 MiB.",
        apply: |c, v| c.omniorb_huge = v.choice() == 1,
    },
    Setting {
        name: "mpi",
        env: "MOTET_MPI",
        kind: ValueKind::Choice(&["auto", "on", "off"]),
        default: "auto",
        help: "Configure MPI libraries for Motet's libfabric provider, where the user's own settings do not choose another. Auto \
               does so for MPICH and Intel MPI in jobs on several hosts; on one host, and with Open MPI, the library keeps its \
               own transport. Off never does; the library's sockets then use the sockets adapter.",
        apply: |c, v| c.mpi = Mpi::ALL[v.choice()],
    },
    Setting {
        name: "spin",
        env: "MOTET_SPIN",
        kind: ValueKind::Nanoseconds { max: 1_000_000_000 },
        default: "60us",
        help: "How long a waiting call polls shared memory before it sleeps in the kernel. 0 never spins.",
        apply: |c, v| c.spin = v.number(),
    },
    Setting {
        name: "patience",
        env: "MOTET_PATIENCE",
        kind: ValueKind::Nanoseconds { max: 1_000_000_000 },
        default: "0",
        help: "For tests and diagnosis: how long a wait goes on polling shared memory after its spin, with pauses between polls, \
               before it sleeps in the kernel. With 300ms payload uses the ring even on a busy machine; it costs CPU time, \
               and a signal handler that runs meanwhile does not end a poll, select or epoll_wait.",
        apply: |c, v| c.patience = v.number(),
    },
    Setting {
        name: "single_copy",
        env: "MOTET_SINGLE_COPY",
        kind: ValueKind::Choice(&["auto", "off"]),
        default: "auto",
        help: "Copy large payload straight from the sender's memory into the receiver's where the kernel permits it.",
        apply: |c, v| c.single_copy = v.choice() == 0,
    },
    Setting {
        name: "single_copy_min",
        env: "MOTET_SINGLE_COPY_MIN",
        kind: ValueKind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "0",
        help: "Smallest transfer that is tried as a single copy, into a receiver that already waits, between CPUs that share \
               a cache. 0 means as measured by `motet tune`, or 2 MiB.",
        apply: |c, v| c.single_copy_min = v.number(),
    },
    Setting {
        name: "single_copy_min_far",
        env: "MOTET_SINGLE_COPY_MIN_FAR",
        kind: ValueKind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "0",
        help: "Smallest transfer that is tried as a single copy between CPUs that share no cache, as far as the sender has \
               found out. 0 means as measured by `motet tune`, or 512 KiB.",
        apply: |c, v| c.single_copy_min_far = v.number(),
    },
    Setting {
        name: "half_copy_min",
        env: "MOTET_HALF_COPY_MIN",
        kind: ValueKind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "0",
        help: "Smallest single copy that sender and receiver make together, half each; a smaller one is made by one of \
               them. 0 means as measured by `motet tune`, or always together.",
        apply: |c, v| c.half_copy_min = v.number(),
    },
    Setting {
        name: "pool",
        env: "MOTET_POOL",
        kind: ValueKind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "64MiB",
        help: "Most memory that the pool of receive buffers keeps for reuse. 0 keeps none.",
        apply: |c, v| c.pool = v.number(),
    },
    Setting {
        name: "hot",
        env: "MOTET_HOT",
        kind: ValueKind::Number { min: 1, max: 65536, unit: "streams" },
        default: "64",
        help: "Streams that one wait polls in shared memory: the most recently active ones. The kernel watches the others.",
        apply: |c, v| c.hot = v.number() as usize,
    },
    Setting {
        name: "stats",
        env: "MOTET_STATS",
        kind: ValueKind::Path,
        default: "",
        help: "File to which each process appends one line of JSON with its counters when it exits. `%p` stands for the \
               process id. Empty writes nothing.",
        apply: |c, v| c.stats = v.path(),
    },
    Setting {
        name: "log",
        env: "MOTET_LOG",
        kind: ValueKind::Path,
        default: "",
        help: "File to which each process appends a line for every stream that is upgraded, stays on TCP, is reset or ends, \
               with the reason. `%p` stands for the process id. Empty writes nothing.",
        apply: |c, v| c.log = v.path(),
    },
];

/// An environment variable that is not a setting and is never in the file: a path, or a note from `motet run` to itself.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub env: &'static str,
    /// One or two sentences.
    pub help: &'static str,
}

/// Every environment variable that is not a setting.
pub const VARIABLES: &[Variable] = &[
    Variable {
        env: "MOTET_CONFIG",
        help: "The settings file, instead of the first found of $XDG_CONFIG_HOME/motet.toml (~/.config/motet.toml) and \
               /etc/motet.toml. /dev/null means none.",
    },
    Variable {
        env: "MOTET_PROFILE",
        help: "The profile that `motet tune` writes and every process reads, instead of \
               $XDG_CACHE_HOME/motet/profile.toml (~/.cache/motet/profile.toml) and /var/cache/motet/profile.toml, which \
               is root's. /dev/null means none.",
    },
    Variable {
        env: "MOTET_LIBDIR",
        help: "Folder of libmotet.so and libmotet_sockets.so for `motet run`, instead of the one the program was \
               built or installed with.",
    },
    Variable { env: "MOTET_LIBRARY", help: "Full path of libmotet.so for the sockets adapter; `motet run` sets it." },
    Variable {
        env: "MOTET_MPI_SET",
        help: "Names of the variables that `motet run` has set for MPI libraries; a nested `motet run` reads it. Not for users.",
    },
    Variable {
        env: "MOTET_MPI_LEFT",
        help: "Why `motet run` has not configured MPI libraries, for `motet why`. Not for users.",
    },
    Variable {
        env: "MOTET_SECCOMP_FILTERS",
        help: "How many system call filters `motet run` started under, if Motet works under them. A process with more has confined \
               itself. Not for users.",
    },
];

/// The setting with this name.
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.name == name)
}

impl Default for Config {
    /// The defaults of the table.
    fn default() -> Self {
        let mut config = Self {
            disable: false,
            drivers: Drivers::default(),
            ring: 0,
            streams: 0,
            memory: 0,
            huge_pages: false,
            omniorb: false,
            omniorb_message: 0,
            omniorb_huge: false,
            mpi: Mpi::Off,
            spin: 0,
            patience: 0,
            single_copy: false,
            single_copy_min: 0,
            single_copy_min_far: 0,
            half_copy_min: 0,
            pool: 0,
            hot: 0,
            stats: None,
            log: None,
            profile: None,
        };
        for setting in SETTINGS {
            // A test parses every default, so none is skipped here.
            if let Ok(value) = setting.kind.parse(setting.default) {
                (setting.apply)(&mut config, value);
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_fits_its_kind() {
        for setting in SETTINGS {
            assert!(setting.kind.parse(setting.default).is_ok(), "{}", setting.name);
        }
        let config = Config::default();
        assert_eq!((config.ring, config.streams, config.spin, config.hot), (65536, 16384, 60000, 64));
        assert!(config.single_copy && !config.disable);
    }
}
