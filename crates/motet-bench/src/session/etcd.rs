//! A session whose directory is in an etcd that is killed and started again.

use super::lifetimes::{LIMIT, MEMBERS, all_attached, end_members, wait_until_ready};
use super::scene::{Children, GROUP, Scene};
use crate::bench::Bench;
use crate::cleanup;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use motet_programs::{find, free_port};
use motet_session::api::View;
use std::process::{Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// Part `etcd`: members exchange messages while etcd is killed and started again with its data.
pub fn killed(bench: &Bench) -> Result<Vec<Line>> {
    let mut etcd = Etcd::start()?;
    let scene = Scene::down(bench)?;
    etcd.until_it_answers()?;
    scene.run(&["up", "--directory", &format!("etcd://{}", etcd.client)])?;
    let mut members = Children::default();
    for rank in 0..MEMBERS {
        let place = [rank, MEMBERS].map(|number| number.to_string());
        members.0.push(scene.worker(&["ring", &place[0], &place[1]], Stdio::piped())?);
    }
    wait_until_ready(&mut members)?;
    // Right: the members are listed, and a node can join and leave.
    let right = || -> Result<bool> {
        let view = scene.client()?.get::<View>(&format!("/v1/groups/{GROUP}"))?;
        Ok(view.members.len() == MEMBERS
            && all_attached(&scene)?
            && scene.members(1, &["operations", "few", "2"]).is_ok())
    };
    let seconds = |_| -> Result<f64> {
        etcd.kill()?;
        let began = Instant::now();
        etcd.run()?;
        while !right().unwrap_or(false) {
            ensure!(began.elapsed() < LIMIT, "the directory does not come back");
        }
        Ok(began.elapsed().as_secs_f64())
    };
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(seconds)])?;
    end_members(&mut members)?;
    Ok(vec![
        Line::new(
            "etcd",
            format!("etcd is killed and started again, until {MEMBERS} members are listed and a node can join"),
        )
        .figure(Quantity::of("no link broke, with the start of etcd", &series[0].values, Unit::Seconds))
        .bound(Bound::AtMost(2.0)),
    ])
}

/// A server with a folder of its own.
struct Etcd {
    server: Children,
    folder: TempDir,
    /// `ADDRESS:PORT` for clients, and for other servers, of which there are none.
    client: String,
    peer: String,
}

impl Etcd {
    fn start() -> Result<Self> {
        find("etcd").context("SKIPPED: etcd is not installed (tests/packages.txt)")?;
        let address = || -> Result<String> { Ok(format!("127.0.0.1:{}", free_port()?)) };
        let mut etcd =
            Self { server: Children::default(), folder: cleanup::folder()?, client: address()?, peer: address()? };
        etcd.run()?;
        Ok(etcd)
    }

    fn run(&mut self) -> Result<()> {
        let [client, peer] = [&self.client, &self.peer].map(|address| format!("http://{address}"));
        let mut command = Command::new("etcd");
        command.args([
            "--name",
            "one",
            "--heartbeat-interval",
            "20",
            "--election-timeout",
            "200",
            "--log-level",
            "error",
        ]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}"), "--data-dir"]).arg(self.folder.path().join("data"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.server.0.push(cleanup::start(&mut command).context("etcd")?);
        Ok(())
    }

    fn until_it_answers(&self) -> Result<()> {
        let began = Instant::now();
        while std::net::TcpStream::connect(&self.client).is_err() {
            ensure!(began.elapsed() < LIMIT, "etcd does not start");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends it in the middle of whatever it does.
    fn kill(&mut self) -> Result<()> {
        let mut server = self.server.0.pop().context("etcd runs")?;
        server.kill()?;
        server.wait()?;
        Ok(())
    }
}
