//! `motet doctor` names another user who holds abstract names of this user.

mod common;

use common::{Folder, finish, motet, skipped};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// A part of the test below, in a process of its own: takes names until its input ends.
#[test]
#[ignore = "a part of the test below"]
fn other_user_entry() {
    let fd = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let netns = motet_sys::socket::netns_cookie(fd.as_raw_fd()).unwrap();
    let mut names: Vec<String> = (0..20).map(|n| format!("motet/{netns:x}/{:x}", (1u64 << 50) + n)).collect();
    names.extend(["motet/node/0/wanted", "motet/files/0/wanted"].map(str::to_owned));
    let held: Vec<_> = names.iter().map(|n| motet_sys::socket::listen_abstract(n.as_bytes(), 1).unwrap()).collect();
    println!("\nholds {}", held.len());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn doctor_names_the_holder_of_our_names() {
    if motet_sys::thread::euid() != 0 {
        return skipped("doctor_names_the_holder_of_our_names", "only root can be another user");
    }
    let folder = Folder::new("names");
    let line = || {
        let (_, out, _) = finish(motet(["doctor"]).env("MOTET_LIBDIR", folder.libraries()));
        out.lines()
            .find(|line| line.contains("abstract names") && !line.contains("unix"))
            .unwrap_or_default()
            .to_owned()
    };
    let before = line();
    assert!(!before.contains("user 65533"), "{before}");
    // The other user may enter the folder, but not list it.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let program = folder.path().join("names");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--nocapture", "other_user_entry"]).uid(65533).gid(65533);
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "holds 22"));
    let shown = line();
    let who = format!("user 65533 (process {}) holds 1 names of nodes, 1 of exports and 20 of connections", other.id());
    assert!(shown.contains(&who), "{shown}");
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    assert!(!line().contains("user 65533"));
}
