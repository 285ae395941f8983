//! Checks of the machine: kernel, limits, processors, fabrics.

use std::fs;
use std::path::{Path, PathBuf};

use motet_config::profile::ProfileLookup;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};

use super::{Check, CheckVerdict};
use crate::libraries;
use crate::probe::What;
use crate::sandbox::{self, Sandbox};
use motet_inspect::procfs;

/// All checks of the machine.
pub fn checks() -> Vec<Check> {
    vec![
        kernel(),
        sandbox(),
        namespaces(),
        locked_memory(),
        descriptors(),
        huge_pages(),
        processors(),
        clock(),
        profile(),
        io_uring(),
        xdp(),
        rdma(),
        library("libfabric", "libfabric.so.1", "MPI and fabrics through libfabric"),
        library("PMIx", "libpmix.so.2", "joining the processes of a launcher"),
    ]
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0u32), numbers.next().unwrap_or(0u32));
    let found = format!("Linux {release} {}", name.machine().to_string_lossy());
    match version {
        v if v >= (5, 14) => Check::new("kernel", CheckVerdict::Ok, found, "has everything that Motet uses"),
        _ => Check::new(
            "kernel",
            CheckVerdict::Limited,
            found,
            "older than 5.14: Motet cannot distinguish network namespaces",
        ),
    }
}

fn sandbox() -> Check {
    const NAME: &str = "sandbox";
    let found = libraries::find().map_or(Sandbox::Refuses, |libraries| sandbox::find(&libraries));
    let refused = "may refuse single copy, io_uring and namespaces; check their lines";
    match found {
        Sandbox::None => {
            Check::new(NAME, CheckVerdict::Ok, "no system call filter", "programs may make every system call")
        }
        Sandbox::Works(filters) => {
            let meaning = format!("programs use shared memory under it; it {refused}");
            Check::new(NAME, CheckVerdict::Ok, format!("{filters} system call filters, Motet works"), meaning)
        }
        Sandbox::Refuses => {
            let meaning =
                format!("no exchange through shared memory works under it: connections stay on TCP; it {refused}");
            Check::new(NAME, CheckVerdict::Limited, "a system call filter", meaning)
        }
    }
}

fn namespaces() -> Check {
    let tried = super::sharing::start(What::Namespaces).and_then(|mut child| child.wait());
    let own = fs::read_link("/proc/self/ns/net").map(|l| l.display().to_string()).unwrap_or_default();
    match tried {
        Ok(status) if status.success() => Check::new(
            "namespaces",
            CheckVerdict::Ok,
            format!("user and network, here {own}"),
            "test hosts can be created on this machine",
        ),
        _ => Check::new(
            "namespaces",
            CheckVerdict::Limited,
            format!("none can be created, here {own}"),
            "tests with several hosts are skipped; programs are not affected",
        ),
    }
}

fn limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).current
}

fn locked_memory() -> Check {
    let name = "locked memory";
    match limit(Resource::Memlock) {
        None => Check::new(name, CheckVerdict::Ok, "unlimited", "memory can be registered with a fabric"),
        Some(n) if n >= 64 << 20 => {
            Check::new(name, CheckVerdict::Ok, format!("{} MiB", n >> 20), "memory can be registered with a fabric")
        }
        Some(n) => Check::new(
            name,
            CheckVerdict::Limited,
            format!("{} KiB", n >> 10),
            "too little for fabrics and AF_XDP; raise ulimit -l (shared memory needs none)",
        ),
    }
}

fn descriptors() -> Check {
    let name = "descriptors";
    match limit(Resource::Nofile) {
        Some(n) if n < 1024 => Check::new(
            name,
            CheckVerdict::Limited,
            n.to_string(),
            "few: when they run out, streams stay on TCP; raise ulimit -n",
        ),
        n => Check::new(
            name,
            CheckVerdict::Ok,
            n.map_or("unlimited".into(), |n| n.to_string()),
            "a pair of processes needs about two, for any number of streams",
        ),
    }
}

