//! sshfs without ssh (`-o directport`) with and without `motet run`: an unmodified remote file system whose two programs speak over one TCP connection.

use super::fio;
use super::scene::{FILE, FILE_BYTES, Mounted, Scene, Server};
use crate::bench::{Bench, Measurement};
use crate::cleanup;
use crate::report::{Line, Quantity};
use anyhow::{Context, Result, ensure};
use motet_programs::{find, free_port};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The server's program for each connection.
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";
/// Accepts connections at a port, and starts a program with each as its standard input and output, as inetd does.
const ACCEPT: &str = "
import os, socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listening', flush=True)
while True:
    connection, _ = listener.accept()
    if os.fork() == 0:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        os.dup2(connection.fileno(), 0)
        os.dup2(connection.fileno(), 1)
        os.closerange(3, 64)
        os.execv(sys.argv[2], sys.argv[2:])
    connection.close()
";

/// Part `sshfs`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    ensure!(Path::new("/dev/fuse").exists(), "SKIPPED: no /dev/fuse");
    find("sshfs").context("SKIPPED: no sshfs (package sshfs)")?;
    ensure!(Path::new(SFTP_SERVER).exists(), "SKIPPED: no sftp-server (package openssh-sftp-server)");
    let scene = Scene::new(bench)?;
    let run = [scene.motet().as_os_str().to_owned(), "run".into(), "--".into()];
    let (with, without) = (mount(&scene, &run, "with")?, mount(&scene, &[], "without")?);
    let seconds = if bench.quick { 1 } else { 4 };
    let mut lines = Vec::new();
    for job in fio::JOBS.iter().filter(|job| !job.arguments.contains(&"--direct=1")) {
        let mut measurements: Vec<Measurement<'_>> = [&with, &without]
            .map(|(mounted, _)| -> Measurement<'_> {
                Box::new(move |_| fio::run(job, &mounted.folder.join(FILE), FILE_BYTES, seconds))
            })
            .into();
        let series = bench.compare(bench.of_programs, false, &mut measurements)?;
        let quantity = |name: &str, at: usize| Quantity::of(name, &series[at].values, job.unit());
        lines.push(
            Line::new("sshfs", format!("fio, {}, sshfs -o directport", job.what))
                .figure(quantity("under motet run", 0))
                .floors(&series[0].floors)
                .against(quantity("over TCP", 1), &series[0].over(&series[1])),
        );
    }
    Ok(lines)
}

/// Starts a server and mounts its folder, both by `before`.
fn mount(scene: &Scene, before: &[OsString], name: &str) -> Result<(Mounted, Server)> {
    let command = |words: &[OsString]| {
        let all = [before, words].concat();
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).env_remove("LD_PRELOAD").stdin(Stdio::null());
        command
    };
    let port = free_port()?.to_string();
    let mut serve = command(&["python3", "-c", ACCEPT, &port, SFTP_SERVER].map(OsString::from));
    let mut server = cleanup::start(serve.stdout(Stdio::piped()))?;
    let mut line = String::new();
    BufReader::new(server.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let server = Server::of(server);
    ensure!(line == "listening\n", "the server does not start");
    let at: PathBuf = scene.path(name);
    std::fs::create_dir(&at)?;
    let source = format!("127.0.0.1:{}", scene.data().display());
    let mut words = ["sshfs", "-f", "-o", &format!("directport={port}"), &source].map(OsString::from).to_vec();
    words.push(at.clone().into());
    let client = Server::of(cleanup::start(command(&words).stdout(Stdio::null()))?);
    Ok((Mounted::by(at, client)?, server))
}
