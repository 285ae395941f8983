//! Shared by the examples of several processes: the program starts itself again as the other processes, which link by name and all exit when
//! one fails.

use motet::node::{Channel, Error, LinkId, Node, Serve};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Longest wait for other processes to start.
pub const START_TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));
/// The result of an example; an error ends its process.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
/// The variable that tells a process its name and rank.
const SELF: &str = "MOTET_EXAMPLE_PROCESS";

/// The processes of one run. The first, 0, has started the others.
pub struct ProcessGroup {
    name: String,
    /// The rank of this process.
    pub rank: usize,
}

impl ProcessGroup {
    /// The name of a process's node.
    pub fn name_of(&self, rank: usize) -> String {
        format!("{}-{rank}", self.name)
    }
}

/// Starts `size` processes in all, each of which runs `work`; returns the exit status of this one.
pub fn run(size: usize, work: impl FnOnce(&ProcessGroup) -> Result<()>) -> u8 {
    let told = std::env::var(SELF).ok();
    let told =
        told.as_deref().and_then(|told| told.rsplit_once(' ')).map(|(name, rank)| (name.to_owned(), rank.parse()));
    let cq = match told {
        Some((name, Ok(rank))) => ProcessGroup { name, rank },
        _ => ProcessGroup { name: format!("example-{}", std::process::id()), rank: 0 },
    };
    let mut others = Others(Vec::new());
    let missing = if cq.rank == 0 { 1..size } else { 0..0 };
    let done = missing.into_iter().try_for_each(|rank| others.start(&cq, rank)).and_then(|()| work(&cq));
    if let Err(error) = &done {
        eprintln!("process {}: {error}", cq.rank);
    }
    // The others fail, too, when a process is gone.
    let well = others.end(done.is_err().then_some(Duration::from_secs(1)));
    u8::from(done.is_err() || !well)
}

/// The processes that this one has started.
struct Others(Vec<Child>);

impl Others {
    fn start(&mut self, cq: &ProcessGroup, rank: usize) -> Result<()> {
        let program = std::env::current_exe()?;
        let who = format!("{} {rank}", cq.name);
        self.0.push(Command::new(program).args(std::env::args_os().skip(1)).env(SELF, who).spawn()?);
        Ok(())
    }

    /// Waits until they exit, and kills those that take longer than `limit`. Prints which of them failed.
    fn end(&mut self, limit: Option<Duration>) -> bool {
        let (begun, mut well) = (Instant::now(), true);
        for (n, mut child) in self.0.drain(..).enumerate() {
            while limit.is_some_and(|limit| begun.elapsed() < limit) && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if limit.is_some() {
                let _ = child.kill(); // no effect on one that has exited
            }
            match child.wait() {
                Ok(status) if status.success() => continue,
                Ok(status) => eprintln!("process {}: {status}", n + 1),
                Err(error) => eprintln!("process {}: {error}", n + 1),
            }
            well = false;
        }
        well
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.end(Some(Duration::ZERO)); // after a panic; otherwise none is left
    }
}

/// Opens a channel to a service of the peer; waits for the service, because the node exists earlier.
pub fn reach(node: &Node, link: LinkId, service: u64) -> Result<Channel> {
    let begun = Instant::now();
    loop {
        match node.open_channel(link, service, Serve::Queue, START_TIMEOUT) {
            Err(Error::Refused) if START_TIMEOUT.is_some_and(|limit| begun.elapsed() < limit) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return Ok(opened?),
        }
    }
}
