//! `motet run --files` by a mount that only the program and its children see.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use common::exported::Export;
use common::{Folder, can_mount, finish, motet, refused, skipped, until};

/// Copies its first file to standard output, then standard input to its second one, by system calls alone. Its status is 7.
const STATIC_PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
static int copy(int from, int to) {
    char bytes[4096];
    long length = 0;
    while (from >= 0 && to >= 0 && (length = read(from, bytes, sizeof bytes)) > 0)
        if (write(to, bytes, length) != length) return -1;
    return from < 0 || to < 0 || length < 0 ? -1 : 0;
}
int main(int count, char **words) {
    if (copy(open(words[1], O_RDONLY), 1) != 0 || (count > 2 && copy(0, open(words[2], O_WRONLY | O_CREAT | O_TRUNC, 0644)) != 0)) {
        perror("copy");
        return 1;
    }
    return 7;
}
"#;

/// The processes that serve mounts of an export for programs.
fn serving(export: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&&b"serve-mount"[..]) && words.contains(&export.as_bytes())
        })
        .count()
}

/// A program with an input and an output of the test.
fn started(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    (child, output)
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line
}

/// What is mounted where this test runs.
fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").expect("mounts")
}

#[test]
fn a_static_program_sees_each_kind_of_export() {
    if !can_mount("a_static_program_sees_each_kind_of_export") {
        return;
    }
    let place = Folder::new("place");
    let prefix = place.path().to_str().unwrap();
    let program = place.path().with_extension("static");
    let tools = Folder::new("static");
    let compiled = tools.compile("static", STATIC_PROGRAM, &["-static"]);
    fs::rename(compiled, &program).unwrap();
    for (direct, read_only, how) in [
        (true, false, "its directory, mounted for this program only: the program is statically linked"),
        (true, true, "its directory, mounted for this program only"),
        (false, false, "mounted by FUSE for this program only: its server does not allow"),
        (false, true, "mounted by FUSE"),
    ] {
        let export = Export::new(|options| (options.direct, options.read_only) = (direct, read_only));
        export.folder.file("f", "text\n", 0o644);
        fs::create_dir(export.folder.path().join("sub")).unwrap();
        let mut command = motet(["run", "-v", "--files", &format!("{}={prefix}", export.name), "--"]);
        // A relative path of a directory that the mount hides leads to the mounted one.
        let words = [program.to_str().unwrap(), "f", "sub/new"];
        command.args(words).env("MOTET_LIBDIR", export.libraries.path()).current_dir(prefix);
        let (mut child, mut output) = started(command.stderr(Stdio::piped()));
        child.stdin.take().unwrap().write_all(b"given\n").unwrap();
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), &text[..]), (Some(if read_only { 1 } else { 7 }), "text\n"), "{said}");
        assert!(said.contains(how), "{said}");
        let new = export.folder.path().join("sub/new");
        if read_only {
            assert!(said.contains("Read-only file system") && !new.exists(), "{said}");
        } else {
            assert_eq!(fs::read_to_string(new).unwrap(), "given\n");
        }
        until("the mount's server ends", || serving(&export.name) == 0);
    }
    assert!(!mounts().contains(prefix));
    fs::remove_file(program).unwrap();
}

