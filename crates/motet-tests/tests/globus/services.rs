//! Other services of the toolkit under `motet run`: GASS, GRAM (whose jobs' output comes by GASS) and MyProxy.

use crate::run::{installed, under_motet};
use crate::security::secure;
use crate::{LIMIT, Site, same, succeeded};
use motet_tests::programs::{find, free_port, skip};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A program that serves; dropping it ends it.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a service whose output goes to a file.
fn serve(site: &Site, mut command: Command, log: &str) -> Service {
    let log = fs::File::create(site.path(log)).expect("a log");
    command.stdout(log.try_clone().expect("the same file")).stderr(log);
    Service(command.spawn().expect("a service"))
}

/// Waits until a port listens.
#[track_caller]
fn until_it_listens(port: u16) {
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < LIMIT, "nothing listens at {port}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command whose words follow `timeout`'s.
fn limited(site: &Site, folder: &Path, program: &str, words: &[&str]) -> Command {
    let mut command = under_motet(site, folder, &[], "timeout");
    command.args(["-k", "5", "60", program]).args(words);
    command
}

/// The programs, unless one is missing: then the test is skipped with a message.
fn has(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program).is_none());
    missing.is_none_or(|program| {
        let _ = skip::<()>(test, &format!("{program} is not installed (tests/programs/packages.txt)"));
        false
    })
}

