//! `motet export`, `mount` and `umount`: on one host, on two hosts of a session, and with what users do wrong.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::test_hosts::TestHosts;
use common::{
    Folder, can_mount, descriptor_limits, finish, json, motet, refused, skipped, until, with_few_descriptors,
};

/// Hosts of a test: each has a folder for its sessions. They share the network, unless a command runs on a test host.
struct Hosts(Folder);

/// An export that is served; it ends when this is dropped.
struct Served(Child);

/// A mounted folder; it is unmounted when this is dropped.
struct Mounted(PathBuf);

impl Hosts {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.libraries();
        for host in ["a", "b"] {
            fs::create_dir(folder.path().join(format!("export-{host}"))).unwrap();
            fs::create_dir(folder.path().join(format!("mount-{host}"))).unwrap();
        }
        Self(folder)
    }

    fn dir(&self, host: &str) -> PathBuf {
        self.0.path().join(host)
    }

    fn exported(&self, host: &str) -> PathBuf {
        self.0.path().join(format!("export-{host}"))
    }

    /// How long the log of a writer is in the exported folder of host `a`.
    fn written(&self, writer: u64) -> u64 {
        fs::metadata(self.exported("a").join(format!("log-{writer}"))).map_or(0, |log| log.len())
    }

    fn motet(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.env("MOTET_SESSION_DIR", self.dir(host)).env("MOTET_LIBDIR", self.0.path());
        command
    }

    fn serve(&self, host: &str, name: &str, more: &[&str]) -> Served {
        let folder = self.exported(host);
        let mut command = self.motet(host, &["export", folder.to_str().unwrap(), "--as", name]);
        served(command.args(more))
    }

    /// Mounts an export; `None`: not possible here, which is said.
    fn mount(&self, test: &str, host: &str, export: &str, more: &[&str]) -> Option<Mounted> {
        if !can_mount(test) {
            return None;
        }
        let folder = self.0.path().join(format!("mount-{host}"));
        let (code, out, err) =
            finish(self.motet(host, &["mount", "--soft", "20", export, folder.to_str().unwrap()]).args(more));
        assert_eq!((code, out.as_str()), (0, ""), "{err}");
        Some(Mounted(folder))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in ["a", "b"] {
            let _ = self.motet(host, &["down"]).output();
        }
    }
}

