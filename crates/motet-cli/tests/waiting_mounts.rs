//! Mounts whose server is away, or is stopped: programs that wait can be ended, and so can mounts.
//!
//! Nothing of this process looks into a mount: it could wait there for ever. Programs of the tests do.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

use common::{Folder, LIMIT, can_mount, descriptor_limits, finish, json, motet, until, with_few_descriptors};

/// Opens the file of a mount, says so, and does in the mount what lines of its standard input say.
const PROGRAM: &str = r#"
import fcntl, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
file = os.open(sys.argv[1] + "/file", os.O_RDWR)
print("open", flush=True)
for line in sys.stdin:
    line = line.strip()
    print(line, flush=True)
    try:
        if line == "look": os.stat(sys.argv[1] + "/absent")
        if line == "list": os.listdir(sys.argv[1])
        if line == "read": os.pread(file, 10, 0)
        if line == "write": os.pwrite(file, b"x", 0)
        if line == "lock": fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if line == "ignore": signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if line == "close": os.close(file)
        print("done", flush=True)
    except OSError as error:
        print("error", error.errno, flush=True)
"#;

/// A program that uses a mount.
struct Program {
    child: Child,
    told: ChildStdin,
    says: Receiver<String>,
}

impl Program {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The next line that it says, within the limit of all tests.
    #[track_caller]
    fn line(&self) -> String {
        self.says.recv_timeout(LIMIT).expect("the program says something")
    }

    /// Begins something.
    #[track_caller]
    fn begin(&mut self, what: &str) {
        writeln!(self.told, "{what}").unwrap();
        assert_eq!(self.line(), what);
    }

    /// Does something while the server answers; returns what came of it.
    #[track_caller]
    fn does(&mut self, what: &str) -> String {
        self.begin(what);
        self.line()
    }

    /// Begins something that waits.
    #[track_caller]
    fn waits(&mut self, what: &str) {
        self.begin(what);
        let stat = format!("/proc/{}/stat", self.child.id());
        let sleeps = || {
            let stat = fs::read_to_string(&stat).unwrap();
            let state = stat.rsplit_once(')').unwrap().1.trim_start().chars().next();
            matches!(state, Some('S' | 'D'))
        };
        until("it waits", sleeps);
    }

    /// The signal that has ended it, within the limit of all tests.
    #[track_caller]
    fn ended_by(&mut self) -> Option<i32> {
        let mut status = None;
        until("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().signal()
    }
}

/// An export, a mount of it by messages, and programs that use that. All end when this is dropped, whatever they wait for.
struct Scene {
    folder: Folder,
    server: Child,
    mount: Child,
    programs: Vec<Program>,
}

/// `None`: no file system can be mounted here, which is said.
fn scene(test: &str) -> Option<Scene> {
    if !can_mount(test) {
        return None;
    }
    let folder = Folder::new("waiting");
    for directory in ["exported", "mount"] {
        fs::create_dir(folder.path().join(directory)).unwrap();
    }
    fs::write(folder.path().join("exported/file"), [7; 10_000]).unwrap();
    let server = serve(&folder);
    let at = folder.path().join("mount");
    let motet = command(&folder, &["mount", "--foreground", "waited", at.to_str().unwrap()]);
    let mount = said(with_few_descriptors(&motet), "is mounted on");
    Some(Scene { folder, server, mount, programs: Vec::new() })
}

fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = motet(arguments);
    command.env("MOTET_SESSION_DIR", folder.path().join("s"));
    command
}

/// Starts a command that serves, and waits for its first line.
fn said(mut command: Command, expected: &str) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(expected), "{line}");
    child
}

fn serve(folder: &Folder) -> Child {
    let exported = folder.path().join("exported");
    said(command(folder, &["export", exported.to_str().unwrap(), "--as", "waited", "--no-direct"]), "is exported as")
}

