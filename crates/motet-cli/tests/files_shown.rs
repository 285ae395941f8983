//! What `motet ps -l`, `motet why` and the dashboard show of exports and of what uses them.

mod browser;
mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use browser::Browser;
use common::{Folder, finish, json, motet, skipped, until};

/// A host of a test, with an export `results` whose programs send messages.
struct Host {
    folder: Folder,
    running: Vec<Child>,
}

impl Host {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.libraries();
        for inner in ["data", "place"] {
            fs::create_dir(folder.path().join(inner)).unwrap();
        }
        fs::write(folder.path().join("data/disk"), vec![7; 1 << 20]).unwrap();
        Self { folder, running: Vec::new() }
    }

    fn motet(&self, words: &[&str]) -> Command {
        let mut command = motet(words);
        command.env("MOTET_SESSION_DIR", self.folder.path().join("session")).env("MOTET_LIBDIR", self.folder.path());
        command.current_dir(self.folder.path());
        command
    }

    /// Starts a command and waits for its first line; returns its process id.
    fn start(&mut self, words: &[&str]) -> u32 {
        let mut child = self.motet(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{words:?}");
        self.running.push(child);
        self.running.last().unwrap().id()
    }

    fn end(&mut self, pid: u32) {
        let at = self.running.iter().position(|child| child.id() == pid).unwrap();
        let mut child = self.running.swap_remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn ps(&self) -> serde_json::Value {
        json(&finish(&mut self.motet(&["--json", "ps", "-l"])).1)
    }

    fn why(&self, pid: u32) -> String {
        let (code, out, err) = finish(&mut self.motet(&["why", &pid.to_string()]));
        assert_eq!(code, 0, "{err}");
        out
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.motet(&["down"]).output();
        for mut child in self.running.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The uses of an export in the answer of `ps`.
fn uses(ps: &serde_json::Value) -> Vec<&serde_json::Value> {
    ps["export_uses"].as_array().map(|uses| uses.iter().collect()).unwrap_or_default()
}

#[test]
fn exports_and_their_uses_are_listed_while_their_processes_live() {
    let mut host = Host::new("shown");
    assert!(uses(&host.ps()).is_empty());
    assert!(!host.folder.path().join("session").exists(), "to list makes no folder");
    let server = host.start(&["export", "data", "--as", "results", "--no-direct"]);
    let direct = host.start(&["export", "data", "--as", "direct"]);
    let disk = host.start(&["nbd", "results:disk"]);
    let direct_disk = host.start(&["nbd", "direct:disk"]);
    let ps = host.ps();
    let exports: Vec<_> = ps["exports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|export| (&export["name"], &export["process"], &export["clients"]))
        .collect();
    let expected = [("direct", direct, 0), ("results", server, 1)]
        .map(|(name, pid, clients)| (name.into(), pid.into(), clients.into()));
    assert_eq!(exports, expected.iter().map(|(a, b, c): &(serde_json::Value, _, _)| (a, b, c)).collect::<Vec<_>>());
    assert!(!ps["exports"].to_string().contains("address"), "the address is a secret");
    let found: Vec<_> =
        uses(&ps).iter().map(|used| (used["process"].as_u64().unwrap(), used["direct"] == true)).collect();
    assert_eq!(found, [(u64::from(direct_disk), true), (u64::from(disk), false)]);
    let used = uses(&ps)[1];
    assert_eq!((&used["front"], &used["export"], &used["open_files"]), (&"nbd".into(), &"results".into(), &1.into()));
    let text = finish(&mut host.motet(&["ps", "-l"])).1;
    assert!(
        text.contains("USES EXPORT") && text.contains("messages by shm") && text.contains("directory itself"),
        "{text}"
    );
    let of_one = json(&finish(&mut host.motet(&["--json", "ps", "-l", &disk.to_string()])).1);
    assert_eq!((uses(&of_one).len(), &of_one["exports"]), (1, &serde_json::Value::Null));
    let why = host.why(disk);
    assert!(
        why.contains("(nbd) by messages by shm: its server does not allow") && why.contains("in use    shm"),
        "{why}"
    );
    assert!(host.why(direct_disk).contains("by directory itself: it is on this host"), "{}", host.why(direct_disk));
    assert!(host.why(server).contains("as results: 1 clients send messages"), "{}", host.why(server));
    // A killed process is gone from the list at once, and what it has left with it.
    host.end(disk);
    host.end(direct);
    let ps = host.ps();
    assert_eq!((uses(&ps).len(), ps["exports"].as_array().unwrap().len()), (1, 1));
    let left = fs::read_dir(host.folder.path().join("session/.exports")).unwrap().flatten();
    assert_eq!(left.filter(|entry| entry.path().extension().is_some_and(|e| e == "use")).count(), 1);
    until("the server ends the session of the killed client", || host.ps()["exports"][0]["clients"] == 0);
}

#[test]
fn programs_and_their_mounts_say_which_exports_they_see() {
    let test = "programs_and_their_mounts_say_which_exports_they_see";
    if !Path::new("/dev/fuse").exists() || !rustix::process::getuid().is_root() {
        return skipped(test, "no /dev/fuse, or not root");
    }
    let mut host = Host::new("seen");
    let server = host.start(&["export", "data", "--as", "results", "--no-direct"]);
    let place = host.folder.path().join("place");
    let shown = place.to_str().unwrap().to_owned();
    let script = "import fcntl, os, sys; f = os.open(sys.argv[1] + '/disk', os.O_RDWR); fcntl.lockf(f, fcntl.LOCK_EX); os.pread(f, 4096, 0); os.pwrite(f, b'x', 0); print('locked', flush=True); input()";
    let program = host.start(&["run", "--files", &format!("results={shown}"), "--", "python3", "-c", script, &shown]);
    let ps = host.ps();
    let used = uses(&ps)[0];
    assert_eq!((&used["front"], &used["at"]), (&"run".into(), &shown.as_str().into()));
    assert_eq!(
        (&used["open_files"], &used["locks"], &used["bytes_written"]),
        (&1.into(), &1.into(), &1.into()),
        "{used}"
    );
    assert!(used["bytes_read"].as_u64().unwrap() >= 4096 && used["requests"].as_u64().unwrap() >= 4, "{used}");
    let export = &ps["exports"][0];
    assert_eq!((&export["locks"], &export["open_files"], &export["bytes_written"]), (&1.into(), &1.into(), &1.into()));
    let expected =
        format!("{shown} is export results, mounted by FUSE for this program only: its server does not allow");
    assert!(host.why(program).contains(&expected), "{}", host.why(program));
    let serving = u32::try_from(used["process"].as_u64().unwrap()).unwrap();
    assert!(host.why(serving).contains("(run) by messages by shm"), "{}", host.why(serving));
    // It goes with the program.
    host.end(program);
    until("the mount has ended", || uses(&host.ps()).is_empty());
    // A mount for all programs, until it is unmounted.
    let (code, _, err) = finish(&mut host.motet(&["mount", "results", &shown]));
    assert_eq!(code, 0, "{err}");
    let file = File::open(place.join("disk")).unwrap();
    file.read_at(&mut [0; 10], 5).unwrap();
    let ps = host.ps();
    assert_eq!((&uses(&ps)[0]["front"], &uses(&ps)[0]["open_files"]), (&"mount".into(), &1.into()));
    drop(file);
    assert_eq!(finish(&mut host.motet(&["umount", &shown])).0, 0);
    until("the mount has ended", || uses(&host.ps()).is_empty());
    assert!(host.why(server).contains("exports "));
}

#[test]
fn the_dashboard_lists_exports_and_their_uses() {
    let Some(mut browser) = Browser::start() else {
        return skipped("the_dashboard_lists_exports_and_their_uses", "needs chromium");
    };
    let mut host = Host::new("files-page");
    assert_eq!(finish(&mut host.motet(&["up", "--host", "here"])).0, 0);
    let address = json(&finish(&mut host.motet(&["--json", "dashboard"])).1);
    browser.open(address["dashboard"].as_str().unwrap());
    browser.until("!document.getElementById('no-exports').hidden && document.getElementById('exports').hidden");
    host.start(&["export", "data", "--as", "results", "--no-direct"]);
    let disk = host.start(&["nbd", "results:disk", "--export-name", "<b>&"]);
    browser.until("document.querySelectorAll('#exports tbody tr:not(.empty)').length === 1");
    browser.until("document.querySelectorAll('#export-uses tbody tr:not(.empty)').length === 1");
    browser.until("document.querySelector('#exports td[data-title=Clients]').textContent === '1'");
    let cell = |title: &str| format!("document.querySelector('#export-uses td[data-title=\"{title}\"]').textContent");
    browser.until(&format!("{} === 'nbd, messages'", cell("Way")));
    browser.until(&format!("{} === 'here'", cell("Host")));
    // Requests of a client become a rate.
    let uri = browser.value(&cell("At"));
    let socket = uri.as_str().unwrap().split("socket=").nth(1).unwrap().to_owned();
    let mut reader = std::os::unix::net::UnixStream::connect(socket).unwrap();
    // The oldest handshake, then reads of a byte, one after the other.
    reader.write_all(b"\0\0\0\x02IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let reading = std::thread::spawn(move || {
        use std::io::Read;
        reader.read_exact(&mut [0; 18 + 10]).unwrap();
        let request = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0][..], &[0; 16], &[0, 0, 0, 1]].concat();
        while reader.write_all(&request).and_then(|()| reader.read_exact(&mut [0; 17])).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    browser.until("Number(document.querySelector('#export-uses td[data-title=\"Requests/s\"]').textContent) > 0");
    browser.until("Number(document.querySelector('#exports td[data-title=\"Requests/s\"]').textContent) > 0");
    host.end(disk);
    reading.join().unwrap();
    browser.until("document.querySelectorAll('#export-uses tbody tr:not(.empty)').length === 0");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
