//! Users: what each may do, and whose the files are.

use crate::scene::{MODES, MemoryDisk, Mode, Mounted, is_able, open_folder, server, skip};
use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::process::Stdio;

/// Runs a program as a user other than root, with two groups besides its own.
const AS_USER: [&str; 7] = ["--reuid", "1000", "--regid", "1001", "--groups", "7,8", "--"];

/// Makes files and directories of several owners and permissions, as root.
const MATRIX: &str = r#"
import os
os.umask(0)
for user in (0, 1000, 2000):
    for group in (0, 1001, 8, 9):
        for mode in (0o600, 0o640, 0o604, 0o060, 0o006, 0o222, 0o711, 0o777):
            name = f"{user}-{group}-{mode:o}"
            for path in ("file-" + name, "other-" + name): os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode)); os.chown(path, user, group)
            os.mkdir("dir-" + name); open(f"dir-{name}/inner", "w").close(); os.chown("dir-" + name, user, group); os.chmod("dir-" + name, mode)
for name, mode in (("sticky", 0o1777), ("shared", 0o2777), ("plain", 0o777)):
    os.mkdir(name); os.chown(name, 2000, 8); os.chmod(name, mode)
    open(name + "/root", "w").close(); open(name + "/two", "w").close(); os.chown(name + "/two", 2000, 2000)
for name, mode in (("suid-write", 0o4777), ("suid-truncate", 0o4777), ("sgid-write", 0o2777)):
    open(name, "w").close(); os.chmod(name, mode)
"#;

/// Prints what another user can do to each of them.
const TRIES: &str = r#"
import errno, os
os.umask(0o027)
def tried(call):
    try: call(); return "done"
    except OSError as error: return errno.errorcode[error.errno]
def listed(folder):
    try: return [(entry.name, entry.is_dir(), tried(lambda: os.lstat(entry.path))) for entry in os.scandir(folder)]
    except OSError as error: return errno.errorcode[error.errno]
for name in sorted(name for name in os.listdir(".") if name.startswith("dir-")): print(name, listed(name), listed(name))
for name in sorted(name[5:] for name in os.listdir(".") if name.startswith("file-")):
    file, folder = "file-" + name, "dir-" + name
    calls = [lambda: os.close(os.open(file, os.O_RDONLY)), lambda: os.close(os.open(file, os.O_WRONLY)), lambda: os.close(os.open(file, os.O_RDWR | os.O_TRUNC)),
        lambda: os.truncate(file, 3), lambda: os.utime(file), lambda: os.utime(file, (1, 2)), lambda: os.chown(file, -1, 8), lambda: os.chown(file, -1, 9),
        lambda: os.chown(file, 1000, -1), lambda: os.setxattr(file, "user.k", b"v"), lambda: os.getxattr(file, "user.k"), lambda: os.link(file, "plain/" + name), lambda: os.listdir(folder),
        lambda: os.stat(folder + "/inner"), lambda: open(folder + "/new", "x").close(), lambda: os.mkdir(folder + "/d"), lambda: os.rename(folder + "/inner", folder + "/moved"),
        lambda: os.unlink(folder + "/moved"), lambda: os.symlink("x", folder + "/l"), lambda: os.chmod(file, 0o2755), lambda: os.chmod(folder, 0o700), lambda: os.unlink("other-" + name)]
    print(name, *[tried(call) for call in calls], oct(os.stat(file).st_mode))
for folder in ("sticky", "shared", "plain"):
    print(folder, [tried(call) for call in (lambda: os.unlink(folder + "/root"), lambda: os.rename(folder + "/two", folder + "/x"), lambda: open(folder + "/mine", "x").close(), lambda: os.mkdir(folder + "/sub"),
        lambda: os.symlink("a", folder + "/link"), lambda: os.mkfifo(folder + "/pipe"), lambda: os.mknod(folder + "/null", 0o20666, os.makedev(1, 3)))])
    for name in sorted(os.listdir(folder)):
        found = os.lstat(folder + "/" + name)
        if found.st_uid: print(name, oct(found.st_mode), found.st_uid, found.st_gid)
for name in ("suid-write", "sgid-write"):
    with open(name, "a") as file: file.write("x")
