//! The settings as the engine uses them.

use std::path::PathBuf;

/// Every setting, checked. Read once, when the engine starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Every connection stays on TCP.
    pub disable: bool,
    /// Drivers that may be used.
    pub drivers: Drivers,
    /// Bytes of the ring of one direction: a power of two.
    pub ring: usize,
    /// Records in the node file.
    pub streams: usize,
    /// Most bytes of shared memory for streams, large rings not counted.
    pub memory: u64,
    /// Large rings ask for huge pages.
    pub huge_pages: bool,
    /// The omniORB adapter is preloaded as well.
    pub omniorb: bool,
    /// Largest message of omniORB in bytes; 0 keeps the ORB's own limit.
    pub omniorb_message: u64,
    /// omniORB's large receives ask for huge pages.
    pub omniorb_huge: bool,
    /// In which jobs MPI libraries are configured for the libfabric provider.
    pub mpi: Mpi,
    /// Nanoseconds of spinning before a sleep; 0 never spins.
    pub spin: u64,
    /// Nanoseconds for which waits keep their gates open and go on polling after the spin: for tests.
    pub patience: u64,
    /// Single copy may be tried.
    pub single_copy: bool,
    /// Bytes from which single copy is tried between CPUs that share a cache; 0: neither set nor measured.
    pub single_copy_min: u64,
    /// Bytes from which single copy is tried between CPUs that share no cache; 0: neither set nor measured.
    pub single_copy_min_far: u64,
    /// Bytes from which both sides make a single copy together; 0: neither set nor measured.
    pub half_copy_min: u64,
    /// Most bytes that the receive pool keeps.
    pub pool: u64,
    /// Streams that one wait polls in shared memory.
    pub hot: usize,
    /// File for one line of counters at exit; `%p` is the process id ([`Config::for_process`]).
    pub stats: Option<PathBuf>,
    /// File for a line per event of a stream; `%p` is the process id ([`Config::for_process`]).
    pub log: Option<PathBuf>,
    /// The profile that some of the values came from.
    pub profile: Option<PathBuf>,
}

/// In which jobs MPI libraries are configured for the libfabric provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mpi {
    /// In jobs on several hosts.
    Auto,
    /// In all jobs.
    On,
    /// In no job.
    Off,
}

impl Mpi {
    /// In the order of the setting's words.
    pub(crate) const ALL: [Self; 3] = [Self::Auto, Self::On, Self::Off];

    /// The value for a checked word of the setting.
    pub fn parse(word: &str) -> Self {
        match word.to_ascii_lowercase().as_str() {
            "on" => Self::On,
            "off" => Self::Off,
            _ => Self::Auto,
        }
    }
}

/// Drivers that may be used. `tcp` is always allowed, because every stream starts on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drivers {
    /// If not empty, only these drivers may be used.
    pub only: Vec<String>,
    /// These drivers may not be used.
    pub without: Vec<String>,
}

impl Drivers {
    /// From the words of the setting.
    pub fn parse(words: &[String]) -> Self {
        let mut drivers = Self::default();
        for word in words {
            match word.strip_prefix(['-', '^']) {
                Some(name) => drivers.without.push(name.into()),
                None => drivers.only.push(word.clone()),
            }
        }
        drivers
    }

    /// Whether a driver may be used.
    pub fn allows(&self, name: &str) -> bool {
        name == "tcp"
            || ((self.only.is_empty() || self.only.iter().any(|n| n == name))
                && !self.without.iter().any(|n| n == name))
    }

    /// Names that are in the setting but not among `known` ones.
    pub fn unknown<'a>(&'a self, known: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.only.iter().chain(&self.without).map(String::as_str).filter(move |name| !known.contains(name))
    }
}

impl Config {
    /// A file name of [`stats`](Self::stats) or [`log`](Self::log) with `%p` replaced by the process id.
    pub fn for_process(path: &std::path::Path, pid: u32) -> PathBuf {
        match path.to_str() {
            Some(text) => PathBuf::from(text.replace("%p", &pid.to_string())),
            None => path.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_allowed_or_forbidden() {
        let drivers = |words: &[&str]| Drivers::parse(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        assert!(drivers(&[]).allows("shm"));
        assert!(drivers(&["shm", "tcp"]).allows("shm") && !drivers(&["tcp"]).allows("shm"));
        assert!(!drivers(&["-shm"]).allows("shm") && drivers(&["-shm"]).allows("xdp"));
        assert!(drivers(&["shm", "-tcp"]).allows("tcp"));
        assert_eq!(drivers(&["shm", "-warp"]).unknown(&["shm", "tcp"]).collect::<Vec<_>>(), ["warp"]);
    }

    #[test]
    fn file_names_take_the_process_id() {
        assert_eq!(Config::for_process("/tmp/a.%p".as_ref(), 7), PathBuf::from("/tmp/a.7"));
    }
}
