//! The dashboard in a real browser, with real programs. Needs Chromium, and a whole build for what is shown of programs; skips where
//! either is missing.

mod browser;
mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use browser::Browser;
use common::{Folder, finish, json, motet, skipped};
use motet::node::Node;
use motet_group::Membership;
use motet_session::paths::SessionPaths;
use serde_json::json;

/// Each rank listens, connects to the next one and sends it blocks at its own pace, until it is ended.
const RING: &str = r#"
import os, socket, sys, threading, time
folder, size, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rank, ranks = int(os.environ["MOTET_GROUP_RANK"]), int(os.environ["MOTET_GROUP_SIZE"])
listener = socket.create_server(("127.0.0.1", 0))
with open(f"{folder}/{rank}.new", "w") as file: file.write(str(listener.getsockname()[1]))
os.rename(f"{folder}/{rank}.new", f"{folder}/{rank}")
def serve():
    stream = listener.accept()[0]
    while block := stream.recv(size, socket.MSG_WAITALL): stream.sendall(block[:64])
threading.Thread(target=serve, daemon=True).start()
next_one = f"{folder}/{(rank + 1) % ranks}"
while not os.path.exists(next_one): time.sleep(0.01)
stream = socket.create_connection(("127.0.0.1", int(open(next_one).read())))
print("talks\n", end="", flush=True)
while True:
    stream.sendall(b"x" * size)
    stream.recv(64, socket.MSG_WAITALL)
    time.sleep(pause * (1 + rank))
"#;

/// One of many: an even rank listens, the next one connects to it, and they exchange bytes until they are ended.
const ONE_OF_MANY: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank = atoi(getenv("MOTET_GROUP_RANK")), peer, up = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof to;
    char path[512], new[520];
    snprintf(path, sizeof path, "%s/%d", argv[1], rank & ~1);
    snprintf(new, sizeof new, "%s.new", path);
    if (rank % 2 == 0) {
        if (bind(up, (void *)&to, length) || listen(up, 1) || getsockname(up, (void *)&to, &length)) return 1;
        FILE *file = fopen(new, "w");
        fprintf(file, "%d", ntohs(to.sin_port));
        fclose(file);
        rename(new, path);
        peer = accept(up, 0, 0);
    } else {
        FILE *file;
        int port = 0;
        while (!(file = fopen(path, "r"))) usleep(10000);
        if (fscanf(file, "%d", &port) != 1) return 1;
        fclose(file);
        to.sin_port = htons(port);
        if (connect(up, (void *)&to, length)) return 1;
        peer = up;
    }
    char block[1024] = "";
    for (int count = 0;; count++) {
        if (rank % 2 ? send(peer, block, sizeof block, 0) <= 0 : 0) return 0;
        if (recv(peer, block, sizeof block, MSG_WAITALL) <= 0) return 0;
        if (rank % 2 == 0 && send(peer, block, sizeof block, 0) <= 0) return 0;
        if (count == 8 && write(1, "talks\n", 6) != 6) return 0;
        usleep(count < 10 ? 1000 : 2000000);
    }
}
"#;

/// A `motet run` that is ended, and waited for, when it is dropped.
struct Group(Child);