impl Served {
    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let lazily = if std::thread::panicking() { &["-l"][..] } else { &[] };
        let _ = Command::new("umount").args(lazily).arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Starts a command that serves, and waits for its first line.
fn served(command: &mut Command) -> Served {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let served = Served(child);
    assert!(line.contains("is exported as") || line.starts_with("nbd+unix:"), "{line}");
    served
}

#[test]
fn limits_of_the_system_are_errors_of_clients() {
    let test = "limits_of_the_system_are_errors_of_clients";
    let hosts = Hosts::new("limits");
    let (exported, disk) = (hosts.exported("a"), hosts.0.path().join("disk"));
    fs::write(&disk, "").unwrap();
    for (way, served_path) in [("--no-direct", exported), ("--block", disk)] {
        let motet = hosts.motet("a", &["export", "--as", "limited", way, served_path.to_str().unwrap()]);
        let served = served(&mut with_few_descriptors(&motet));
        let (soft, hard) = descriptor_limits(served.0.id());
        assert_eq!(soft, hard, "{way}");
        if way == "--block" {
            continue;
        }
        // As batch systems limit the sizes of files.
        let pid = rustix::process::Pid::from_child(&served.0);
        let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
        let Some(mounted) = hosts.mount(test, "a", "limited", &[]) else { return };
        let file = fs::File::create(mounted.0.join("file")).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        assert_eq!(file.write_at(b"x", 10 << 20).unwrap_err().raw_os_error(), Some(27), "EFBIG");
        assert_eq!(file.set_len(10 << 20).unwrap_err().raw_os_error(), Some(27), "EFBIG");
        file.write_all_at(b"after!", 6).unwrap();
        drop(file);
        assert_eq!(fs::read(hosts.exported("a").join("file")).unwrap(), b"beforeafter!");
    }
}

#[test]
fn what_makes_direct_reads_is_shown() {
    let hosts = Hosts::new("direct-reads");
    for (options, expected) in [
        (&["--storage", "threads"][..], "threads (--storage threads)"),
        (&["--ignore-o-direct"], "O_DIRECT is ignored"),
        (&["--storage", "auto"], "threads ("),
    ] {
        let served = hosts.serve("a", "direct", options);
        let (code, out, err) = finish(&mut hosts.motet("a", &["export", "--list"]));
        assert!(code == 0 && out.contains("STORAGE") && out.contains(expected), "{options:?}: {out}{err}");
        let (code, out, err) = finish(&mut hosts.motet("a", &["why", &served.0.id().to_string()]));
        let line = out.lines().find(|line| line.contains("direct reads by"));
        assert!(code == 0 && line.is_some_and(|line| line.contains(expected)), "{options:?}: {out}{err}");
    }
    let folder = hosts.exported("a");
    let other = ["export", folder.to_str().unwrap(), "--storage", "pool"];
    let (code, _, err) = finish(&mut hosts.motet("a", &other));
    assert!(code == 2 && err.contains("auto, threads, io_uring"), "{err}");
}

#[test]
fn a_disk_may_be_opened_past_the_cache() {
    let hosts = Hosts::new("disk-past-cache");
    fs::write(hosts.exported("a").join("disk"), vec![7; 1 << 20]).unwrap();
    let _served = hosts.serve("a", "disks", &["--no-direct"]);
    let mut disk = served(&mut hosts.motet("a", &["nbd", "disks:disk", "--o-direct"]));
    assert!(disk.0.try_wait().unwrap().is_none(), "the disk is served");
    let (code, out, err) = finish(&mut hosts.motet("a", &["export", "--list", "--json"]));
    assert_eq!(code, 0, "{err}");
    let exports = json(&out);
    let export = exports.as_array().unwrap().iter().find(|export| export["name"] == "disks").unwrap();
    assert_eq!(export["open_files"], 1, "{out}");
    // In a folder of the disk nothing is said; in one in memory the cache is used, and that is.
    let storage = export["storage"].as_str().unwrap();
    assert!(!storage.is_empty() && (!storage.contains("opens") || storage.contains("in memory")), "{storage}");
}

#[test]
fn why_says_what_became_of_direct_io_of_a_disk_and_of_a_mount() {
    use std::os::unix::fs::OpenOptionsExt;
    let hosts = Hosts::new("direct-io-why");
    fs::write(hosts.exported("a").join("disk"), vec![7; 1 << 20]).unwrap();
    let _served = hosts.serve("a", "disks", &["--no-direct", "--ignore-o-direct"]);
    let why = |pid: u64| {
        let (code, out, err) = finish(&mut hosts.motet("a", &["why", &pid.to_string()]));
        assert_eq!(code, 0, "{err}");
        out
    };
    let expected = "1 opens with O_DIRECT use the page cache: its server has --ignore-o-direct";
    let cached = served(&mut hosts.motet("a", &["nbd", "disks:disk"]));
    assert!(!why(cached.0.id().into()).contains("O_DIRECT"), "it has not asked for it");
    drop(cached);
    let disk = served(&mut hosts.motet("a", &["nbd", "disks:disk", "--o-direct"]));
    let said = why(disk.0.id().into());
    assert!(said.contains(expected), "{said}");
    drop(disk);
    let test = "why_says_what_became_of_direct_io_of_a_disk_and_of_a_mount";
    let Some(mounted) = hosts.mount(test, "a", "disks", &[]) else { return };
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let open = fs::OpenOptions::new().read(true).custom_flags(flags).open(mounted.0.join("disk"));
    drop(open.unwrap());
    let ps = json(&finish(&mut hosts.motet("a", &["--json", "ps", "-l"])).1);
    let said = why(ps["export_uses"][0]["process"].as_u64().unwrap());
    assert!(said.contains("(mount) by messages") && said.contains(expected), "{said}");
}

#[test]
fn an_export_is_mounted_and_unmounted() {
    let hosts = Hosts::new("mounted");
    let mut served = hosts.serve("a", "results", &[]);
    fs::write(hosts.exported("a").join("file"), "text").unwrap();
    let list = json(&finish(&mut hosts.motet("a", &["--json", "export", "--list"])).1);
    assert_eq!((&list[0]["name"], &list[0]["address"]), (&"results".into(), &"".into()), "the address is a secret");
    for more in [&[][..], &["--validity", "0"]] {
        let Some(mounted) = hosts.mount("an_export_is_mounted_and_unmounted", "a", "results", more) else { return };
        assert_eq!(fs::read_to_string(mounted.0.join("file")).unwrap(), "text");
        fs::write(mounted.0.join("new"), "written").unwrap();
        assert_eq!(fs::read_to_string(hosts.exported("a").join("new")).unwrap(), "written");
        let busy = fs::File::open(mounted.0.join("file")).unwrap();
        let folder = mounted.0.to_str().unwrap();
        assert!(refused(&mut hosts.motet("a", &["umount", folder]), 1).contains("programs use it"));
        let again = refused(&mut hosts.motet("a", &["mount", "results", folder]), 1);
        assert!(again.contains("an export is mounted here already: motet umount"), "{again}");
        drop(busy);
        assert_eq!(finish(&mut hosts.motet("a", &["umount", folder])), (0, String::new(), String::new()));
        assert!(refused(&mut hosts.motet("a", &["umount", folder]), 3).contains("it is not mounted"));
    }
    served.signal(rustix::process::Signal::TERM);
    assert!(served.0.wait().unwrap().success());
    assert_eq!(fs::read_dir(hosts.dir("a").join(".exports")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn wrong_exports_and_mounts_are_one_clear_line() {
    let hosts = Hosts::new("wrong");
    let folder = hosts.exported("a").to_str().unwrap().to_owned();
    let _served = hosts.serve("a", "results", &[]);
    for (arguments, code, why) in [
        (&["export", &folder, "--as", "results"][..], 1, "export results is served already on this host"),
        (&["export", "/does/not/exist"], 1, "No such file"),
        (&["export", "/etc/passwd", "--as", "x"], 1, "Not a directory"),
        (&["export", &folder, "--as", "../x"], 2, "no name of an export"),
        (&["export", "/"], 2, "use --as NAME"),
        (&["export"], 2, "<DIRECTORY>"),
        (&["mount", "missing", &folder], 3, "no export missing on this host or in the session"),
        (&["mount", "b:results", &folder], 3, "no export results on host b of the session"),
        (&["mount", "root@missing", &folder], 3, "user root has no export missing on this host"),
        (&["mount", "a/b", &folder], 2, "no name of an export"),
        (&["mount", "results", "/does/not/exist"], 1, "/does/not/exist"),
        (&["mount", "results", &folder, "--soft", "x"], 2, "no number of seconds"),
        (&["mount", "results", &folder, "--soft=-1"], 2, "--soft"),
        (&["umount", "/does/not/exist"], 1, "No such file"),
    ] {
        let said = refused(&mut hosts.motet("a", arguments), code);
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
}

#[test]
fn other_users_find_no_export() {
    if !rustix::process::getuid().is_root() {
        return skipped("other_users_find_no_export", "not root");
    }
    let hosts = Hosts::new("users");
    let _served = hosts.serve("a", "results", &[]);
    let socket = hosts.dir("a").join(".exports/results.sock");
    // A folder that lets others in: the server itself must refuse them.
    for folder in [hosts.0.path(), &hosts.dir("a"), &hosts.dir("a").join(".exports")] {
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'{\"root\":true}\\n'); print(s.recv(100))";
    let asked = |uid: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", uid, "--regid", uid, "--clear-groups", "python3", "-c", ask]).arg(&socket);
        finish(&mut command)
    };
    assert!(asked("0").1.contains("results"));
    let (code, out, _) = asked("1");
    assert!(code != 0 || out == "b''\n", "{out}");
}

#[test]
fn a_client_on_another_host_of_the_session_goes_on_after_kill_9() {
    let test = "a_client_on_another_host_of_the_session_goes_on_after_kill_9";
    let hosts = Hosts::new("hosts");
    let agent = format!("env MOTET_SESSION_DIR={}/%h", hosts.0.path().display());
    let up = ["up", "--host", "a", "--listen", "127.0.0.1:0", "--hosts", "b", "--agent", &agent];
    assert_eq!(finish(&mut hosts.motet("a", &up)).0, 0);
    let mut served = hosts.serve("a", "results", &[]);
    let listed = |from: &str, path: &str| {
        let request = format!(
            "import http.client, socket, sys\nclass C(http.client.HTTPConnection):\n  def connect(self):\n    self.sock = socket.socket(socket.AF_UNIX); self.sock.connect(sys.argv[1])\nc = C('localhost'); c.request('GET', '{path}'); r = c.getresponse(); print(r.status, r.read().decode())"
        );
        let socket = hosts.dir(from).join("default/gatekeeper.sock");
        finish(Command::new("python3").args(["-c", &request]).arg(socket)).1
    };
    until("b knows the export of a", || listed("b", "/v1/hosts/a/exports").contains("\"name\":\"results\""));
    assert!(!listed("b", "/v1/hosts/a/exports").contains("address"), "the address is a secret");
    assert!(listed("b", "/v1/hosts/a/export-addresses/missing").starts_with("404"));
    for export in ["results", "a:results"] {
        let Some(mounted) = hosts.mount(test, "b", export, &[]) else { return };
        let path = mounted.0.join("file");
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        served.signal(rustix::process::Signal::KILL);
        served.0.wait().unwrap();
        let writer = std::thread::spawn(move || file.write_all_at(b"after!", 6));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!writer.is_finished(), "the write waits for the server");
        served = hosts.serve("a", "results", &[]);
        writer.join().unwrap().unwrap();
        assert_eq!(fs::read_to_string(hosts.exported("a").join("file")).unwrap(), "beforeafter!");
    }
}

#[test]
fn git_and_make_work_over_two_test_hosts() {
    let test = "git_and_make_work_over_two_test_hosts";
    if !can_mount(test) {
        return;
    }
    let hosts = TestHosts::up("two", &["a", "b"]);
    let exported = hosts.path("export");
    for directory in ["export", "mount-b"] {
        fs::create_dir(hosts.path(directory)).unwrap();
    }
    let _served = served(&mut hosts.motet("a", &["export", exported.to_str().unwrap(), "--as", "results"]));
    let (motet, folder) = (env!("CARGO_BIN_EXE_motet"), hosts.folder.path().display());
    let work = format!(
        "set -e; {motet} mount --soft 20 results {folder}/mount-b; cd {folder}/mount-b; export HOME=$PWD
        git init -q one; cd one; git config user.email a@b; git config user.name n
        printf 'int main(void) {{ return 0; }}' > main.c; printf 'main: main.c\\n\\t$(CC) -o main main.c\\n' > Makefile
        git add .; git commit -qm first; cd ..; git clone -q one two; cd two; make -s; ./main; git status --short
        cd /; {motet} umount {folder}/mount-b; echo built"
    );
    // One command of the host: each has a mount namespace of its own.
    let (code, out, err) = finish(&mut hosts.on("b", &["bash", "-c", &work]));
    assert!(code == 0 && out.ends_with("?? main\nbuilt\n"), "{out}{err}");
    assert!(exported.join("two/main").exists() && exported.join("one/.git").is_dir());
    // One program mounts the other host's export for itself, and does the same work.
    let place = format!("{folder}/mount-b");
    let work = format!(
        "set -e; cd {place}; export HOME=$PWD; git clone -q one three; cd three; make -s; ./main; git status --short; pwd"
    );
    let words = [motet, "run", "-v", "--files", &format!("a:results={place}"), "--", "bash", "-c", &work];
    let (code, out, err) = finish(&mut hosts.on("b", &words));
    assert_eq!((code, out), (0, format!("?? main\n{place}/three\n")), "{err}");
    assert!(err.contains("mounted by FUSE for this program only: it is asked for at host a"), "{err}");
    assert!(exported.join("three/main").exists());
}

#[test]
fn a_file_is_striped_over_the_hosts_of_a_session() {
    let test = "a_file_is_striped_over_the_hosts_of_a_session";
    if !can_mount(test) {
        return;
    }
    let hosts = TestHosts::up("stripes", &["a", "b", "c"]);
    for directory in ["export-a", "export-b", "mount-c"] {
        fs::create_dir(hosts.path(directory)).unwrap();
    }
    let (motet, folder) = (env!("CARGO_BIN_EXE_motet"), hosts.folder.path().display().to_string());
    let _part = served(&mut hosts.motet("b", &["export", &format!("{folder}/export-b"), "--as", "parts"]));
    let whole = ["export", &format!("{folder}/export-a"), "--as", "results", "--stripe", "b:parts"];
    let _whole = served(&mut hosts.motet("a", &[&whole[..], &["--stripe-unit", "65536"]].concat()));
    // The host of the client is not the primary one, and the part is on a third one.
    let work = format!(
        "set -e; cd {folder}; {motet} mount --soft 20 results mount-c
        head -c 3000000 /dev/urandom > original; cp original mount-c/copy; cmp original mount-c/copy
        dd if=original of=mount-c/copy bs=100000 seek=7 count=5 skip=7 conv=notrunc status=none; cmp original mount-c/copy
        truncate -s 1000 mount-c/copy; truncate -s 3000000 mount-c/copy; cat mount-c/copy | tail -c +1001 | tr -d '\\0' | wc -c
        cp original mount-c/kept; rm mount-c/copy; ls mount-c; {motet} umount mount-c"
    );
    let (code, out, err) = finish(&mut hosts.on("c", &["bash", "-c", &work]));
    assert_eq!((code, out.as_str()), (0, "0\nkept\n"), "{err}");
    let parts: Vec<_> = fs::read_dir(hosts.path("export-b")).unwrap().flatten().collect();
    assert_eq!(parts.len(), 1, "the part of the removed file is removed, too");
    let (original, part) = (fs::read(hosts.path("original")).unwrap(), fs::read(parts[0].path()).unwrap());
    assert!(part[65536..131_072] == original[65536..131_072] && part[..65536].iter().all(|&byte| byte == 0));
}

/// Threads that number their records until standard input ends, then print how many each has written.
const WRITING_PROGRAM: &str = "
import os, sys, threading
folder, writers, ends, counts = sys.argv[1], int(sys.argv[2]), threading.Event(), {}
def write(writer):
    file, records = os.open(f'{folder}/log-{writer}', os.O_WRONLY | os.O_CREAT), 0
    while not ends.is_set():
        # Short ones ride in their requests, long ones follow them.
        record = (records * writers + writer).to_bytes(8, 'little') * (8192 if records % 8 == 0 else 16)
        if os.pwrite(file, record, records * 65536) != len(record): os._exit(1)
        records += 1
        with open(f'{folder}/named-{writer}-{records % 50}', 'w') as named: named.write(str(records))
        if records % 50 == 0: os.fsync(file)
    counts[writer] = records
def run(writer):
    try: write(writer)
    except OSError as error:
        print(error, file=sys.stderr); os._exit(1)
threads = [threading.Thread(target=run, args=(writer,)) for writer in range(writers)]
for thread in threads: thread.start()
sys.stdin.read(); ends.set()
for thread in threads: thread.join()
print(*[counts[writer] for writer in range(writers)])
";

#[test]
fn nothing_that_was_written_is_lost_when_the_server_is_killed_again_and_again() {
    // More for a longer test.
    let kills: u32 = std::env::var("MOTET_TEST_KILLS").map_or(25, |kills| kills.parse().unwrap());
    const WRITERS: u64 = 4;
    let hosts = Hosts::new("killed");
    let mut served = hosts.serve("a", "results", &["--no-direct"]);
    let test = "nothing_that_was_written_is_lost_when_the_server_is_killed_again_and_again";
    let Some(mounted) = hosts.mount(test, "a", "results", &["--validity", "0"]) else { return };
    // A process of its own: the start of a program waits while files of this process that it would inherit are being written.
    let mut writers = Command::new("python3")
        .args(["-c", WRITING_PROGRAM, mounted.0.to_str().unwrap(), &WRITERS.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut random = u64::from(std::process::id()) | 1;
    for kill in 0..kills {
        if kill % 2 == 1 {
            // Every writer goes on after a restart. The other kills may also hit a server that clients still return to.
            let sizes = || (0..WRITERS).map(|writer| hosts.written(writer)).collect::<Vec<u64>>();
            let before = sizes();
            until("each writer writes", || sizes().iter().zip(&before).all(|(size, before)| size > before));
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(2000 + (random >> 40) % 60_000));
        served.signal(rustix::process::Signal::KILL);
        served.0.wait().unwrap();
        served = hosts.serve("a", "results", &["--no-direct"]);
    }
    drop(writers.stdin.take());
    let written = writers.wait_with_output().unwrap();
    assert!(written.status.success(), "a write has failed");
    let answered: Vec<u64> =
        String::from_utf8(written.stdout).unwrap().split_whitespace().map(|count| count.parse().unwrap()).collect();
    assert_eq!(answered.len() as u64, WRITERS);
    for (writer, records) in (0..WRITERS).zip(answered) {
        assert!(records >= u64::from(kills / 2), "writer {writer} wrote between the kills: {records} records");
        let log = fs::File::open(hosts.exported("a").join(format!("log-{writer}"))).unwrap();
        for record in 0..records {
            let (expected, copies) =
                ((record * WRITERS + writer).to_le_bytes(), if record % 8 == 0 { 8192 } else { 16 });
            let mut bytes = vec![0; copies * 8];
            log.read_exact_at(&mut bytes, record * 65536).unwrap();
            assert!(bytes.chunks(8).all(|chunk| chunk == expected), "writer {writer}, record {record}");
        }
        for last in records.saturating_sub(40).max(1)..=records {
            let name = hosts.exported("a").join(format!("named-{writer}-{}", last % 50));
            assert_eq!(fs::read_to_string(name).unwrap(), last.to_string(), "writer {writer}");
        }
    }
}
