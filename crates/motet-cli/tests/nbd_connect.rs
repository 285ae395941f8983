//! `--connect` of `motet nbd` and `motet export --block`: a disk as a block device of this host. Without root, loop devices, FUSE, or nbdfuse each test is
//! skipped, and says so.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Folder, motet, refused, skipped, until};
use motet_files::server::{Options, Server};

const MIB: u64 = 1 << 20;

/// What is missing for a block device, if something is.
fn missing(programs: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    let absent = ["/dev/loop-control", "/dev/fuse"].into_iter().find(|path| !Path::new(path).exists());
    let is_there = |program: &&&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).exists())
    };
    let absent = absent.or_else(|| programs.iter().find(|program| !is_there(program)).copied())?;
    Some(format!("no {absent}"))
}

/// A running command that has attached a disk. It is killed when this is dropped.
struct Attached {
    command: Child,
    device: PathBuf,
    /// The number of the device's attachment, which no later one has.
    sequence: String,
    errors: PathBuf,
}

impl Attached {
    /// Starts a command, in a folder of sessions of its own.
    fn start(command: &mut Command, folder: &Folder) -> Self {
        Self::spawn(command.env("MOTET_SESSION_DIR", folder.path().join("session")), folder)
    }

    fn spawn(command: &mut Command, folder: &Folder) -> Self {
        let errors = folder.path().join("errors");
        let mut command =
            command.stdout(Stdio::piped()).stderr(File::create(&errors).expect("a file")).spawn().expect("the command");
        let mut line = String::new();
        BufReader::new(command.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
        let device = PathBuf::from(line.trim());
        let sequence = sequence(&device).unwrap_or_default();
        let attached = Self { command, device, sequence, errors };
        assert!(attached.device.starts_with("/dev") && attached.is_attached(), "{line}: {}", attached.said());
        attached
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    fn signal(&self, signal: &str) {
        assert!(run("kill", &[signal, &self.command.id().to_string()]).0);
    }

    /// The device has this disk, and not another one that was attached later.
    fn is_attached(&self) -> bool {
        let name = self.device.file_name().expect("a name");
        let file = Path::new("/sys/block").join(name).join("loop/backing_file");
        file.exists() && sequence(&self.device).is_some_and(|sequence| sequence == self.sequence)
    }

    /// Child processes that run.
    fn children(&self) -> Vec<String> {
        let id = self.command.id();
        let listed = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("its children");
        listed.split_whitespace().map(str::to_owned).collect()
    }

    fn has_ended(&mut self) -> bool {
        self.command.try_wait().expect("a child").is_some()
    }

    /// The exit status, once it has ended by itself.
    fn code(&mut self) -> Option<i32> {
        let mut status = None;
        until("the command ends", || {
            status = self.command.try_wait().expect("a child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

/// A mounted file system of a test. It is unmounted when this is dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).stderr(Stdio::null()).status();
    }
}

/// The number of the attachment of a device.
fn sequence(device: &Path) -> Option<String> {
    fs::read_to_string(Path::new("/sys/block").join(device.file_name()?).join("diskseq")).ok()
}

/// Whether a process runs; the parent of one that has ended may not have taken notice.
fn runs(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("\nState:\tZ")
}

/// Runs a program; returns whether it has succeeded, and what it has printed.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("a program");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[track_caller]
fn succeeds(program: &str, arguments: &[&str]) {
    let (succeeded, printed) = run(program, arguments);
    assert!(succeeded, "{program} {arguments:?}: {printed}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test")
}

/// A file that is all a hole.
fn disk(folder: &Folder, bytes: u64) -> PathBuf {
    let path = folder.path().join("disk.img");
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
    path
}

/// Nothing of a command is in the folder of its session but sockets, and nothing is mounted there.
fn leaves_nothing(folder: &Folder) {
    let exports = folder.path().join("session/.exports");
    let names: Vec<_> = fs::read_dir(exports).expect("a folder").flatten().collect();
    assert!(!names.iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())), "{names:?}");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
    assert!(!mounts.contains(text(folder.path())), "{mounts}");
}

#[test]
fn a_file_system_lives_on_the_block_device() {
    let test = "a_file_system_lives_on_the_block_device";
    if let Some(why) = missing(&["nbdfuse", "mkfs.ext4", "fsck.ext4", "git", "make"]) {
        return skipped(test, &why);
    }
    let folder = Folder::new("connect");
    let exported = folder.path().join("export");
    fs::create_dir(&exported).expect("a folder");
    File::create(exported.join("disk")).and_then(|file| file.set_len(128 * MIB)).expect("a file");
    let name = format!("connect-{}", std::process::id());
    // By messages to the server, which is found in this process's own folder of sessions.
    let options = Options { name: name.clone(), directory: exported.clone(), ..Options::default() };
    let _server = Server::start(options).expect("a server of files");
    let mut command = motet(["nbd", &format!("{name}:disk"), "--connect"]);
    let mounted = folder.path().join("mounted");
    fs::create_dir(&mounted).expect("a folder");
    let mut attached = Attached::spawn(&mut command, &folder);
    let device = text(&attached.device).to_owned();
    succeeds("mkfs.ext4", &["-q", &device]);
    succeeds("fsck.ext4", &["-nf", &device]);
    succeeds("mount", &[&device, text(&mounted)]);
    let at = Mounted(&mounted);
    let build = "set -e; cd \"$0\"; export HOME=$PWD; git init -q one; cd one; git config user.email a@b; git config user.name n
        printf 'int main(void) { return 0; }' > main.c; printf 'main: main.c\\n\\tcc -o main main.c\\n' > Makefile
        git add .; git commit -qm first; cd ..; git clone -q one two; cd two; make -s; ./main; test \"$(git status --short)\" = '?? main'";
    succeeds("bash", &["-c", build, text(&mounted)]);
    let bytes: Vec<u8> = (0..5 * MIB).map(|at| (at * at / 7) as u8).collect();
    fs::write(mounted.join("file"), &bytes).expect("a file in the file system");

    // It does not go while it is in use.
    attached.signal("-TERM");
    until("it says what it waits for", || attached.said().contains("is in use"));
    assert!(!attached.has_ended() && attached.is_attached());
    fs::write(mounted.join("later"), b"later").expect("a file in the file system");
    assert!(fs::read(mounted.join("file")).expect("the file") == bytes);
    succeeds("umount", &[text(&mounted)]);
    drop(at);
    assert_eq!(attached.code(), Some(0), "{}", attached.said());
    assert!(!attached.is_attached());

    // The file of the export is the same file system.
    succeeds("fsck.ext4", &["-nf", text(&exported.join("disk"))]);
    let mut command = motet(["export", "--read-only", "--connect", "--block"]);
    let mut attached = Attached::start(command.arg(exported.join("disk")), &folder);
    let device = text(&attached.device).to_owned();
    let written = fs::OpenOptions::new().write(true).open(&device).and_then(|mut device| device.write_all(&[1; 512]));
    assert!(written.is_err(), "a device that refuses changes is written");
    succeeds("mount", &["-o", "ro,noload", &device, text(&mounted)]);
    let at = Mounted(&mounted);
    assert!(fs::read(mounted.join("file")).expect("the file") == bytes);
    assert_eq!(fs::read(mounted.join("later")).expect("the file"), b"later");
    succeeds("umount", &[text(&mounted)]);
    drop(at);
    attached.signal("-INT");
    assert_eq!(attached.code(), Some(0), "{}", attached.said());
    leaves_nothing(&folder);
}

#[test]
fn nothing_is_left_behind_by_a_kill() {
    let test = "nothing_is_left_behind_by_a_kill";
    if let Some(why) = missing(&["nbdfuse"]) {
        return skipped(test, &why);
    }
    let folder = Folder::new("connect-kill");
    let mut command = motet(["export", "--connect", "--block"]);
    let mut attached = Attached::start(command.arg(disk(&folder, 8 * MIB)), &folder);
    let children = attached.children();
    assert_eq!(children.len(), 1, "nbdfuse alone");
    attached.command.kill().expect("a kill");
    attached.command.wait().expect("its end");
    until("nbdfuse ends", || !runs(&children[0]));
    until("the device is free", || !attached.is_attached());
    leaves_nothing(&folder);
}

/// A kill before the loop device exists, which a program in place of nbdfuse brings about.
#[test]
fn what_a_kill_at_the_beginning_has_left_goes_with_the_next_command() {
    let test = "what_a_kill_at_the_beginning_has_left_goes_with_the_next_command";
    if Path::new("/sys/block/nbd0").exists() {
        return skipped(test, "the kernel's nbd driver is loaded");
    }
    let folder = Folder::new("connect-early");
    let path = disk(&folder, MIB);
    let command = || {
        let mut command = motet(["export", "--connect", "--block"]);
        command.arg(&path).env("MOTET_SESSION_DIR", folder.path().join("session")).env("PATH", folder.path());
        command
    };
    let started = folder.path().join("started");
    folder.file("nbdfuse", &format!("#!/bin/sh\n: > {}\nexec /bin/sleep 1000\n", text(&started)), 0o755);
    let mut first = command().stderr(Stdio::null()).spawn().expect("the command");
    until("nbdfuse runs", || started.exists());
    first.kill().expect("a kill");
    first.wait().expect("its end");
    folder.file("nbdfuse", "#!/bin/sh\nexit 1\n", 0o755);
    refused(&mut command(), 1);
    leaves_nothing(&folder);
}

#[test]
fn the_command_ends_with_its_device() {
    let test = "the_command_ends_with_its_device";
    if let Some(why) = missing(&["nbdfuse"]) {
        return skipped(test, &why);
    }
    let folder = Folder::new("connect-end");
    let mut command = motet(["export", "--connect", "--block"]);
    let mut attached = Attached::start(command.arg(disk(&folder, 8 * MIB)), &folder);
    for child in attached.children() {
        assert!(run("kill", &["-KILL", &child]).0);
    }
    assert_eq!(attached.code(), Some(1));
    assert!(attached.said().contains("nbdfuse has ended"), "{}", attached.said());
    until("the device is free", || !attached.is_attached());
    leaves_nothing(&folder);
}

#[test]
fn what_cannot_be_attached_is_refused() {
    let folder = Folder::new("connect-refused");
    let path = disk(&folder, MIB);
    let refused_with = |words: &[&str], code: i32| {
        let mut command = motet(["export", "--connect"]);
        command.args(words).env("MOTET_SESSION_DIR", folder.path().join("session"));
        refused(command.env("PATH", folder.path()), code)
    };
    let said = refused_with(&["--block", text(&path)], 1);
    assert!(said.contains("nbdfuse: not installed") || said.contains("nbd-client: not installed"), "{said}");
    refused_with(&["--block", text(&path), "--listen", "127.0.0.1:0"], 2);
    refused_with(&[text(folder.path())], 2);
    leaves_nothing(&folder);
}
