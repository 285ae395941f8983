//! File servers of other projects: NFS-Ganesha, Samba, gluster. Each is unmodified, serves a folder on the loopback interface, and has clients in user space,
//! without and with Motet. What clients write and read is compared with the files themselves.
//!
//! The servers need root. Motet connects processes of one user, so their clients are root's, too.

use motet_tests::programs::{Sandbox, Started, both_ways, find, free_port, is_root, shares, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TERM: i32 = 15;
/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of the long file: more than one request, and no multiple of one.
const LONG_BYTES: usize = (5 << 20) + 4097;

/// Bytes that repeat only after a long while.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32).to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

/// Folders of root in the folder of a run.
fn folders<const N: usize>(sandbox: &Sandbox, names: [&str; N]) -> [String; N] {
    names.map(|name| {
        let path = sandbox.path(name);
        fs::create_dir(&path).expect("a folder");
        path
    })
}

/// Starts a program of root.
#[track_caller]
fn start(sandbox: &Sandbox, words: &[String]) -> Started {
    sandbox.start_as_root(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs a client of root, which must succeed.
#[track_caller]
fn run(sandbox: &Sandbox, words: &[&str]) -> String {
    sandbox.start_as_root(words).finish()
}

/// Says whether a file has these bytes; the whole difference would be no message.
#[track_caller]
fn has_bytes(path: &str, expected: &[u8]) {
    let found = fs::read(path).expect("the file");
    assert!(found == expected, "{path}: other content, {} bytes of {}", found.len(), expected.len());
}

/// What is missing, if something is.
fn missing(programs: &[&str]) -> Option<String> {
    if !is_root() {
        return Some("needs root".to_owned());
    }
    let absent = programs.iter().find(|program| find(program).is_none())?;
    Some(format!("{absent} is not installed (tests/programs/packages.txt)"))
}

#[test]
fn samba_serves_its_clients() {
    let test = "samba_serves_its_clients";
    if let Some(reason) = missing(&["smbd", "smbclient"]) {
        return skip(test, &reason).unwrap_or_default();
    }
    let counters = both_ways(test, &[], |sandbox| {
        let [share, state] = folders(sandbox, ["share", "state"]);
        let port = free_port();
        let config = sandbox.file("smb.conf", shares::samba_configuration(&share, &state, port));
        let server = start(sandbox, &shares::samba(&config)).listens(port);
        let client = |commands: &str| start(sandbox, &shares::samba_client(&config, port, commands)).finish();
        let long = pattern(LONG_BYTES);
        let (source, back) = (sandbox.file("source", &long), sandbox.path("back"));
        client(&format!("put {source} long; get long {back}; mkdir d; cd d; put {config} short; rename short s"));
        has_bytes(&format!("{share}/long"), &long);
        has_bytes(&back, &long);
        has_bytes(&format!("{share}/d/s"), &fs::read(&config).expect("the settings"));
        let listed = client("ls d/*");
        let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
        server.stop(TERM);
        format!("{names:?}")
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}

#[test]
fn nfs_ganesha_serves_its_clients() {
    let test = "nfs_ganesha_serves_its_clients";
    if let Some(reason) = missing(&["ganesha.nfsd", "nfs-cp", "nfs-cat", "nfs-ls"]) {
        return skip(test, &reason).unwrap_or_default();
    }
    let counters = both_ways(test, &[], |sandbox| {
        let [export, state] = folders(sandbox, ["export", "state"]);
        let (port, log, process) = (free_port(), sandbox.path("ganesha.log"), sandbox.path("ganesha.pid"));
        let config = sandbox.file("ganesha.conf", shares::ganesha_configuration(&export, &state, port));
        let server = start(sandbox, &shares::ganesha(&config, &log, &process)).listens(port);
        let at = |name: &str| shares::nfs_uri(port, name);
        let long = pattern(LONG_BYTES);
        fs::write(format!("{export}/long"), &long).expect("a file");
        let back = sandbox.path("back");
        run(sandbox, &["nfs-cp", &at("/long"), &back]);
        has_bytes(&back, &long);
        let printed = sandbox.path("printed");
        run(sandbox, &["sh", "-c", "exec nfs-cat \"$0\" > \"$1\"", &at("/long"), &printed]);
        has_bytes(&printed, &long);
        for number in 0..10 {
            let short = &long[number * 1000..][..900 + number];
            let source = sandbox.file(&format!("source-{number}"), short);
            run(sandbox, &["nfs-cp", &source, &at(&format!("/short-{number}"))]);
            has_bytes(&format!("{export}/short-{number}"), short);
        }
        let listed = run(sandbox, &["nfs-ls", &at("")]);
        let mut names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
        names.sort_unstable();
        server.stop(TERM);
        format!("{names:?}")
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}

/// A mounted folder. It is unmounted when this is dropped, whatever became of the process that serves it.
struct Mounted(PathBuf);

impl Mounted {
    fn is_there(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
        mounts.contains(&format!(" {} ", self.0.display()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

#[test]
fn gluster_serves_a_mounted_volume() {
    let test = "gluster_serves_a_mounted_volume";
    let absent = missing(&["glusterfsd", "glusterfs"])
        .or_else(|| (!Path::new("/dev/fuse").exists()).then(|| "no /dev/fuse".to_owned()));
    if let Some(reason) = absent {
        return skip(test, &reason).unwrap_or_default();
    }
    let counters = both_ways(test, &[], |sandbox| {
        let [brick, mounted] = folders(sandbox, ["brick", "mounted"]);
        let port = free_port();
        let of_server = sandbox.file("server.vol", shares::gluster_server_volume(&brick, port));
        let of_client = sandbox.file("client.vol", shares::gluster_client_volume(port));
        let [server_log, client_log, server_pid, client_pid] =
            ["server.log", "client.log", "server.pid", "client.pid"].map(|name| sandbox.path(name));
        let server = start(sandbox, &shares::gluster_server(&of_server, &server_log, &server_pid)).listens(port);
        let folder = Mounted(PathBuf::from(&mounted));
        let client = start(sandbox, &shares::gluster_client(&of_client, &client_log, &client_pid, &mounted));
        let began = Instant::now();
        while !folder.is_there() {
            let logged = || fs::read_to_string(&client_log).unwrap_or_default();
            assert!(began.elapsed() < LIMIT, "never mounted: {}{}", client.printed(), logged());
            std::thread::sleep(Duration::from_millis(10));
        }
        let long = pattern(LONG_BYTES);
        let source = sandbox.file("source", &long);
        // Programs of the mounted folder: a call that hangs is ended with its program.
        let steps = "set -e; cp \"$0\" \"$1/long\"; cmp \"$0\" \"$1/long\"; mkdir \"$1/d\"; cp /etc/passwd \"$1/d/p\"; mv \"$1/d/p\" \"$1/d/q\"
            ln -s long \"$1/link\"; cat \"$1/link\" | cmp - \"$0\"; ls \"$1\" \"$1/d\"; rm -r \"$1/d\"; sync -f \"$1/long\"; umount \"$1\"";
        let listed = run(sandbox, &["timeout", "50", "sh", "-c", steps, &source, &mounted]);
        has_bytes(&format!("{brick}/long"), &long);
        assert!(!Path::new(&brick).join("d").exists());
        client.ended();
        // It ends with the number of the signal as its status.
        let _ = Command::new("kill").arg(server.pid().to_string()).status();
        server.ended();
        listed.replace(&mounted, "")
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}
