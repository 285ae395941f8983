//! `motet nbd`: a file of an export as a disk, from the command line.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Folder, finish, motet, refused};
use motet_files::server::{Options, Server};

/// An export of the folder `export` with a file `disk` of 1 MiB.
fn export(folder: &Folder, name: &str) -> Server {
    let exported = folder.path().join("export");
    std::fs::create_dir(&exported).expect("a folder");
    std::fs::write(exported.join("disk"), vec![7; 1 << 20]).expect("a file");
    let options = Options { name: name.to_owned(), directory: exported, ..Options::default() };
    Server::start(options).expect("a server of files")
}

/// The running command, and the line that it prints.
fn start(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the command");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
    (child, line.trim().to_owned())
}

fn end(mut child: Child) {
    let terminated = Command::new("kill").arg(child.id().to_string()).status().expect("kill");
    assert!(terminated.success());
    assert_eq!(child.wait().expect("its end").code(), Some(0));
}

/// The size of the disk `name` behind a Unix socket, by the oldest handshake: flags, then the name of the export.
fn size(socket: &Path, name: &str) -> u64 {
    let mut stream = UnixStream::connect(socket).expect("a connection");
    let length = u32::try_from(name.len()).expect("a short name").to_be_bytes();
    stream.write_all(&[b"\0\0\0\x02IHAVEOPT\0\0\0\x01", &length[..], name.as_bytes()].concat()).expect("a handshake");
    let mut answer = [0; 18 + 10];
    stream.read_exact(&mut answer).expect("an export");
    u64::from_be_bytes(answer[18..26].try_into().expect("eight bytes"))
}

#[test]
fn a_disk_is_served_until_sigterm_and_its_socket_goes_with_it() {
    let folder = Folder::new("nbd");
    let name = format!("nbd-cli-{}", std::process::id());
    let _files = export(&folder, &name);
    let socket = folder.path().join("my socket");
    let file = format!("{name}:/disk");
    let (child, uri) = start(motet(["nbd", &file, "--export-name", "d", "--socket"]).arg(&socket));
    let expected = format!("nbd+unix:///d?socket={}", socket.display()).replace(' ', "%20");
    assert_eq!(uri, expected);
    assert_eq!(size(&socket, "d"), 1 << 20);
    let again = refused(motet(["nbd", &file, "--socket"]).arg(&socket), 1);
    assert!(again.contains("cannot listen"), "{again}");
    end(child);
    assert!(!socket.exists());

    let (child, uri) = start(&mut motet(["nbd", &file, "--listen", "127.0.0.1:0", "--read-only"]));
    assert!(uri.starts_with("nbd://127.0.0.1:") && !uri.contains(":0/"), "{uri}");
    end(child);
    let (child, uri) = start(&mut motet(["nbd", &file]));
    let private = uri.strip_prefix("nbd+unix:///?socket=").expect("a Unix socket").to_owned();
    assert!(std::path::Path::new(&private).exists());
    end(child);
    assert!(!std::path::Path::new(&private).exists());
}

#[test]
fn what_cannot_be_served_is_refused_in_one_line() {
    let folder = Folder::new("nbd-refused");
    let name = format!("nbd-cli-refused-{}", std::process::id());
    let _files = export(&folder, &name);
    refused(&mut motet(["nbd", "no-colon"]), 2);
    refused(&mut motet(["nbd", "../x:disk"]), 2);
    refused(&mut motet(["nbd", &format!("{name}:")]), 2);
    refused(&mut motet(["nbd", "no-such-export:disk"]), 3);
    refused(&mut motet(["nbd", &format!("{name}:no-such-file")]), 3);
    refused(&mut motet(["nbd", &format!("{name}:disk"), "--socket", "/proc/no/such"]), 1);
    std::fs::create_dir(folder.path().join("export/folder")).expect("a folder");
    refused(&mut motet(["nbd", &format!("{name}:folder")]), 1);
}

#[test]
fn one_command_serves_a_file_as_a_disk() {
    let folder = Folder::new("block");
    let disk = folder.path().join("disk.img");
    std::fs::write(&disk, vec![7; 3 << 20]).expect("a file");
    let session = folder.path().join("session");
    let command = |more: &[&str]| {
        let mut command = motet(["export", "--block"]);
        command.arg(&disk).args(more).env("MOTET_SESSION_DIR", &session);
        command
    };
    let (child, uri) = start(&mut command(&["--as", "vm"]));
    let socket = uri.strip_prefix("nbd+unix:///vm?socket=").expect("a disk vm").to_owned();
    assert_eq!(size(Path::new(&socket), "vm"), 3 << 20);
    // It is no exported directory: nothing but the disk is served.
    let (code, out, _) = finish(motet(["--json", "export", "--list"]).env("MOTET_SESSION_DIR", &session));
    assert_eq!((code, common::json(&out)), (0, serde_json::json!([])));
    end(child);
    assert!(!Path::new(&socket).exists());
    let own = folder.path().join("own.sock");
    let (child, uri) = start(command(&["--read-only", "--socket"]).arg(&own));
    assert_eq!(uri, format!("nbd+unix:///disk.img?socket={}", own.display()));
    assert_eq!(size(&own, "disk.img"), 3 << 20);
    end(child);
    let (child, uri) = start(&mut command(&["--listen", "127.0.0.1:0"]));
    assert!(uri.starts_with("nbd://127.0.0.1:"), "{uri}");
    end(child);
    refused(motet(["export", "--block"]).arg(folder.path().join("missing")), 3);
    refused(motet(["export", "--block"]).arg(folder.path()), 1);
    refused(&mut command(&["--no-direct"]), 2);
    refused(&mut motet(["export", "--socket", "x", "y"]), 2);
}

/// Ends the session of a test, however the test ends.
struct Down<F: Fn()>(F);

impl<F: Fn()> Drop for Down<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_disk_is_of_an_export_of_another_host() {
    let folder = Folder::new("nbd-hosts");
    folder.libraries();
    let of = |host: &str, words: &[&str]| {
        let mut command = motet(words);
        command.env("MOTET_SESSION_DIR", folder.path().join(host)).env("MOTET_LIBDIR", folder.path());
        command
    };
    let _down = Down(|| ["a", "b"].iter().for_each(|host| drop(of(host, &["down"]).output())));
    let agent = format!("env MOTET_SESSION_DIR={}/%h", folder.path().display());
    let up = ["up", "--host", "a", "--listen", "127.0.0.1:0", "--hosts", "b", "--agent", &agent];
    assert_eq!(finish(&mut of("a", &up)).0, 0);
    let exported = folder.path().join("exported");
    std::fs::create_dir(&exported).expect("a folder");
    std::fs::write(exported.join("disk"), vec![7; 2 << 20]).expect("a file");
    let (server, _) = start(&mut of("a", &["export", exported.to_str().expect("a path"), "--as", "results"]));
    for file in ["a:results:disk", "results:disk"] {
        let (child, uri) = start(&mut of("b", &["nbd", file]));
        let socket = uri.strip_prefix("nbd+unix:///?socket=").expect("a Unix socket").to_owned();
        assert_eq!(size(Path::new(&socket), ""), 2 << 20);
        end(child);
    }
    refused(&mut of("b", &["nbd", "b:results:disk"]), 3);
    refused(&mut of("b", &["nbd", "nowhere:results:disk"]), 3);
    end(server);
}
