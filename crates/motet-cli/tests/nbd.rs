//! `motet nbd`: a file of an export as a disk, from the command line.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use common::{Folder, motet, refused};
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
    let mut stream = UnixStream::connect(&socket).expect("a connection");
    // The oldest handshake: flags, then the name of the export.
    stream.write_all(b"\0\0\0\x02IHAVEOPT\0\0\0\x01\0\0\0\x01d").expect("a handshake");
    let mut answer = [0; 18 + 10];
    stream.read_exact(&mut answer).expect("an export");
    assert_eq!(answer[18..26], (1_u64 << 20).to_be_bytes());
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
