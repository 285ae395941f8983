//! Tells the kernel what other clients have changed, so that it uses no attributes and names that are not true any more.
//!
//! Attributes are forgotten before the server's notice is answered. The kernel takes no lock for that. Names are forgotten afterwards, in a thread of their own:
//! the kernel waits there for operations in the directory, which may themselves wait for the answer of another client.

use crate::device;
use crate::freshness::Freshness;
use crate::nodes::Nodes;
use motet_files::client::{Client, Notice, Subscription};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long a file may take from an answer into the kernel.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Names to be forgotten.
enum Names {
    /// The one at this path.
    At(Vec<u8>),
    /// All.
    All,
}

/// Tells the kernel until the subscription is dropped. `None`: the client uses the directory itself, and there are no notices.
pub fn tell(
    client: &Client,
    nodes: Arc<RwLock<Nodes>>,
    freshness: Arc<Freshness>,
    device: Weak<OwnedFd>,
) -> std::io::Result<Option<Subscription>> {
    if client.is_direct() {
        return Ok(None);
    }
    let (names, queue) = channel();
    let (of_names, for_names) = (Arc::clone(&nodes), Weak::clone(&device));
    let forget = move || forget_names(&queue, &of_names, &for_names);
    thread::Builder::new().name("fuse-names".to_owned()).spawn(forget)?;
    client.subscribe(move |notice| {
        freshness.noticed();
        told(&notice, &nodes, &device, &names);
    })
}

fn read(nodes: &RwLock<Nodes>) -> RwLockReadGuard<'_, Nodes> {
    nodes.read().unwrap_or_else(PoisonError::into_inner)
}

fn told(notice: &Notice<'_>, nodes: &RwLock<Nodes>, device: &Weak<OwnedFd>, names: &Sender<Names>) {
    let Some(device) = device.upgrade() else { return };
    let until = Instant::now() + ARRIVAL;
    let forget = |number: u64| forget_attributes(number, nodes, &device, until);
    match *notice {
        Notice::Attributes { device, inode } => {
            // The kernel must not be told with the lock: its requests take it.
            let number = read(nodes).known(device, inode);
            number.into_iter().for_each(forget);
        }
        Notice::Name { path } => drop(names.send(Names::At(path.to_vec()))),
        Notice::Everything => {
            let numbers = read(nodes).numbers();
            numbers.into_iter().for_each(forget);
            drop(names.send(Names::All));
        }
    }
}

/// Makes the kernel forget attributes. A file of an answer that a program has not read yet is not in the kernel, but will be; one that the kernel does not know any more
/// need not be forgotten.
fn forget_attributes(number: u64, nodes: &RwLock<Nodes>, device: &OwnedFd, until: Instant) {
    while !device::forget_attributes(device, number) && read(nodes).knows(number) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
}

fn forget_names(queue: &Receiver<Names>, nodes: &RwLock<Nodes>, device: &Weak<OwnedFd>) {
    for names in queue {
        let names: Vec<(u64, OsString)> = match names {
            Names::At(path) => read(nodes).name_at(&path).into_iter().collect(),
            // Nothing says that they have changed. An older kernel would take directories away from programs that work in them.
            Names::All => read(nodes).all_names(device::kernel_expires_names()),
        };
        let Some(device) = device.upgrade() else { return };
        names.iter().for_each(|(directory, name)| device::expire_name(&device, *directory, name));
    }
}