os.truncate("suid-truncate", 5)
print([oct(os.stat(name).st_mode) for name in ("suid-write", "sgid-write", "suid-truncate")])
"#;

#[test]
fn another_user_may_do_what_it_may_do_on_a_plain_folder() {
    if !is_able("another_user_may_do_what_it_may_do_on_a_plain_folder") {
        return;
    }
    let tried = |exported: &Path, used: &Path| {
        fs::set_permissions(exported, fs::Permissions::from_mode(0o755)).expect("permissions");
        assert!(
            Command::new("python3").args(["-c", MATRIX]).current_dir(exported).status().expect("python3").success()
        );
        // Root has looked at half of the files: the kernel knows their names.
        let looked = Command::new("find").args(["-path", "*-0-*", "-ls"]).current_dir(used).output().expect("find");
        assert!(looked.status.success());
        let mut command = Command::new("setpriv");
        command.args(AS_USER).args(["/usr/bin/python3", "-c", TRIES]).current_dir(used);
        let output = command.output().expect("setpriv");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    // A file system in memory, so that extended attributes are those of the same one.
    let on_disk = || {
        let folder = open_folder();
        (MemoryDisk::new(folder.path(), "mode=755"), folder)
    };
    let (_disk, plain) = on_disk();
    let expected = tried(plain.path(), plain.path());
    assert!(expected.contains("EACCES") && expected.contains("done") && expected.contains("EPERM"), "{expected}");
    for mode in MODES {
        let (_disk, exported) = on_disk();
        let mounted = Mounted::of(exported, false, mode, true);
        let found = tried(mounted.exported.path(), mounted.folder.path());
        for (found, expected) in found.lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{mode:?}");
        }
        assert_eq!(found.len(), expected.len(), "{mode:?}");
    }
}

/// Makes files in several groups, by all ways to open a file, as the user and the group of the arguments. Prints their modes and owners.
const CREATING: &str = r#"
import os, sys
user, group = int(sys.argv[1]), int(sys.argv[2])
os.umask(0)
for folder, mode in (("plain", 0o777), ("shared", 0o2777)):
    os.mkdir(folder); os.chown(folder, 2000, 8); os.chmod(folder, mode)
os.setgroups([7]); os.setegid(group); os.seteuid(user)
for folder in ("plain", "shared"):
    for index, flags in enumerate((os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_EXCL | os.O_TRUNC, os.O_CREAT | os.O_TRUNC | os.O_APPEND)):
        for mode in (0o644, 0o2750, 0o2754, 0o4755):
            name = f"{folder}/{index}-{mode:o}"
            file = os.open(name, flags | os.O_RDWR, mode)
            made = os.stat(name)
            os.close(os.open(name, flags & ~os.O_EXCL | os.O_RDWR, mode))
            os.write(file, b"x"); os.close(file)
            print(name, oct(made.st_mode), made.st_uid, made.st_gid, oct(os.stat(name).st_mode))
    os.mkdir(folder + "/folder", 0o2755); os.mkfifo(folder + "/pipe", 0o2755)
    for name in ("folder", "pipe"): made = os.stat(f"{folder}/{name}"); print(name, oct(made.st_mode), made.st_uid, made.st_gid)
"#;

#[test]
fn files_are_made_in_other_groups_by_users_and_by_root() {
    if !is_able("files_are_made_in_other_groups_by_users_and_by_root") {
        return;
    }
    let made = |folder: &Path, user: &str, group: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", CREATING, user, group]).current_dir(folder);
        let output = command.output().expect("python3");
        assert!(output.status.success(), "{user}, {group}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    for (user, group) in [("0", "0"), ("0", "7"), ("0", "1001"), ("1000", "1001"), ("1000", "7"), ("1000", "8")] {
        let plain = open_folder();
        let expected = made(plain.path(), user, group);
        for mode in MODES {
            let mounted = Mounted::for_all_users(mode);
            assert_eq!(made(mounted.folder.path(), user, group), expected, "{mode:?}: {user}, {group}");
            // The server and the mount go on.
            fs::write(mounted.path("after"), "text").expect("a file");
        }
    }
}

