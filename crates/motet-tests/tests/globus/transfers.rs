//! Transfers between servers, and between servers and clients.

use crate::{Channel, Site, same, succeeded};
use motet_tests::temporary::Temporary;
use std::fs;
use std::path::Path;

const BYTES: usize = 24 << 20;

/// Transfers from server to server, with further words of globus-url-copy, until `ends` ends of streams were on shared memory; 0: one transfer. Returns the
/// site.
#[track_caller]
fn third_party(test: &str, channels: [Channel; 2], words: &[&str], ends: u64) -> Option<Site> {
    let site = Site::new(test)?;
    let [from, to] = channels.map(|channel| site.serve(channel));
    let source = site.file("source", BYTES);
    let target = site.path("out/target");
    let urls = [from.url(&source), to.url(&target)];
    let transfer = || {
        site.copy(&[words, &[&urls[0], &urls[1]]].concat());
        assert!(same(&source, &target), "{test}: the copy differs");
        fs::remove_file(&target).expect("the copy");
    };
    if ends == 0 {
        transfer()
    } else {
        site.until_shared_memory(ends, transfer)
    }
    Some(site)
}

#[test]
fn two_servers_exchange_a_file_over_shared_memory() {
    third_party("third-party transfer", [Channel::Motet; 2], &[], 2);
}

#[test]
fn parallel_streams_are_all_upgraded() {
    third_party("parallel transfer", [Channel::Motet; 2], &["-p", "4"], 8);
}

#[test]
fn blocks_of_other_sizes_arrive() {
    third_party("large blocks", [Channel::Motet; 2], &["-p", "2", "-bs", "4194304"], 0);
    third_party("odd blocks", [Channel::Motet; 2], &["-bs", "77777"], 0);
}

#[test]
fn servers_without_the_driver_are_peers_over_tcp() {
    for channels in [[Channel::Motet, Channel::Tcp], [Channel::Tcp, Channel::Motet]] {
        let Some(site) = third_party("unequipped server", channels, &["-p", "2"], 0) else { return };
        assert_eq!(site.fast(), (0, 0), "a server without the driver has no shared memory");
    }
}

#[test]
fn the_client_reads_and_writes_a_file() {
    let Some(site) = Site::new("client") else { return };
    let server = site.serve(Channel::Motet);
    let source = site.file("source", BYTES);
    for words in [&[][..], &["-p", "3"], &["-fast"]] {
        let (up, down) = (site.path("out/up"), site.path("out/down"));
        let (local, back) = (format!("file://{}", source.display()), format!("file://{}", down.display()));
        site.copy(&[words, &[&local, &server.url(&up)]].concat());
        site.copy(&[words, &[&server.url(&up), &back]].concat());
        assert!(same(&source, &up) && same(&source, &down), "{words:?}");
        fs::remove_file(up).and_then(|()| fs::remove_file(down)).expect("the copies");
    }
}

#[test]
fn ten_thousand_small_files_arrive() {
    const FILES: usize = 10_000;
    let Some(mut site) = Site::new("small files") else { return };
    // Ten thousand files are no load for a disk that other tests use.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        site.folder = Temporary::within(memory, "motet-globus-");
        fs::create_dir(site.path("out")).expect("a folder");
    }
    let (from, to) = (site.serve(Channel::Motet), site.serve(Channel::Motet));
    fs::create_dir(site.path("many")).expect("a folder");
    let contents = fs::read(site.file("contents", 5000 + FILES)).expect("the contents");
    let of = |number: usize| &contents[number..number + number * 7 % 5000];
    for number in 0..FILES {
        fs::write(site.path(&format!("many/{number}")), of(number)).expect("a file");
    }
    let folder = |server: &crate::Server, name: &str| format!("{}/", server.url(&site.path(name)));
    site.copy(&["-r", "-cd", "-cc", "4", "-pp", &folder(&from, "many"), &folder(&to, "out/many")]);
    for number in 0..FILES {
        let copy = fs::read(site.path(&format!("out/many/{number}"))).unwrap_or_default();
        assert!(copy == of(number), "file {number} differs");
    }
    assert_eq!(fs::read_dir(site.path("out/many")).expect("the copies").count(), FILES);
}

/// Downloads in passive mode, uploads in passive and active mode, lists.
const FTPLIB: &str = r"
import ftplib, io, sys
port, source, target = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ftp = ftplib.FTP(timeout=60)
ftp.connect('127.0.0.1', port)
ftp.login()
got = io.BytesIO()
ftp.retrbinary('RETR ' + source, got.write, blocksize=100000)
assert got.getvalue() == open(source, 'rb').read(), 'RETR'
for passive in (True, False):
    ftp.set_pasv(passive)
    ftp.storbinary('STOR ' + target, io.BytesIO(got.getvalue()))
    assert open(target, 'rb').read() == got.getvalue(), 'STOR'
    assert ftp.size(target) == len(got.getvalue()), 'SIZE'
    ftp.delete(target)
ftp.set_pasv(True)
got = io.BytesIO()
ftp.retrbinary('RETR ' + source, got.write, rest=1000000)
assert got.getvalue() == open(source, 'rb').read()[1000000:], 'REST'
assert any(source.endswith(name) for name in ftp.nlst(source.rsplit('/', 1)[0]) if name), 'NLST'
ftp.quit()
print('done')
";

#[test]
fn pythons_ftplib_is_a_client() {
    let Some(site) = Site::new("ftplib") else { return };
    let server = site.serve(Channel::Motet);
    let source = site.file("source", 3 << 20);
    let mut client = site.command("timeout");
    client.args(["100", "python3", "-c", FTPLIB, &server.port.to_string()]).arg(&source).arg(site.path("out/target"));
    assert_eq!(succeeded(&client.output().expect("python3")), "done\n");
}
