//! An export whose server has no descriptors for a moment. It lowers the limit of this process, so no other test is in this program.

use motet_files::exports::{self, Query};
use motet_files::server::{Options, Server};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long an answer may take on a loaded host.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn an_export_is_found_again_after_a_moment_without_descriptors() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("descriptors-{}", std::process::id());
    let options = Options { name: name.clone(), directory: folder.path().to_owned(), ..Options::default() };
    let server = Server::start(options).expect("a server");
    let place = motet_session::paths::exports_folder().expect("the folder").join(format!("{name}.sock"));
    let address = SocketAddrUnix::new(&place).expect("an address");
    let waiting = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).expect("a limit");
    let connected = connect(&waiting, &address);
    let mut waiting = UnixStream::from(waiting);
    let asked = waiting.write_all(b"{}\n");
    // The descriptor for the first connection was taken before. The next accept(2) fails meanwhile.
    std::thread::sleep(Duration::from_millis(500));
    setrlimit(Resource::Nofile, limit).expect("the limit before");
    connected.expect("a connection");
    asked.expect("a query");
    waiting.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut line = String::new();
    BufReader::new(&waiting).read_line(&mut line).expect("an answer");
    assert!(line.contains(&name), "{line}");
    exports::ask(&name, &Query::default()).expect("the export");
    drop(server);
}
