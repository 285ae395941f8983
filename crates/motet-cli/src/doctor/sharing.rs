//! Checks of what a shared-memory path between two processes needs, and of what makes it faster.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use motet_sys::{limits, memory, process_vm, sock_diag, socket};
use motet_wire::stream::segment::Geometry;
use motet_wire::stream::stats::StatsFile;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use super::{Check, CheckVerdict, squatters};
use crate::libraries;
use crate::probe::What;

/// All checks of shared memory.
pub fn checks() -> Vec<Check> {
    vec![
        libraries_found(),
        omniorb_adapter(),
        files_adapter(),
        memfd(),
        inherited_limits(),
        rendezvous(),
        sock_diag(),
        cookies(),
        squatters::check(),
        single_copy(),
    ]
}

fn libraries_found() -> Check {
    let found = libraries::find();
    let good = found.as_ref().map_or(String::new(), |l| format!("{}, {}", l.shim.display(), l.engine.display()));
    Check::essential("libraries", found.map_err(|f| f.message), &good, "`motet run` loads them into programs")
}

/// The versions of omniORB with an adapter beside the preload object.
fn omniorb_adapter() -> Check {
    let shim = libraries::find().ok().and_then(|libraries| libraries.orb_shim);
    let built = |minor: &u32| {
        let file = shim.as_ref().map(|shim| shim.with_file_name(format!("libmotet_omniorb4{minor}.so")));
        file.is_some_and(|file| file.is_file())
    };
    let versions: Vec<String> = [2, 3].iter().filter(|minor| built(minor)).map(|minor| format!("4.{minor}")).collect();
    if versions.is_empty() {
        Check::new("omniORB adapter", CheckVerdict::Limited, "not built", "CORBA programs use the sockets adapter")
    } else {
        Check::new(
            "omniORB adapter",
            CheckVerdict::Ok,
            format!("for {}", versions.join(", ")),
            "CORBA programs use Motet inside the ORB",
        )
    }
}

/// The preload object of `motet run --files`.
fn files_adapter() -> Check {
    match libraries::find().ok().and_then(|libraries| libraries.files_shim) {
        Some(shim) => Check::new(
            "files adapter",
            CheckVerdict::Ok,
            shim.display().to_string(),
            "`motet run --files` shows exported folders to a program",
        ),
        None => Check::new("files adapter", CheckVerdict::Limited, "not built", "`motet run --files` is not possible"),
    }
}

fn memfd() -> Check {
    let tried =
        memory::create_mapped("motet-doctor", 1 << 16, &[], 1 << 16).and_then(|(fd, _)| match memory::inspect(&fd)? {
            (65536, true, true) => Ok(()),
            _ => Err(rustix::io::Errno::INVAL),
        });
    Check::essential("memfd", tried, "sealed and preallocated", "holds the rings, and leaves no file behind")
}

/// Limits that programs inherit: `ulimit` and the control groups.
fn inherited_limits() -> Check {
    const NAME: &str = "limits";
    let (file, space) = (limits::max_file_size(), limits::max_address_space());
    let segment = |bulk| Geometry { slots: 1, ring: 64 << 10, bulk }.bytes();
    let least = segment(0).max(StatsFile::bytes(64)) as u64;
    let failed = if file < least {
        Some(format!("files of at most {} KiB, and shared memory is a file; raise ulimit -f", file >> 10))
    } else if !limits::cgroup_has_room(1 << 20) {
        Some("the memory control group is full".to_owned())
    } else {
        None
    };
    if let Some(failed) = failed {
        return Check::essential(NAME, Err::<(), _>(failed), "", "room for shared memory");
    }
    let mut found = Vec::new();
    if file < segment(4 << 20) as u64 {
        found.push(format!("files of at most {} KiB (ulimit -f): no large rings", file >> 10));
    }
    if space != usize::MAX {
        let share = limits::address_space_share(usize::MAX) >> 20;
        found.push(format!("{} MiB of address space (ulimit -v): {share} MiB of it for shared memory", space >> 20));
    }
    let purpose = "connections beyond a limit stay on TCP";
    if found.is_empty() {
        Check::new(NAME, CheckVerdict::Ok, "no limit of file size, address space or memory that matters", purpose)
    } else {
        Check::new(NAME, CheckVerdict::Limited, found.join(", "), purpose)
    }
}

fn rendezvous() -> Check {
    let tried = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).and_then(|fd| {
        let name = format!("motet-doctor-{}", std::process::id());
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)
    });
    Check::essential("unix sockets", tried, "abstract names", "two processes connect there and pass the memory")
}

/// Both ends of a TCP connection of this process to itself.
fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}

fn sock_diag() -> Check {
    let raw = io::Error::from_raw_os_error;
    let tried = connection().and_then(|(near, far)| {
        let found =
            sock_diag::SockDiag::open().map_err(raw)?.find(far.local_addr()?, near.local_addr()?).map_err(raw)?;
        let cookie = socket::cookie(far.as_raw_fd()).map_err(raw)?;
        if found.is_some_and(|f| f.cookie == cookie) {
            Ok(())
        } else {
            Err(io::Error::other("it does not find the peer's socket"))
        }
    });
    Check::essential(
        "sock_diag",
        tried,
        "finds the peer's socket",
        "identifies the process at the other end of a connection",
    )
}

fn cookies() -> Check {
    let raw = io::Error::from_raw_os_error;
    let tried = connection().and_then(|(near, _)| {
        socket::cookie(near.as_raw_fd()).map_err(raw)?;
        socket::netns_cookie(near.as_raw_fd()).map_err(raw)
    });
    Check::essential(
        "socket cookies",
        tried,
        "SO_COOKIE, SO_NETNS_COOKIE",
        "identify a connection and this host's network namespace",
    )
}

fn single_copy() -> Check {
    let scope =
        std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().and_then(|t| t.trim().parse::<u32>().ok());
    let child = copy_from_child();
    let name = "single copy";
    match (child, scope) {
        (Ok(()), None | Some(0)) => Check::new(
            name,
            CheckVerdict::Ok,
            "process_vm_readv",
            "large payload is copied once, between processes of one user",
        ),
        (Ok(()), Some(scope)) => {
            let meaning = "for children of a process only; other large payload goes through the ring (allow it with kernel.yama.ptrace_scope=0)";
            Check::new(name, CheckVerdict::Limited, format!("process_vm_readv, ptrace_scope {scope}"), meaning)
        }
        (Err(e), _) => Check::new(
            name,
            CheckVerdict::Limited,
            e.to_string(),
            "large payload goes through the ring; check for a sandbox",
        ),
    }
}

/// Reads the start of a child's program from its memory.
fn copy_from_child() -> io::Result<()> {
    let mut child = start(What::Wait)?;
    let read = first_mapping(child.id()).and_then(|address| {
        let mut bytes = [0; 4];
        let n = process_vm::read_from(child.id(), address, &mut bytes).map_err(io::Error::from_raw_os_error)?;
        if n == 4 { Ok(()) } else { Err(io::Error::other("short read")) }
    });
    let _ = child.kill();
    let _ = child.wait();
    read
}

/// Starts this program again, to run a check in a process of its own.
pub fn start(what: What) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["probe", what.name()]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()
}

fn first_mapping(pid: u32) -> io::Result<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps.lines().find(|line| line.contains(" r")).unwrap_or_default();
    let address = line.split('-').next().and_then(|a| u64::from_str_radix(a, 16).ok());
    address.ok_or_else(|| io::Error::other("/proc/PID/maps has no readable mapping"))
}