/// Sets access lists that are the mode alone, and default ones, and prints the modes that the kernel shows.
const ACCESS_LIST: &str = r#"
import os, struct, subprocess
def entries(*permissions):
    parts = zip((0x01, 0x04, 0x20), permissions)
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, permission, 0xffffffff) for tag, permission in parts)
def mode(name):
    # With what else os.stat asks for, the kernel would not use what it has cached.
    return subprocess.run(["stat", "-c", "%a", name], check=True, capture_output=True, text=True).stdout.strip()
os.umask(0)
os.mkdir("folder", 0o700); os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600))
for name in ("file", "folder"):
    shown = [mode(name)]
    for permissions in ((7, 5, 1), (6, 4, 0)):
        os.setxattr(name, "system.posix_acl_access", entries(*permissions))
        shown.append(mode(name))
    print(name, *shown)
# What is made in a directory with a default access list has its permissions, and not those that the umask leaves.
os.umask(0o077)
for name in ("with", "without"):
    os.mkdir(name, 0o700)
    os.setxattr(name, "system.posix_acl_default", entries(7, 7, 5))
    if name == "without": os.mkdir("without/before", 0o777); os.removexattr(name, "system.posix_acl_default")
    os.close(os.open(name + "/file", os.O_CREAT | os.O_WRONLY, 0o666)); os.mkdir(name + "/folder", 0o777); os.mkfifo(name + "/pipe", 0o666)
    print(name, *(mode(f"{name}/{made}") for made in ("file", "folder", "pipe")))
print("before", mode("without/before"))
"#;

#[test]
fn access_lists_and_modes_go_together() {
    if !is_able("access_lists_and_modes_go_together") {
        return;
    }
    for mode in MODES {
        let exported = open_folder();
        let _disk = MemoryDisk::new(exported.path(), "mode=755");
        let mounted = Mounted::of(exported, false, mode, false);
        let mut command = Command::new("python3");
        let output = command.args(["-c", ACCESS_LIST]).current_dir(mounted.folder.path()).output().expect("python3");
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("Operation not supported") {
            return skip("access_lists_and_modes_go_together", "no access lists in tmpfs of this system");
        }
        let printed = String::from_utf8_lossy(&output.stdout);
        let expected = "file 600 751 640\nfolder 700 751 640\nwith 664 775 664\nwithout 600 700 600\nbefore 775\n";
        assert_eq!(printed, expected, "{mode:?}: {errors}");
    }
}

/// Opens files, and goes on with them after a line on standard input.
const RESUMING: &str = r#"
import errno, os, sys
kept, lost, bare = os.open("kept", os.O_RDWR | os.O_CREAT, 0o600), os.open("lost", os.O_RDWR), os.open("bare", os.O_RDWR | os.O_CREAT, 0)
print("open", flush=True); sys.stdin.readline()
print(os.pwrite(kept, b"after", 0), os.pwrite(bare, b"after", 0), os.stat("kept").st_uid)
try: os.pwrite(lost, b"after", 0); print("written")
except OSError as error: print(errno.errorcode[error.errno])
"#;

#[test]
fn a_restarted_server_opens_files_again_as_who_had_opened_them() {
    if !is_able("a_restarted_server_opens_files_again_as_who_had_opened_them") {
        return;
    }
    let mut mounted = Mounted::for_all_users(Mode::Messages);
    let lost = mounted.exported("lost");
    fs::write(&lost, "before").expect("a file");
    for path in [&lost, mounted.exported.path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("permissions");
    }
    let mut command = Command::new("setpriv");
    command.args(AS_USER).args(["/usr/bin/python3", "-c", RESUMING]).current_dir(mounted.folder.path());
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setpriv");
    let mut output = BufReader::new(program.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "open\n");
    drop(mounted.server.take());
    // Root could open it, its user cannot any more.
    fs::set_permissions(&lost, fs::Permissions::from_mode(0o600)).expect("permissions");
    mounted.server = Some(server(&mounted.name, mounted.exported.path(), false, Mode::Messages));
    program.stdin.take().expect("its input").write_all(b"\n").expect("a line");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("its output");
    assert!(program.wait().expect("its end").success());
    assert_eq!(rest, "5 5 1000\nESTALE\n");
    assert_eq!(fs::read(lost).expect("the file"), b"before");
}
