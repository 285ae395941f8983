//! The table. One row is all that a new setting needs, besides the field of [`Config`] that it fills.

use crate::config::{Config, Drivers, Mpi};
use crate::kind::{Kind, Value};

/// One thing that can be set.
#[derive(Debug)]
pub struct Setting {
    /// Key in the file, and name for `motet run --set`.
    pub name: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// What a value looks like.
    pub kind: Kind,
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
        kind: Kind::Bool,
        default: "false",
        help: "Keep every connection on plain TCP, as if Motet were not there.",
        apply: |c, v| c.disable = v.flag(),
    },
    Setting {
        name: "drivers",
        env: "MOTET_DRIVERS",
        kind: Kind::List,
        default: "",
        help: "Drivers that may be used, such as `shm,tcp`; or, each with a minus sign, drivers that may not: `-shm`. \
               Empty means all. TCP is what every stream starts on and is never off.",
        apply: |c, v| c.drivers = Drivers::parse(&v.words()),
    },
    Setting {
        name: "ring",
        env: "MOTET_RING",
        kind: Kind::Bytes { min: 4096, max: 1 << 24, power_of_two: true },
        default: "64KiB",
        help: "Shared-memory ring of one direction of a stream. A larger one lets a sender run further ahead.",
        apply: |c, v| c.ring = v.number() as usize,
    },
    Setting {
        name: "streams",
        env: "MOTET_STREAMS",
        kind: Kind::Number { min: 16, max: 1 << 20, unit: "streams" },
        default: "16384",
        help: "Streams that a process has room for at one time; further ones stay on TCP. Memory is taken as it is used.",
        apply: |c, v| c.streams = v.number() as usize,
    },
    Setting {
        name: "memory",
        env: "MOTET_MEMORY",
        kind: Kind::Bytes { min: 0, max: 1 << 46, power_of_two: false },
        default: "4GiB",
        help: "Most shared memory that the streams of a process may take, each two rings and a page; further ones stay on TCP. \
               Pages are taken when a stream first receives. Large rings, for streams with bulk data, come on top: 128 MiB \
               at most.",
        apply: |c, v| c.memory = v.number(),
    },
    Setting {
        name: "huge_pages",
        env: "MOTET_HUGE_PAGES",
        kind: Kind::Choice(&["off", "try"]),
        default: "off",
        help: "Ask for huge pages for the large rings of streams with bulk data. They are used where the system gives them to \
               shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise, within_size or always).",
        apply: |c, v| c.huge_pages = v.choice() == 1,
    },
    Setting {
        name: "omniorb",
        env: "MOTET_OMNIORB",
        kind: Kind::Choice(&["off", "on"]),
        default: "on",
        help: "Meet omniORB at its transport (an adapter in the ORB). Off leaves its connections to the sockets voice.",
        apply: |c, v| c.omniorb = v.choice() == 1,
    },
    Setting {
        name: "omniorb_message",
        env: "MOTET_OMNIORB_MESSAGE",
        kind: Kind::Bytes { min: 0, max: u32::MAX as u64, power_of_two: false },
        default: "256MiB",
        help: "The largest message that omniORB sends and takes under Motet, where the program and its user set none \
               (giopMaxMsgSize). 0 leaves the ORB's own limit, 2 MiB.",
        apply: |c, v| c.omniorb_message = v.number(),
    },
    Setting {
        name: "omniorb_huge",
        env: "MOTET_OMNIORB_HUGE",
        kind: Kind::Choice(&["off", "on"]),
        default: "on",
        help: "Ask for huge pages where omniORB receives 4 MiB and more at once: fresh memory then takes one page fault for 2 MiB.",
        apply: |c, v| c.omniorb_huge = v.choice() == 1,
    },
    Setting {
        name: "mpi",
        env: "MOTET_MPI",
        kind: Kind::Choice(&["auto", "on", "off"]),
        default: "auto",
        help: "Have MPI libraries use Motet's provider of libfabric, as far as the user's own settings leave them the choice. Auto \
               does so with MPICH and Intel MPI in jobs over several hosts; within one host, and with Open MPI, the library keeps its \
               own transport. Off leaves MPI's messages to what the library takes by itself, its sockets to the sockets voice.",
        apply: |c, v| c.mpi = Mpi::ALL[v.choice()],
    },
    Setting {
        name: "spin",
        env: "MOTET_SPIN",
        kind: Kind::Nanoseconds { max: 1_000_000_000 },
        default: "60us",
        help: "How long a waiting call looks at shared memory before it sleeps in the kernel. 0 never spins.",
        apply: |c, v| c.spin = v.number(),
    },
    Setting {
        name: "patience",
        env: "MOTET_PATIENCE",
        kind: Kind::Nanoseconds { max: 1_000_000_000 },
        default: "0",
        help: "For tests and diagnosis: how long a wait that found nothing goes on looking at shared memory, with rests between the looks, \
               before it sleeps in the kernel. With 300ms payload takes the ring however busy the machine is; it costs CPU time, \
               and a signal handler that runs meanwhile does not end a poll, select or epoll_wait.",
        apply: |c, v| c.patience = v.number(),
    },
    Setting {
        name: "single_copy",
        env: "MOTET_SINGLE_COPY",
        kind: Kind::Choice(&["auto", "off"]),
        default: "auto",
        help: "Copy large payload straight from the sender's memory into the receiver's where the kernel permits it.",
        apply: |c, v| c.single_copy = v.choice() == 0,
    },
    Setting {
        name: "single_copy_min",
        env: "MOTET_SINGLE_COPY_MIN",
        kind: Kind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "0",
        help: "Smallest transfer that is tried as a single copy, into a receiver that already waits, between CPUs that share \
               a cache. 0 means as measured by `motet tune`, or 2 MiB.",
        apply: |c, v| c.single_copy_min = v.number(),
    },
    Setting {
        name: "single_copy_min_far",
        env: "MOTET_SINGLE_COPY_MIN_FAR",
        kind: Kind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "0",
        help: "The same between CPUs that share no cache, as far as the sender has found out. 0 means as measured by \
               `motet tune`, or 512 KiB.",
        apply: |c, v| c.single_copy_min_far = v.number(),
    },
    Setting {
        name: "half_copy_min",
        env: "MOTET_HALF_COPY_MIN",
        kind: Kind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "0",
        help: "Smallest single copy that sender and receiver make together, half each; a smaller one is made by one of \
               them. 0 means as measured by `motet tune`, or always together.",
        apply: |c, v| c.half_copy_min = v.number(),
    },
    Setting {
        name: "pool",
        env: "MOTET_POOL",
        kind: Kind::Bytes { min: 0, max: 1 << 40, power_of_two: false },
        default: "64MiB",
        help: "Most memory that the pool of reusable receive buffers keeps for reuse. 0 keeps none.",
        apply: |c, v| c.pool = v.number(),
    },
    Setting {
        name: "registration_cache",
        env: "MOTET_REGISTRATION_CACHE",
        kind: Kind::Choice(&["off", "on"]),
        default: "on",
        help: "Keep registrations of memory for the next message from there, where a driver registers memory. The kernel tells \
               (userfaultfd) when pages go. Off registers for each message, as is done where the kernel does not permit that.",
        apply: |c, v| c.registration_cache = v.choice() == 1,
    },
    Setting {
        name: "hot",
        env: "MOTET_HOT",
        kind: Kind::Number { min: 1, max: 65536, unit: "streams" },
        default: "64",
        help: "Streams that one wait watches in shared memory at a time: those active last. The kernel watches the rest.",
        apply: |c, v| c.hot = v.number() as usize,
    },
    Setting {
        name: "stats",
        env: "MOTET_STATS",
        kind: Kind::Path,
        default: "",
        help: "File that each process appends one line of JSON with its counters to when it exits. `%p` stands for the \
               process id. Empty writes nothing.",
        apply: |c, v| c.stats = v.path(),
    },
    Setting {
        name: "log",
        env: "MOTET_LOG",
        kind: Kind::Path,
        default: "",
        help: "File that each process appends a line to for every stream that is upgraded, stays on TCP, is reset or ends, \
               with the reason. `%p` stands for the process id. Empty writes nothing.",
        apply: |c, v| c.log = v.path(),
    },
];

/// An environment variable that is no setting: it tells where things are, and is never in the file.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub env: &'static str,
    /// One or two sentences.
    pub help: &'static str,
}

/// Every such variable.
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
    Variable { env: "MOTET_LIBRARY", help: "Full path of libmotet.so for the sockets voice; `motet run` sets it." },
    Variable {
        env: "MOTET_MPI_SET",
        help: "What `motet run` has told MPI libraries, for one that runs inside; not for users.",
    },
    Variable {
        env: "MOTET_MPI_LEFT",
        help: "Why `motet run` has told MPI libraries nothing, for `motet why`; not for users.",
    },
];

/// The setting with this name.
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.name == name)
}
