//! Real host programs (Redis, nginx, PostgreSQL, Java, omniORB, …), for the black-box tests and for `motet bench`.
//!
//! What it is: where programs are, as which user they run ([`unprivileged`]), how servers are configured ([`servers`], [`services`], [`shares`]), how small
//! programs are built ([`builds`]), and MPI libraries with their launchers ([`mpi`]).
//!
//! What it is not: it starts nothing, waits for nothing and judges nothing. The tests compare, the benchmarks measure.
#![forbid(unsafe_code)]

pub mod builds;
pub mod mpi;
pub mod servers;
pub mod services;
pub mod shares;

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The user of programs that a test starts as root, because servers refuse to run as root. It is `daemon`, which every Debian has. The user `65534`
/// would not do: it is the kernel's overflow user, and Motet offers no memory to it.
const UNPRIVILEGED: u32 = 1;

/// Finds a program by name or path. The distribution's program goes first, because the unprivileged user can run it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = ["/usr/bin", "/usr/sbin"].map(PathBuf::from).into_iter().chain(std::env::split_paths(&path));
    let candidates = folders.map(|folder| folder.join(program));
    candidates
        .into_iter()
        .find(|file| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// A port that was free a moment ago, outside of the kernel's ephemeral range, so that no unbound socket gets it meanwhile. Each call continues
/// behind the previous port, and each process begins at another one. The port is reserved for this process: no other caller gets it or probes it
/// while this process lives.
///
/// # Errors All of these ports are taken.
pub fn free_port() -> io::Result<u16> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    const FIRST: u16 = 10_000;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ephemeral = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768_u16);
    let count = ephemeral.saturating_sub(FIRST).max(1000);
    let next = NEXT.get_or_init(|| {
        let moment = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_micros());
        AtomicU16::new((moment.wrapping_add(std::process::id().wrapping_mul(7919)) & 0xffff) as u16)
    });
    (0..count)
        .map(|_| FIRST + next.fetch_add(1, Ordering::Relaxed) % count)
        .find(|port| reserve(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .ok_or_else(|| io::Error::other("every port that programs may choose is taken"))
}

/// Reserves a port for this process among all callers of [`free_port`] in this network namespace. The reservation is an abstract socket that is
/// named after the port and stays open until the process ends.
fn reserve(port: u16) -> bool {
    static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    let socket = SocketAddr::from_abstract_name(format!("motet-programs/port-{port}"))
        .and_then(|name| UnixDatagram::bind_addr(&name));
    let reserved = socket.is_ok();
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner).extend(socket);
    reserved
}

/// Returns whether this process is root.
pub fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0))
}

/// Options of `setpriv` (util-linux) that run a program as the unprivileged user. Empty when this process is not root.
pub fn unprivileged() -> Vec<String> {
    if !is_root() {
        return Vec::new();
    }
    let id = UNPRIVILEGED.to_string();
    ["--reuid", &id, "--regid", &id, "--clear-groups"].map(str::to_owned).into()
}

/// Gives a file or folder to the unprivileged user, when this process is root.
///
/// # Errors The error of chown(2).
pub fn give_away(path: &Path) -> io::Result<()> {
    if is_root() { chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)) } else { Ok(()) }
}