#[test]
fn gass_serves_files_over_upgraded_streams() {
    let test = "GASS";
    let Some(site) = Site::new(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    if !has(test, &["globus-gass-server"]) {
        return;
    }
    let port = free_port();
    let mut command = under_motet(&site, &folder, &[], "globus-gass-server");
    command.args(["-i", "-r", "-w", "-s", "-p", &port.to_string()]);
    let _server = serve(&site, command, "gass");
    until_it_listens(port);
    let source = site.file("source", 24 << 20);
    let (down, up) = (site.path("out/down"), site.path("out/up"));
    let url = |file: &Path| format!("http://127.0.0.1:{port}{}", file.display());
    let local = |file: &Path| format!("file://{}", file.display());
    let client =
        |words: &[&str]| succeeded(&limited(&site, &folder, "globus-url-copy", words).output().expect("a client"));
    let began = Instant::now();
    loop {
        client(&[&url(&source), &local(&down)]);
        client(&[&local(&source), &url(&up)]);
        assert!(same(&source, &down) && same(&source, &up));
        fs::remove_file(&down).and_then(|()| fs::remove_file(&up)).expect("the copies");
        // The clients' ends: the server has not exited. What takes shared memory then depends on who sleeps (docs/adr/0024).
        if site.fast().1 >= 2 {
            return;
        }
        assert!(began.elapsed() < LIMIT, "no stream has been upgraded");
    }
}

/// Ends the job manager, which waits for more jobs: it is no child of the gatekeeper, and writes its number to a file.
struct JobManager(PathBuf);

impl Drop for JobManager {
    fn drop(&mut self) {
        let numbers = Command::new("find").arg(&self.0).args(["-name", "*.pid"]).output();
        let files = String::from_utf8_lossy(&numbers.map(|found| found.stdout).unwrap_or_default()).into_owned();
        for number in files.lines().filter_map(|file| fs::read_to_string(file).ok()) {
            let name = fs::read_to_string(format!("/proc/{}/comm", number.trim())).unwrap_or_default();
            if name.starts_with("globus-job") {
                let _ = Command::new("kill").args(["-KILL", number.trim()]).status();
            }
        }
    }
}

#[test]
fn a_grams_job_sends_its_output_by_gass() {
    let test = "GRAM";
    let Some(mut site) = secure(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    if !has(test, &["globus-gatekeeper", "globus-job-manager", "globus-job-run", "grid-proxy-init"])
        || !Path::new("/usr/share/globus/globus-job-manager-script.pl").exists()
    {
        return;
    }
    let here = site.path("").display().to_string();
    let here = here.trim_end_matches('/');
    let port = free_port();
    for name in ["services", "jobs", "state", "var/lib/globus"] {
        fs::create_dir_all(site.path(name)).expect("a folder");
    }
    let gatekeeper = format!(
        "-x509_cert_dir {here}/ca\n-x509_user_cert {here}/localhost.pem\n-x509_user_key {here}/localhost.key\n-gridmap {here}/gridmap\n\
         -home {here}\n-e /usr/sbin\n-logfile {here}/gatekeeper.log\n-port {port}\n-grid_services services\n-f\n"
    );
    let manager = format!(
        "-home /usr\n-globus-gatekeeper-subject \"/O=Test/CN=localhost\"\n-globus-host-cputype x86_64\n-globus-host-manufacturer unknown\n\
         -globus-host-osname Linux\n-globus-host-osversion 1\n-state-file-dir {here}/state\n-globus-toolkit-version 6.2\n\
         -globus-job-dir {here}/jobs\n-x509-cert-dir {here}/ca\n"
    );
    let service = format!(
        "stderr_log,local_cred - /usr/sbin/globus-job-manager globus-job-manager -conf {here}/manager.conf -type fork\n"
    );
    for (name, text) in [("gatekeeper.conf", gatekeeper), ("manager.conf", manager), ("services/jobmanager", service)] {
        fs::write(site.path(name), text).expect("a configuration");
    }
    let proxy = site.path("proxy").display().to_string();
    let words = ["-cert", "user.pem", "-key", "user.key", "-out", &proxy, "-bits", "2048"];
    succeeded(&site.command("grid-proxy-init").args(words).output().expect("grid-proxy-init"));
    let mut command = under_motet(&site, &folder, &[], "globus-gatekeeper");
    command.args(["-conf", "gatekeeper.conf"]);
    command.env("X509_USER_CERT", site.path("localhost.pem")).env("X509_USER_KEY", site.path("localhost.key"));
    let _manager = JobManager(site.path("jobs"));
    let _gatekeeper = serve(&site, command, "gatekeeper");
    until_it_listens(port);
    site.environment.retain(|(name, _)| !name.starts_with("X509_USER"));
    site.environment.push(("X509_USER_PROXY".to_owned(), proxy));
    let contact = format!("localhost:{port}/jobmanager:/O=Test/CN=localhost");
    // 200 kB of output, in lines.
    let words = [&*contact, "/usr/bin/seq", "1", "35000"];
    let output = limited(&site, &folder, "globus-job-run", &words).output().expect("globus-job-run");
    let said = succeeded(&output);
    let expected: String = (1..=35_000).map(|number| format!("{number}\n")).collect();
    assert!(said == expected, "{} of {} B of output", said.len(), expected.len());
}

#[test]
fn myproxy_keeps_and_returns_credentials() {
    let test = "MyProxy";
    let Some(site) = secure(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    if !has(test, &["myproxy-server", "myproxy-init", "myproxy-logon"]) {
        return;
    }
    fs::write(
        site.path("myproxy.conf"),
        "accepted_credentials \"*\"\nauthorized_retrievers \"*\"\ndefault_retrievers \"*\"\n",
    )
    .expect("a configuration");
    let store = site.path("store").display().to_string();
    succeeded(&site.command("mkdir").args(["-m", "700", &store]).output().expect("mkdir"));
    let port = free_port().to_string();
    // With -d the server stays in the foreground, and ends after one client.
    let server = || {
        let mut command = under_motet(&site, &folder, &[], "myproxy-server");
        command.args(["-d", "-p", &port, "-l", "localhost", "-c", "myproxy.conf", "-s", &store]);
        command.env("X509_USER_CERT", site.path("localhost.pem")).env("X509_USER_KEY", site.path("localhost.key"));
        serve(&site, command, "myproxy")
    };
    let client = |program: &str, words: &[&str]| {
        let began = Instant::now();
        loop {
            let mut command = limited(&site, &folder, "sh", &["-c", "echo secret99 | \"$@\"", "sh", program]);
            command.args(["-s", "localhost", "-p", &port, "-l", "me", "-S"]).args(words);
            command.env("MYPROXY_SERVER_DN", "/O=Test/CN=localhost").stdin(Stdio::null());
            let output: Output = command.output().expect("a client of MyProxy");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if !said.contains("Connection refused") || began.elapsed() > LIMIT {
                return succeeded(&output);
            }
            thread::sleep(Duration::from_millis(50)); // the server does not listen yet
        }
    };
    let first = server();
    client("myproxy-init", &["-C", "user.pem", "-y", "user.key", "-c", "12", "-t", "2"]);
    drop(first);
    let _second = server();
    let proxy = site.path("returned").display().to_string();
    client("myproxy-logon", &["-o", &proxy]);
    let subject =
        site.command("openssl").args(["x509", "-in", &proxy, "-noout", "-subject"]).output().expect("openssl");
    assert!(succeeded(&subject).contains("O = Test, CN = user"), "{subject:?}");
}
