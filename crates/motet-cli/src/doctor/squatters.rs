//! Whether another user holds abstract names at which our processes would meet.
//!
//! Abstract names have no owner: whoever comes first has one. Another user who takes those of ours keeps nodes from their names, and
//! streams on TCP; nothing is handed to him, as both ends ask the kernel who the other is. So this is denial and no more, and it can be
//! told who does it.

use super::{Check, Verdict};
use motet_sys::{sock_list, socket, thread};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsRawFd;

/// Names of connections that there are not: so many may be of connections that have just ended.
const FEW: usize = 8;

/// What another user holds.
#[derive(Default)]
struct Squatter {
    nodes: usize,
    streams: usize,
    /// One of the names, and its socket.
    sample: Option<(Vec<u8>, u32)>,
}

pub fn check() -> Check {
    let name = "abstract names";
    let good = "nobody else holds those at which our processes meet";
    match squatters() {
        Err(errno) => {
            let found = std::io::Error::from_raw_os_error(errno).to_string();
            Check::new(name, Verdict::Limited, found, "cannot be told who holds them")
        }
        Ok(all) if all.is_empty() => Check::new(name, Verdict::Ok, good, "another user could keep streams on TCP"),
        Ok(all) => {
            let told: Vec<String> = all.iter().map(|(uid, squatter)| tell(*uid, squatter)).collect();
            let meaning = "nodes cannot have these names, and streams stay on TCP; nothing is handed to that user";
            Check::new(name, Verdict::Limited, told.join("; "), meaning)
        }
    }
}

fn tell(uid: u32, squatter: &Squatter) -> String {
    let process = squatter.sample.as_ref().and_then(|(name, inode)| process(name, *inode));
    let process = process.map_or("in a process that is not visible".to_owned(), |pid| format!("process {pid}"));
    let Squatter { nodes, streams, .. } = squatter;
    format!("user {uid} ({process}) holds {nodes} names of our nodes and {streams} of connections that are not his")
}

fn squatters() -> Result<BTreeMap<u32, Squatter>, i32> {
    let own = thread::euid();
    let fd = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|e| e.raw_os_error().unwrap_or(0))?;
    let here = format!("motet/{:x}/", socket::netns_cookie(fd.as_raw_fd())?);
    let node = format!("motet/node/{own}/");
    let held: Vec<_> = sock_list::held()?.into_iter().filter(|holder| holder.uid != own).collect();
    let connections: HashSet<(u64, u32)> = sock_list::connections()?.into_iter().collect();
    let mut all = BTreeMap::<u32, Squatter>::new();
    for holder in held {
        let Ok(text) = std::str::from_utf8(&holder.name) else { continue };
        let cookie = text.strip_prefix(&here).and_then(|cookie| u64::from_str_radix(cookie, 16).ok());
        let stream = cookie.is_some_and(|cookie| !connections.contains(&(cookie, holder.uid)));
        if !stream && !text.starts_with(&node) {
            continue; // another's own
        }
        let squatter = all.entry(holder.uid).or_default();
        squatter.nodes += usize::from(!stream);
        squatter.streams += usize::from(stream);
        squatter.sample.get_or_insert((holder.name, holder.inode));
    }
    all.retain(|_, squatter| squatter.nodes > 0 || squatter.streams > FEW);
    Ok(all)
}

/// Who holds a name: who listens there, as the kernel says, or whose descriptors have the socket, where we may look.
fn process(name: &[u8], inode: u32) -> Option<i32> {
    let listens = socket::connect_abstract(name).ok().and_then(|fd| socket::peer_credentials(&fd).ok());
    if let Some(pid) = listens.map(|credentials| credentials.pid).filter(|pid| *pid > 0) {
        return Some(pid);
    }
    let link = format!("socket:[{inode}]");
    let has = |pid: &i32| {
        let folder = std::fs::read_dir(format!("/proc/{pid}/fd"));
        folder.is_ok_and(|fds| {
            fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link.as_str()))
        })
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has)
}