fn huge_pages() -> Check {
    let chosen = |path| text(path).and_then(|t| Some(t.split_once('[')?.1.split_once(']')?.0.to_owned()));
    let usual = chosen("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_else(|| "absent".into());
    let shared = chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_else(|| "absent".into());
    let reserved = text("/proc/sys/vm/nr_hugepages").unwrap_or_else(|| "0".into());
    let found = format!("transparent {usual}, for shared memory {shared}, {reserved} reserved");
    if ["always", "madvise"].contains(&usual.as_str()) {
        Check::new("huge pages", CheckVerdict::Ok, found, "large receive buffers can use them")
    } else {
        Check::new("huge pages", CheckVerdict::Limited, found, "large buffers use small pages")
    }
}

fn processors() -> Check {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = procfs::field(&status, "Cpus_allowed_list").unwrap_or("?").to_owned();
    let there = text("/sys/devices/system/cpu/online").unwrap_or_default();
    let found = format!("{usable} usable ({list} of {there})");
    if usable > 1 {
        Check::new("processors", CheckVerdict::Ok, found, "two ends run at the same time, so a short spin pays")
    } else {
        Check::new(
            "processors",
            CheckVerdict::Limited,
            found,
            "two ends share one CPU, and the kernel switches between them",
        )
    }
}

fn clock() -> Check {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags: Vec<&str> =
        info.lines().find(|l| l.starts_with("flags")).unwrap_or_default().split_whitespace().collect();
    let source =
        text("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_else(|| "unknown".into());
    let place = if flags.contains(&"hypervisor") { "virtual machine" } else { "no hypervisor seen" };
    let steady = flags.contains(&"constant_tsc") || flags.contains(&"nonstop_tsc") || cfg!(target_arch = "aarch64");
    let found = format!("{place}, clock source {source}");
    if steady {
        Check::new(
            "clock",
            CheckVerdict::Ok,
            found,
            "the processor clock is constant: spins are timed without system calls",
        )
    } else {
        Check::new(
            "clock",
            CheckVerdict::Limited,
            found,
            "no constant processor clock: the length of spins is approximate",
        )
    }
}

fn profile() -> Check {
    let (name, fix) = ("profile", "sizes are defaults; run `motet tune` to measure this machine");
    match motet_config::Environment::of_this_process().load().profile {
        ProfileLookup::Valid { path, profile } => {
            let found = format!("{}, {}", path.display(), crate::tune::describe(&profile));
            Check::new(name, CheckVerdict::Ok, found, "large payload is copied as measured on this machine")
        }
        ProfileLookup::Ignored { path, why } => {
            Check::new(name, CheckVerdict::Limited, format!("{}: {why}", path.display()), fix)
        }
        ProfileLookup::Missing => Check::new(name, CheckVerdict::Limited, "none", fix),
    }
}

fn io_uring() -> Check {
    match ::io_uring::IoUring::new(2) {
        Ok(_) => {
            Check::new("io_uring", CheckVerdict::Ok, "permitted", "programs can use it; their sockets stay on TCP")
        }
        Err(e) => Check::new(
            "io_uring",
            CheckVerdict::Limited,
            e.to_string(),
            "programs cannot use it; Motet does not need it",
        ),
    }
}

fn xdp() -> Check {
    let xdp = AddressFamily::from_raw(44); // AF_XDP, linux/socket.h
    match socket_with(xdp, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) => Check::new("AF_XDP", CheckVerdict::Ok, "sockets can be created", "user-level Ethernet is possible"),
        Err(e) => Check::new(
            "AF_XDP",
            CheckVerdict::Limited,
            e.to_string(),
            "no user-level Ethernet (needs CAP_NET_RAW and CONFIG_XDP_SOCKETS)",
        ),
    }
}

fn rdma() -> Check {
    let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let names: Vec<String> = devices.map(|d| d.file_name().to_string_lossy().into_owned()).collect();
    if names.is_empty() {
        Check::new("RDMA", CheckVerdict::Limited, "no device", "other hosts are reached over TCP")
    } else {
        Check::new("RDMA", CheckVerdict::Ok, names.join(", "), "a fabric to other hosts")
    }
}

fn library(name: &'static str, file: &str, purpose: &str) -> Check {
    match find_library(file) {
        Some(path) => Check::new(name, CheckVerdict::Ok, path.display().to_string(), purpose),
        None => Check::new(
            name,
            CheckVerdict::Limited,
            format!("{file} is not installed"),
            format!("only needed for {purpose}"),
        ),
    }
}

fn find_library(file: &str) -> Option<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let own = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let own = own.split(':').filter(|f| !f.is_empty()).map(PathBuf::from);
    let system = ["/usr/local/lib", "/lib", "/usr/lib", "/lib64", "/usr/lib64"].into_iter();
    let system = system.flat_map(|folder| [Path::new(folder).to_owned(), Path::new(folder).join(&triplet)]);
    own.chain(system).map(|folder| folder.join(file)).find(|path| path.exists())
}
