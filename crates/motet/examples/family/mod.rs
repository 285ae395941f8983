//! What the examples of several processes share: this program starts itself again, as others, which find each other by name, and all end
//! when one fails.

use motet::node::{Channel, Error, LinkId, Node, Serve};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Longest wait for others to be there.
pub const SOON: Option<Duration> = Some(Duration::from_secs(10));
/// What an example may fail with ends its process.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
/// Tells a process who it is.
const SELF: &str = "MOTET_EXAMPLE_PROCESS";

/// The processes of one run. The first, 0, has started the others.
pub struct Family {
    name: String,
    /// Which of them this one is.
    pub rank: usize,
}

impl Family {
    /// The name of a process's node.
    pub fn name_of(&self, rank: usize) -> String {
        format!("{}-{rank}", self.name)
    }
}

/// Starts `size` processes in all, each of which does `work`; returns what this one is to exit with.
pub fn run(size: usize, work: impl FnOnce(&Family) -> Result<()>) -> u8 {
    let told = std::env::var(SELF).ok();
    let told =
        told.as_deref().and_then(|told| told.rsplit_once(' ')).map(|(name, rank)| (name.to_owned(), rank.parse()));
    let family = match told {
        Some((name, Ok(rank))) => Family { name, rank },
        _ => Family { name: format!("example-{}", std::process::id()), rank: 0 },
    };
    let mut others = Others(Vec::new());
    let missing = if family.rank == 0 { 1..size } else { 0..0 };
    let done = missing.into_iter().try_for_each(|rank| others.start(&family, rank)).and_then(|()| work(&family));
    if let Err(error) = &done {
        eprintln!("process {}: {error}", family.rank);
    }
    // The others notice, too, when somebody is gone.
    let well = others.end(done.is_err().then_some(Duration::from_secs(1)));
    u8::from(done.is_err() || !well)
}

/// Processes that this one has started.
struct Others(Vec<Child>);

impl Others {
    fn start(&mut self, family: &Family, rank: usize) -> Result<()> {
        let program = std::env::current_exe()?;
        let who = format!("{} {rank}", family.name);
        self.0.push(Command::new(program).args(std::env::args_os().skip(1)).env(SELF, who).spawn()?);
        Ok(())
    }

    /// Waits for their ends, and ends those that take longer than `limit`. Says of whom did not end well.
    fn end(&mut self, limit: Option<Duration>) -> bool {
        let (begun, mut well) = (Instant::now(), true);
        for (n, mut child) in self.0.drain(..).enumerate() {
            while limit.is_some_and(|limit| begun.elapsed() < limit) && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if limit.is_some() {
                let _ = child.kill(); // of one that has ended this is nothing
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
        self.end(Some(Duration::ZERO)); // after a panic; otherwise nobody is left
    }
}

/// A channel to a service of the node at the other end, which may have its name before it has its services.
pub fn reach(node: &Node, link: LinkId, service: u64) -> Result<Channel> {
    let begun = Instant::now();
    loop {
        match node.open_channel(link, service, Serve::Queue, SOON) {
            Err(Error::Refused) if SOON.is_some_and(|limit| begun.elapsed() < limit) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return Ok(opened?),
        }
    }
}