impl Scene {
    fn at(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// Starts a program, which opens the file; returns its place.
    fn program(&mut self) -> usize {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(self.at())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        let (said, says) = channel();
        // Ends with the program.
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| said.send(line)));
        self.programs.push(Program { child, told, says });
        assert_eq!(self.programs.last().unwrap().line(), "open");
        self.programs.len() - 1
    }

    fn kill_server(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    fn umount(&self, more: &[&str]) -> (i32, String, String) {
        let at = self.at();
        finish(command(&self.folder, &["umount", at.to_str().unwrap()]).args(more))
    }

    /// Waits for the end of the mount's process.
    #[track_caller]
    fn mount_ends(&mut self) {
        let mount = &mut self.mount;
        until("the mount's process ends", || mount.try_wait().unwrap().is_some());
        let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounted.contains(self.at().to_str().unwrap()), "it is still mounted");
    }

    /// Waits until the server has no file of a client open, and no lock.
    #[track_caller]
    fn nothing_is_open(&self) {
        let mut printed = String::new();
        until("the server has closed all files", || {
            let (code, out, err) = finish(&mut command(&self.folder, &["export", "--list", "--json"]));
            assert_eq!(code, 0, "{err}");
            printed = out;
            let exports = json(&printed);
            let export = &exports.as_array().unwrap()[0];
            export["open_files"] == 0 && export["locks"] == 0
        });
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Without its process, and without the connection to the kernel, nothing waits in a mount.
        let _ = self.mount.kill();
        let _ = unmount(self.at(), UnmountFlags::FORCE | UnmountFlags::DETACH);
        for child in
            [&mut self.mount, &mut self.server].into_iter().chain(self.programs.iter_mut().map(|one| &mut one.child))
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn programs_that_wait_end_with_a_signal_that_ends_them() {
    let test = "programs_that_wait_end_with_a_signal_that_ends_them";
    for stopped in [false, true] {
        let Some(mut scene) = scene(test) else { return };
        let places: Vec<usize> = (0..5).map(|_| scene.program()).collect();
        assert_eq!(scene.programs[places[2]].does("lock"), "done");
        assert_eq!(scene.programs[places[4]].does("ignore"), "done");
        if stopped {
            kill_process(Pid::from_child(&scene.server), Signal::STOP).unwrap();
        } else {
            scene.kill_server();
        }
        let calls = [
            ("look", Signal::KILL),
            ("read", Signal::TERM),
            ("write", Signal::KILL),
            ("list", Signal::QUIT),
            ("look", Signal::TERM),
        ];
        for (program, (call, _)) in scene.programs.iter_mut().zip(calls) {
            program.waits(call);
        }
        for (program, (_, signal)) in scene.programs.iter().zip(calls).rev() {
            kill_process(program.pid(), signal).unwrap();
        }
        for (program, (call, signal)) in scene.programs.iter_mut().zip(calls).take(4) {
            assert_eq!(program.ended_by(), Some(signal.as_raw()), "{call}, stopped: {stopped}");
        }
        let last = &mut scene.programs[4];
        assert!(last.child.try_wait().unwrap().is_none(), "what it ignores does not end it");
        kill_process(last.pid(), Signal::KILL).unwrap();
        assert_eq!(last.ended_by(), Some(Signal::KILL.as_raw()), "stopped: {stopped}");
        // The mount goes on with the server, and nothing of the programs is left.
        if stopped {
            kill_process(Pid::from_child(&scene.server), Signal::CONT).unwrap();
        } else {
            scene.server = serve(&scene.folder);
        }
        let next = scene.program();
        for call in ["lock", "write", "read", "list", "close"] {
            assert_eq!(scene.programs[next].does(call), "done", "{call}, stopped: {stopped}");
        }
        scene.nothing_is_open();
    }
}

#[test]
fn mounts_end_although_their_server_is_away() {
    for force in [false, true] {
        let Some(mut scene) = scene("mounts_end_although_their_server_is_away") else { return };
        let (closes, waits) = (scene.program(), scene.program());
        if !force {
            assert_eq!(scene.programs[waits].does("close"), "done");
        }
        scene.kill_server();
        // The kernel has asked for the close when the file system is unmounted, or does so then.
        assert_eq!(scene.programs[closes].does("close"), "done");
        if force {
            scene.programs[waits].waits("look");
            let (code, _, err) = scene.umount(&[]);
            assert!(code == 1 && err.contains("programs use it"), "{code} {err}");
            let (code, out, err) = scene.umount(&["--force"]);
            assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
            let answer = scene.programs[waits].line();
            assert!(answer.starts_with("error"), "{answer}");
        } else {
            let (code, out, err) = scene.umount(&[]);
            assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
        }
        scene.mount_ends();
    }
}

#[test]
fn a_mount_that_gets_sigterm_serves_open_files_as_long_as_the_server_answers() {
    let test = "a_mount_that_gets_sigterm_serves_open_files_as_long_as_the_server_answers";
    let Some(mut scene) = scene(test) else { return };
    let program = scene.program();
    let (soft, hard) = descriptor_limits(scene.mount.id());
    assert_eq!(soft, hard, "it may open as many files as the system allows");
    kill_process(Pid::from_child(&scene.mount), Signal::TERM).unwrap();
    let at = scene.at();
    let is_mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(at.to_str().unwrap());
    until("it is detached", || !is_mounted());
    assert_eq!(scene.programs[program].does("write"), "done");
    assert!(scene.mount.try_wait().unwrap().is_none(), "it serves the open file");
    scene.kill_server();
    let answer = scene.programs[program].does("write");
    assert_eq!(answer, "error 5", "EIO");
    assert_eq!(scene.programs[program].does("close"), "done");
    scene.mount_ends();
}

#[test]
fn only_mounts_of_exports_are_unmounted() {
    let Some(mut scene) = scene("only_mounts_of_exports_are_unmounted") else { return };
    let (exported, other) = (scene.folder.path().join("exported"), scene.folder.path().join("other"));
    fs::create_dir(&other).unwrap();
    let has_other = mount("tmpfs", &other, "tmpfs", MountFlags::empty(), None).is_ok();
    for at in [&exported, &other] {
        for more in [&[][..], &["--force"]] {
            let (code, _, err) = finish(command(&scene.folder, &["umount", at.to_str().unwrap()]).args(more));
            assert!(code == 3 && err.contains("it is not mounted"), "{at:?} {more:?} {code} {err}");
        }
    }
    if has_other {
        unmount(&other, UnmountFlags::empty()).expect("it is still mounted");
    }
    // A mount is found by links, too.
    let (first, second) = (scene.folder.path().join("first"), scene.folder.path().join("second"));
    symlink("second", &first).unwrap();
    symlink(scene.at(), &second).unwrap();
    let unmounted = finish(&mut command(&scene.folder, &["umount", first.to_str().unwrap()]));
    assert_eq!(unmounted, (0, String::new(), String::new()));
    scene.mount_ends();
}
