//! Locks, as programs of one mount and of two see them.

use crate::scene::{MODES, Mode, Mounted, Second, can_mount};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the calls of `locks.py` return in a folder.
fn calls(folder: &Path, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix/locks.py");
    let mut command = Command::new("timeout");
    // A lock that is never granted must not keep the test forever.
    command.args(["-k", "10", "120", "python3"]).arg(script).arg(folder).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("python3");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn locks_are_as_in_a_plain_folder() {
    if !can_mount("locks_are_as_in_a_plain_folder") {
        return;
    }
    let plain = tempfile::tempdir().expect("a folder");
    let expected = calls(plain.path(), &[]);
    assert!(expected.contains("a circle of 3 EDEADLOCK done done"), "{expected}");
    for mode in MODES {
        let mounted = Mounted::new(mode);
        assert_eq!(calls(mounted.folder.path(), &[]), expected, "{mode:?}");
        assert_eq!(fs::read(mounted.exported("count")).expect("a file"), b"100", "{mode:?}");
    }
}

#[test]
fn locks_of_two_mounts_and_of_the_servers_host_exclude_each_other() {
    if !can_mount("locks_of_two_mounts_and_of_the_servers_host_exclude_each_other") {
        return;
    }
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let second = Second::of(&mounted);
        let exported = mounted.exported.path();
        for other in [second.folder(), exported] {
            let printed = calls(mounted.folder.path(), &["between", other.to_str().expect("text")]);
            // Two mounts that use the directory itself do not know each other's programs.
            let known = if mode == Mode::Messages || other == exported { "True" } else { "False" };
            let expected = [
                "there EAGAIN",
                "here EAGAIN",
                &format!("the holder {known}"),
                "waits True",
                "released done done",
                "counted 100",
            ];
            assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{mode:?}, {}", other.display());
        }
    }
}