impl Group {
    /// Ends the programs.
    fn end(&mut self) {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// A session in a folder of its own, which ends with the test.
struct Session {
    folder: Folder,
    libraries: PathBuf,
}

impl Session {
    /// A session; with the real libraries if they are built.
    fn up(name: &str, libraries: Option<PathBuf>) -> Self {
        let folder = Folder::new(name);
        let libraries = libraries.unwrap_or_else(|| folder.libraries().to_owned());
        let session = Self { folder, libraries };
        assert_eq!(finish(&mut session.motet(&["up", "--host", "here"])).0, 0);
        session
    }

    fn motet(&self, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.env("MOTET_SESSION_DIR", self.folder.path().join("sessions")).env("MOTET_LIBDIR", &self.libraries);
        command
    }

    /// The address of the dashboard, good for one login.
    fn dashboard(&self) -> String {
        let (code, out, err) = finish(&mut self.motet(&["--json", "dashboard"]));
        assert_eq!((code, err.as_str()), (0, ""));
        json(&out)["dashboard"].as_str().unwrap().to_owned()
    }

    /// Starts processes that talk in pairs; returns when all talk.
    fn many(&self, group: &str, ranks: usize) -> Group {
        let folder = self.folder.path().join(group);
        std::fs::create_dir(&folder).unwrap();
        let program = self.folder.compile("one_of_many", ONE_OF_MANY, &["-O1"]);
        let mut command = self.motet(&["run", "--group", group, "-n", &ranks.to_string(), "--"]);
        let mut child = command.arg(program).arg(folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (0..ranks).for_each(|_| assert_eq!(lines.next().unwrap().unwrap(), "talks"));
        Group(child)
    }

    /// Starts the ring as a group; returns when all ranks talk.
    fn ring(&self, group: &str, ranks: usize, block: usize, pause: f64, settings: &[&str]) -> Group {
        let folder = self.folder.path().join(group);
        std::fs::create_dir(&folder).unwrap();
        let script = self.folder.file(&format!("{group}.py"), RING, 0o600);
        let count = ranks.to_string();
        let mut command = self.motet(&["run", "--group", group, "-n", &count]);
        command.args(settings).args(["--", "python3"]).arg(script).arg(folder);
        command.args([block.to_string(), pause.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (0..ranks).for_each(|_| assert_eq!(lines.next().unwrap().unwrap(), "talks", "{group}"));
        Group(child)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.motet(&["down"]).output();
    }
}

fn browser() -> Option<Browser> {
    let browser = Browser::start();
    if browser.is_none() {
        skipped("dashboard", "needs chromium");
    }
    browser
}

/// The folder of a whole build: beside this test's own program, or the release one.
fn libraries() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_BIN_EXE_motet")).parent()?;
    let folders = [own.join("../release"), own.to_owned()];
    let found =
        folders.into_iter().find(|f| f.join("libmotet_sockets.so").is_file() && f.join("libmotet.so").is_file());
    if found.is_none() {
        skipped("dashboard", "needs libmotet.so and libmotet_sockets.so (make build)");
    }
    found
}

#[test]
fn page_shows_programs_as_they_run() {
    let (Some(mut browser), Some(libraries)) = (browser(), libraries()) else { return };
    let session = Session::up("live", Some(libraries));
    let mut ring = session.ring("fluid", 3, 4096, 0.002, &["--set", "patience=300ms"]);
    browser.open(&session.dashboard());
    browser.until("document.getElementById('count-processes').textContent.trim() === '3'");
    assert_eq!(browser.value("location.hash"), "", "the token is not in the address any more");
    browser.until("document.querySelectorAll('#graph .node').length === 3");
    browser.until("document.querySelectorAll('#links tbody tr').length === 3");
    browser.until("document.querySelector('#links .path')?.textContent === 'shm'");
    browser.until("/B\\/s/.test(document.getElementById('rate-shm').textContent)");
    // It goes on without a reload.
    let sent = "[...document.querySelectorAll('#links td[data-title=Sent]')].map(cell => cell.textContent).join()";
    let before = browser.value(sent);
    browser.until(&format!("{sent} !== {before}"));
    assert!(browser.text("#groups").contains("fluid"), "{}", browser.text("#groups"));
    assert!(browser.text("#events").contains("started: fluid.py"), "{}", browser.text("#events"));
    // A link to each object, by the keyboard too.
    browser.value("document.querySelector('#links a[href*=\"link=\"]').focus()");
    browser.press("Enter");
    browser.until("document.querySelectorAll('#links tbody tr').length === 1");
    browser.until("document.querySelector('#links .detail')?.textContent.includes('descriptor') === true");
    browser.press("Escape");
    browser.until("document.querySelectorAll('#links tbody tr').length === 3");
    // The end of the programs is an event, and the page follows.
    ring.end();
    browser.until("document.getElementById('events').textContent.includes('ended: fluid.py')");
    browser.until("document.getElementById('count-links').textContent.trim() === '0'");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// With MOTET_PICTURES, a folder, it also writes the pictures of docs/figures.
#[test]
#[allow(clippy::zombie_processes)] // the programs end with the session
fn page_fits_a_laptop_and_a_phone_in_light_and_dark() {
    let (Some(mut browser), Some(libraries)) = (browser(), libraries()) else { return };
    let pictures = std::env::var_os("MOTET_PICTURES").map(PathBuf::from);
    let session = Session::up("shapes", Some(libraries));
    let _gas = session.ring("gas", 6, 200_000, 0.001, &["--set", "patience=300ms"]);
    let _wall = session.ring("wall", 3, 4096, 0.02, &["--set", "patience=300ms"]);
    let _monitor = session.ring("monitor", 2, 4096, 0.02, &["--set", "drivers=tcp"]);
    let mut backgrounds = Vec::new();
    for (name, width, height, scheme, mobile) in
        [("dashboard-light", 1360, 1000, "light", false), ("dashboard-dark", 412, 892, "dark", true)]
    {
        browser.shape(width, height, scheme, mobile);
        browser.open(&session.dashboard());
        browser.until("document.querySelectorAll('#links tbody tr').length === 11");
        browser.until("document.querySelectorAll('#graph .node').length === 11");
        assert_eq!(browser.value("document.documentElement.scrollWidth <= innerWidth"), json!(true), "{name}");
        // A stream on TCP does not know its peer's process; the page finds it by the other end.
        browser.until("document.querySelectorAll('#graph .edge.tcp').length === 1");
        backgrounds.push(browser.value("getComputedStyle(document.body).backgroundColor"));
        if let Some(folder) = &pictures {
            std::thread::sleep(std::time::Duration::from_secs(60)); // so that the chart has something to show
            std::fs::write(folder.join(format!("{name}.png")), browser.picture()).unwrap();
        }
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
}

#[test]
fn wrong_token_is_refused_and_a_right_one_is_good_once() {
    let Some(mut browser) = browser() else { return };
    let session = Session::up("token", None);
    let address = session.dashboard();
    let (page, token) = address.split_once('#').unwrap();
    browser.open(&format!("{page}#{}", "0".repeat(64)));
    browser.until("!document.getElementById('login').hidden");
    assert!(browser.text("#login-why").contains("motet dashboard prints a new one"), "{}", browser.text("#login-why"));
    assert_eq!(browser.value("document.getElementById('main').hidden"), json!(true));
    // The whole address is pasted.
    browser.value("document.getElementById('login-token').focus()");
    browser.type_text(&address);
    browser.press("Enter");
    browser.until("document.getElementById('status').textContent === 'live'");
    assert_eq!(browser.value("document.cookie"), "", "no script can read the cookie");
    // The page stays logged in when it is loaded again, and the token is void.
    browser.open(page);
    browser.until("document.getElementById('status').textContent === 'live'");
    browser.value("localStorage.clear()");
    browser.open(&format!("{page}#{token}"));
    browser.until("!document.getElementById('login').hidden");
    browser.open(page);
    browser.until("document.getElementById('login-why').textContent.includes('not logged in')");
}

#[test]
fn page_of_500_processes_is_small_and_answers() {
    let (Some(mut browser), Some(libraries)) = (browser(), libraries()) else { return };
    let session = Session::up("many", Some(libraries));
    let began = std::time::Instant::now();
    let mut many = session.many("many", 500);
    println!("started after {:?}", began.elapsed());
    browser.open(&session.dashboard());
    browser.until("document.getElementById('count-processes').textContent === '500'");
    browser.until("document.getElementById('count-links').textContent === '250'");
    println!("shown after {:?}", began.elapsed());
    // The page shows a part, the graph by program.
    let count =
        |browser: &mut Browser, what: &str| browser.value(&format!("document.querySelectorAll('{what}').length"));
    assert_eq!(count(&mut browser, "#links tbody tr"), 50);
    assert_eq!(count(&mut browser, "#processes tbody tr"), 50);
    assert_eq!(count(&mut browser, "#graph .node"), 1);
    assert!(count(&mut browser, "*").as_u64().unwrap() < 3000);
    let slowest = "(async () => { let most = 0; let last = performance.now(); const end = last + 5000; while (last < end) { \
                   await new Promise(requestAnimationFrame); const now = performance.now(); most = Math.max(most, now - last); last = now; } return most })()";
    println!("slowest frame of 5 s: {} ms", browser.value(slowest));
    // The rest on demand, and one of them by its number.
    browser.value("document.querySelector('#links .more').click()");
    browser.until("document.querySelectorAll('#links tbody tr').length === 250");
    let pid = browser.value("document.querySelector('#processes tbody tr').dataset.key.split('/')[1]");
    browser.value("document.getElementById('filter-q').focus()");
    browser.type_text(pid.as_str().unwrap());
    browser.until("document.querySelectorAll('#links tbody tr').length <= 3");
    browser.until("document.querySelectorAll('#graph .node').length >= 2");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    many.end();
}

#[test]
fn text_of_programs_is_text() {
    let (Some(mut browser), Some(libraries)) = (browser(), libraries()) else { return };
    let session = Session::up("hostile", Some(libraries));
    let script = "import sys, socket; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); sys.stdin.read()";
    let name = "<img src=x onerror='document.title=`taken`'>\u{202e}<script>alert(1)</script>";
    let script = session.folder.file("a.py", script, 0o600);
    let mut command = session.motet(&["run", "--", "python3"]);
    let mut child = command.arg(script).arg(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    browser.open(&session.dashboard());
    browser.until("document.querySelector('#processes').innerText.includes('<img src=x onerror=')");
    browser.value("location.hash = 'q=<img src=x>&host=<b>&group=<i>&process=<u>&link=<s>'");
    browser.until("document.querySelectorAll('#links .empty').length === 1");
    assert_eq!(
        browser.value("document.querySelectorAll('main img, main script, main b, main i, main u, main s').length"),
        0
    );
    assert_eq!(browser.value("document.title"), "default · Motet");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn module_is_loaded_stopped_and_started() {
    let Some(mut browser) = browser() else { return };
    let session = Session::up("modules", None);
    let descriptor = "name = \"mesh\"\ndriver = \"exec\"\nunits = [\"./mesh\"]\n";
    let descriptor = session.folder.file("mesh.toml", descriptor, 0o600);
    session.folder.file("mesh", "#!/bin/sh\necho '<b>refined</b>' twice\nexec sleep 1000\n", 0o700);
    browser.open(&session.dashboard());
    browser.until("document.getElementById('load-host').value === 'here'");
    browser.value("document.getElementById('load-path').focus()");
    browser.type_text("/does/not/exist.toml");
    browser.press("Enter");
    browser.until("document.getElementById('modules-problem').textContent !== ''");
    assert_eq!(browser.value("document.querySelectorAll('#modules li').length"), 0);
    browser.value("document.getElementById('load-path').select()");
    browser.type_text(descriptor.to_str().unwrap());
    browser.press("Enter");
    let state = "document.querySelector('#modules .state').textContent";
    browser.until(&format!("{state} === 'running'"));
    assert_eq!(browser.text("#modules-problem"), "");
    let click = |browser: &mut Browser, name: &str| {
        browser.until(&format!("!document.querySelector('#modules [data-do={name}]').disabled"));
        browser.value(&format!("document.querySelector('#modules [data-do={name}]').click()"))
    };
    click(&mut browser, "log");
    browser.until("document.getElementById('log-text').textContent.includes('<b>refined</b> twice')");
    click(&mut browser, "stop");
    browser.until(&format!("!['running', 'restarting'].includes({state})"));
    click(&mut browser, "start");
    browser.until(&format!("{state} === 'running'"));
    // What the page shows is what the session has.
    let listed = json(&finish(&mut session.motet(&["--json", "modules"])).1).to_string();
    assert!(listed.contains("\"mesh\"") && listed.contains("\"running\""), "{listed}");
    click(&mut browser, "stop");
    click(&mut browser, "unload");
    browser.until("document.querySelectorAll('#modules li').length === 0");
    for what in ["loaded", "started", "stopped", "unloaded"] {
        let words = format!("module mesh on here {what}");
        browser.until(&format!("document.getElementById('events').textContent.includes('{words}')"));
    }
    // The refused descriptor is the one error that the browser notes.
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|complaint| complaint.contains("/v1/hosts/here/modules")), "{complaints:?}");
}

#[test]
fn circuits_and_events_of_all_hosts_are_shown() {
    let Some(mut browser) = browser() else { return };
    let session = Session::up("circuits", None);
    let there = session.folder.path().join("b");
    let agent = format!("env MOTET_SESSION_DIR={}", there.display());
    let up = ["up", "--listen", "127.0.0.1:0", "--hosts", "b", "--agent", &agent];
    let (code, out, err) = finish(&mut session.motet(&up));
    assert!(code == 0 && out.ends_with("host b is up\n"), "{out}{err}");
    browser.open(&session.dashboard());
    browser.until("document.getElementById('count-hosts').textContent === '2'");
    // A member on each host, and a circuit whose name is no plain word.
    let members: Vec<_> = [session.folder.path().join("sessions"), there]
        .iter()
        .zip(0..)
        .map(|(folder, rank)| {
            let node = std::sync::Arc::new(Node::open("").unwrap());
            let paths = SessionPaths::within(folder, "default").unwrap();
            let membership = Membership::attach_to(&node, &paths).unwrap();
            let group = membership.join("fluid", Some(rank)).unwrap();
            (group, membership)
        })
        .collect();
    let limit = Some(std::time::Duration::from_secs(60));
    let view = members[0].0.wait_for_members(2, limit).unwrap().number;
    let name = "<b>halo</b>";
    let circuits: Vec<_> = members.iter().map(|(group, _)| group.open(name, limit).unwrap()).collect();
    browser.until("document.querySelectorAll('#groups .circuit li').length === 2");
    assert_eq!(browser.text("#groups .circuit h4"), name);
    assert_eq!(browser.text("#groups .circuit p"), format!("circuit in view {view}, 2 members"));
    let pid = std::process::id();
    let ranks = browser.value("[...document.querySelectorAll('#groups .circuit li')].map(item => item.textContent)");
    assert_eq!(ranks, json!([format!("0  here:{pid}"), format!("1  b:{pid}")]));
    let event = |words: String| format!("document.getElementById('events').textContent.includes('{words}')");
    for host in ["here", "b"] {
        browser.until(&event(format!("circuit {name} of group fluid opened on {host}: view {view}, 2 members")));
        browser.until(&event(format!("node of {host}:{pid} has attached")));
    }
    // What the whole session has seen is listed once, although both gatekeepers tell it.
    let twice = format!("document.getElementById('events').textContent.split('group fluid: view {view},').length - 1");
    assert_eq!(browser.value(&twice), json!(1));
    // The end of the member on the other host.
    drop(circuits);
    members[1].0.leave().unwrap();
    browser.until(&event(format!("circuit {name} of group fluid closed on b")));
    browser.until("document.querySelectorAll('#groups .circuit').length === 0");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
