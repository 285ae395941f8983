//! Tells the kernel what other clients have changed, so that it uses no attributes and names that are not true any more.
//!
//! Attributes are forgotten before the server's notice is answered. The kernel takes no lock for that. Names are forgotten afterwards, in a thread of their own:
//! the kernel waits there for operations in the directory, which may themselves wait for the answer of another client.

use crate::nodes::Nodes;
use fuser::{INodeNo, Notifier};
use motet_files::client::{Client, Notice, Subscription};
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::thread;

/// Names to be forgotten.
enum Names {
    /// The one at this path.
    At(Vec<u8>),
    /// All.
    All,
}

/// Tells the kernel until the subscription is dropped. `None`: the client uses the directory itself, and there are no notices.
pub fn tell(client: &Client, nodes: Arc<RwLock<Nodes>>, kernel: Notifier) -> std::io::Result<Option<Subscription>> {
    if client.is_direct() {
        return Ok(None);
    }
    let (names, queue) = channel();
    let (of_names, names_of_kernel) = (Arc::clone(&nodes), kernel.clone());
    let forget = move || forget_names(&queue, &of_names, &names_of_kernel);
    thread::Builder::new().name("fuse-names".to_owned()).spawn(forget)?;
    client.subscribe(move |notice| told(&notice, &nodes, &kernel, &names))
}

fn read(nodes: &RwLock<Nodes>) -> RwLockReadGuard<'_, Nodes> {
    nodes.read().unwrap_or_else(PoisonError::into_inner)
}

fn told(notice: &Notice<'_>, nodes: &RwLock<Nodes>, kernel: &Notifier, names: &Sender<Names>) {
    // What the kernel does not know any more need not be forgotten: such errors are none.
    let forget = |number: u64| drop(kernel.inval_inode(INodeNo(number), -1, 0));
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

fn forget_names(queue: &Receiver<Names>, nodes: &RwLock<Nodes>, kernel: &Notifier) {
    for names in queue {
        let names: Vec<(u64, OsString)> = match names {
            Names::At(path) => read(nodes).name_at(&path).into_iter().collect(),
            Names::All => read(nodes).all_names(),
        };
        for (directory, name) in names {
            let _ = kernel.inval_entry(INodeNo(directory), &name);
        }
    }
}
