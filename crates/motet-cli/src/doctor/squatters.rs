//! Whether another user holds abstract names at which processes of this user would connect.
//!
//! Abstract names have no owner: the first process that binds a name has it. Another user who binds names of this user denies nodes
//! and exports for groups their names and keeps streams on TCP, but gets nothing, as both ends ask the kernel for the user of the other.
//! So this is a denial of service, and the kernel knows the process.

use super::{Check, CheckVerdict};
use motet_sys::{sock_list, socket, thread};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsRawFd;

/// Names of ended connections that a user may hold: connections may have just ended.
const MAX_STALE_NAMES: usize = 8;

/// The names that another user holds.
#[derive(Default)]
struct Squatter {
    nodes: usize,
    streams: usize,
    exports: usize,
    /// One of the names, and the inode of its socket.
    sample: Option<(Vec<u8>, u32)>,
}

pub fn check() -> Check {
    let name = "abstract names";
    let good = "no other user holds names of this user's processes";
    match squatters() {
        Err(errno) => {
            let found = std::io::Error::from_raw_os_error(errno).to_string();
            Check::new(name, CheckVerdict::Limited, found, "their holders cannot be listed")
        }
        Ok(all) if all.is_empty() => {
            Check::new(name, CheckVerdict::Ok, good, "a user who holds them keeps streams on TCP")
        }
        Ok(all) => {
            let described: Vec<String> = all.iter().map(|(uid, squatter)| describe(*uid, squatter)).collect();
            let meaning = "nodes and exports cannot have these names, and streams stay on TCP; that user gets no data";
            Check::new(name, CheckVerdict::Limited, described.join("; "), meaning)
        }
    }
}

fn describe(uid: u32, squatter: &Squatter) -> String {
    let process = squatter.sample.as_ref().and_then(|(name, inode)| process(name, *inode));
    let process = process.map_or("in a process that is not visible".to_owned(), |pid| format!("process {pid}"));
    let Squatter { nodes, streams, exports, .. } = squatter;
    let names = format!("{nodes} names of nodes, {exports} of exports and {streams} of connections");
    format!("user {uid} ({process}) holds {names} of other users")
}

fn squatters() -> Result<BTreeMap<u32, Squatter>, i32> {
    let own = thread::euid();
    let fd = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|e| e.raw_os_error().unwrap_or(0))?;
    let here = format!("motet/{:x}/", socket::netns_cookie(fd.as_raw_fd())?);
    let (node, export) = (format!("motet/node/{own}/"), format!("motet/files/{own}/"));
    let held: Vec<_> = sock_list::name_holders()?.into_iter().filter(|holder| holder.uid != own).collect();
    let connections: HashSet<(u64, u32)> = sock_list::tcp_connections()?.into_iter().collect();
    let mut all = BTreeMap::<u32, Squatter>::new();
    for holder in held {
        let Ok(text) = std::str::from_utf8(&holder.name) else { continue };
        let cookie = text.strip_prefix(&here).and_then(|cookie| u64::from_str_radix(cookie, 16).ok());
        let stream = cookie.is_some_and(|cookie| !connections.contains(&(cookie, holder.uid)));
        let (of_node, of_export) = (text.starts_with(&node), text.starts_with(&export));
        if !stream && !of_node && !of_export {
            continue; // a name of that user's own
        }
        let squatter = all.entry(holder.uid).or_default();
        squatter.nodes += usize::from(of_node);
        squatter.exports += usize::from(of_export);
        squatter.streams += usize::from(stream);
        squatter.sample.get_or_insert((holder.name, holder.inode));
    }
    all.retain(|_, squatter| squatter.nodes + squatter.exports > 0 || squatter.streams > MAX_STALE_NAMES);
    Ok(all)
}

/// The process that holds a name: its listener, according to the kernel, or a visible process with a descriptor of the socket.
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