#[test]
fn the_program_is_the_process_and_its_children_keep_the_mount() {
    if !can_mount("the_program_is_the_process_and_its_children_keep_the_mount") {
        return;
    }
    let export = Export::new(|options| options.direct = false);
    export.folder.file("f", "text\n", 0o644);
    let place = Folder::new("kept");
    let prefix = place.path().to_str().unwrap();
    // The process is the program: its id, its signals, its status.
    let script = format!("trap 'cat {prefix}/f; exit 9' TERM; echo $$; while :; do sleep 0.01; done");
    let (mut child, mut output) = started(&mut export.run(prefix, &["sh", "-c", &script]));
    assert_eq!(line(&mut output), format!("{}\n", child.id()));
    assert_eq!(serving(&export.name), 1);
    assert!(!mounts().contains(prefix), "others do not see it");
    assert!(fs::read_dir(prefix).unwrap().next().is_none());
    // Its server is no child of the program, and in another process group than the terminal's.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let children = fs::read_to_string(children).unwrap();
    let serves = |pid: &str| {
        fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().windows(11).any(|w| w == b"serve-mount")
    };
    assert!(!children.split_whitespace().any(serves), "{children}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
    assert_eq!(line(&mut output), "text\n");
    until("the mount ends with the program", || serving(&export.name) == 0);

    // A child in the background goes on, and has the files until it ends.
    let script = format!("exec 3<&0; (read x <&3; cat {prefix}/f; echo late > {prefix}/late) & echo started");
    let (mut child, mut output) = started(&mut export.run(prefix, &["sh", "-c", &script]));
    assert_eq!(line(&mut output), "started\n");
    assert!(child.wait_with_input_open().success());
    assert_eq!(serving(&export.name), 1);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(line(&mut output), "text\n");
    until("the mount ends with the child", || serving(&export.name) == 0);
    assert_eq!(fs::read_to_string(export.folder.path().join("late")).unwrap(), "late\n");

    // A program that is killed leaves nothing.
    let (mut child, mut output) =
        started(&mut export.run(prefix, &["python3", "-c", "print('up', flush=True); input()"]));
    assert_eq!(line(&mut output), "up\n");
    child.kill().unwrap();
    child.wait().unwrap();
    until("nothing is left", || serving(&export.name) == 0);
}

/// Waits for the end of a program without closing its input, which its children may have.
trait WaitWithInputOpen {
    fn wait_with_input_open(&mut self) -> std::process::ExitStatus;
}

impl WaitWithInputOpen for Child {
    fn wait_with_input_open(&mut self) -> std::process::ExitStatus {
        let input = self.stdin.take();
        let status = self.wait().expect("its end");
        self.stdin = input;
        status
    }
}

#[test]
fn exports_by_several_ways_are_seen_at_once() {
    if !can_mount("exports_by_several_ways_are_seen_at_once") {
        return;
    }
    let (direct, served) = (Export::new(|_| {}), Export::new(|options| options.direct = false));
    direct.folder.file("f", "direct\n", 0o644);
    let script = served.folder.file(
        "run",
        "#!/usr/bin/env python3\nimport os, sys\nprint(open(sys.argv[1]).read() + os.environ['GIVEN'])\n",
        0o755,
    );
    assert!(script.exists());
    let place = Folder::new("several");
    let prefix = place.path().to_str().unwrap();
    let mut command = motet(["run", "--files", &format!("{}={prefix}", served.name)]);
    command.args(["--files", &format!("{}=/tmp/motet-preloaded", direct.name), "--"]);
    // The program itself is in the mounted directory.
    command.args([&format!("{prefix}/run"), "/tmp/motet-preloaded/f"]);
    let (code, out, err) = finish(command.env("MOTET_LIBDIR", direct.libraries.path()).env("GIVEN", "given"));
    assert_eq!((code, out.as_str()), (0, "direct\ngiven\n"), "{err}");
    // Paths within each other would hide each other.
    let inner = format!("{prefix}/inner");
    let mut nested = motet(["run", "--files", &format!("{}={prefix}", direct.name)]);
    nested.args(["--files", &format!("{}={inner}", served.name), "true"]).env("MOTET_LIBDIR", direct.libraries.path());
    assert!(refused(&mut nested, 2).contains("lie in each other"));
    let (code, _, err) = finish(&mut served.run(prefix, &["no-such-program"]));
    assert_eq!(code, 127, "{err}");
    until("nothing is left", || serving(&served.name) == 0);
}

#[test]
fn users_other_than_root_mount_in_a_user_namespace() {
    let test = "users_other_than_root_mount_in_a_user_namespace";
    if !can_mount(test) {
        return;
    }
    const USER: u32 = 12345;
    let able = Command::new("setpriv")
        .args(["--reuid", "12345", "--regid", "12345", "--clear-groups", "unshare", "--user", "--mount", "true"])
        .stderr(Stdio::null())
        .status();
    if !able.is_ok_and(|status| status.success()) {
        return skipped(test, "users may not make namespaces here, or no setpriv");
    }
    let folder = Folder::new("user");
    let libraries = Export::new(|_| {});
    for (name, mode) in [("session", 0o700), ("data", 0o755), ("place", 0o755)] {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&path, Some(USER), Some(USER)).unwrap();
    }
    for folder in [folder.path(), libraries.libraries.path()] {
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    folder.compile("static", STATIC_PROGRAM, &["-static"]);
    fs::write(folder.path().join("data/f"), "text\n").unwrap();
    // The command may be where only root gets.
    fs::copy(env!("CARGO_BIN_EXE_motet"), folder.path().join("motet")).unwrap();
    // As on most systems, /dev/fuse is for all users; within this mount namespace only.
    let script = format!(
        "set -e; cd {0}; if [ $1 = fuse ]; then mount -t tmpfs -o dev t {1}/; mknod -m 666 {1}/fuse c 10 229; mount --bind {1}/fuse /dev/fuse; fi
        exec setpriv --reuid {USER} --regid {USER} --clear-groups sh -c '
: > ready-1; : > ready-2
        ./motet export data --as direct > ready-1 & first=$!
        ./motet export data --as served --no-direct > ready-2 & second=$!
        while ! [ -s ready-1 -a -s ready-2 ]; do sleep 0.01; done
        ./motet run --files direct={0}/place -- ./static place/f; echo $?
        ./motet run --files served={0}/place -- ./static place/f place/new < ready-1; echo $?
        ./motet run --files-by mount --files direct={0}/place -- sh -c \"id -u; grep CapEff /proc/self/status\"
        kill $first $second; wait'",
        folder.path().display(),
        folder.path().join("device").display(),
    );
    fs::create_dir(folder.path().join("device")).unwrap();
    for ready in ["ready-1", "ready-2"] {
        let path = folder.file(ready, "", 0o666);
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    let run = |way: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh", way]);
        command.env("MOTET_SESSION_DIR", folder.path().join("session")).env("MOTET_CONFIG", "/dev/null");
        command.env("MOTET_PROFILE", "/dev/null").env("MOTET_LIBDIR", libraries.libraries.path());
        finish(command.stdin(Stdio::null()))
    };
    let (code, out, err) = run("fuse");
    assert_eq!((code, out.as_str()), (0, "text\n7\ntext\n7\n12345\nCapEff:\t0000000000000000\n"), "{err}");
    let new = folder.path().join("data/new");
    assert_eq!((fs::metadata(&new).unwrap().uid(), fs::metadata(&new).unwrap().len() > 0), (USER, true));
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 == 0 {
        let (_, out, err) = run("no");
        assert!(out.starts_with("text\n7\n1\n") && err.contains("/dev/fuse: Permission denied"), "{out}{err}");
    }
}
