//! fio on a folder: jobs, their command line, and the rate that it reports.

use crate::cleanup;
use crate::report::Unit;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;

/// A job of fio.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// What it does, in words.
    pub what: &'static str,
    /// Its arguments.
    pub arguments: &'static [&'static str],
    /// Whether it reads.
    pub reads: bool,
    /// Whether its figure is the rate of operations, not that of bytes.
    pub counts: bool,
}

const fn job(what: &'static str, reads: bool, counts: bool, arguments: &'static [&'static str]) -> Job {
    Job { what, arguments, reads, counts }
}

/// The jobs. Each reads or writes every block once, so a cache of the mounted file system holds nothing of it before.
pub const JOBS: [Job; 7] = [
    job("1 MiB sequential read", true, false, &["--rw=read", "--bs=1m", "--ioengine=psync"]),
    job("1 MiB sequential read, O_DIRECT", true, false, &["--rw=read", "--bs=1m", "--ioengine=psync", "--direct=1"]),
    job("1 MiB sequential write", false, false, &["--rw=write", "--bs=1m", "--ioengine=psync"]),
    job("1 MiB sequential write, O_DIRECT", false, false, &["--rw=write", "--bs=1m", "--ioengine=psync", "--direct=1"]),
    job("4 KiB sequential write", false, false, &["--rw=write", "--bs=4k", "--ioengine=psync"]),
    job("4 KiB random read", true, true, &["--rw=randread", "--bs=4k", "--ioengine=psync"]),
    job(
        "4 KiB random read, O_DIRECT, 16 outstanding",
        true,
        true,
        &["--rw=randread", "--bs=4k", "--ioengine=libaio", "--iodepth=16", "--direct=1"],
    ),
];

/// Jobs on a disk that is spoken to by NBD.
pub const OF_DISKS: [Job; 2] = [
    job(
        "4 KiB random read, 16 outstanding",
        true,
        true,
        &["--rw=randread", "--bs=4k", "--ioengine=nbd", "--iodepth=16"],
    ),
    job(
        "1 MiB sequential read, 4 outstanding",
        true,
        false,
        &["--rw=read", "--bs=1m", "--ioengine=nbd", "--iodepth=4"],
    ),
];

impl Job {
    /// The unit of its figure.
    pub fn unit(&self) -> Unit {
        if self.counts { Unit::PerSecond } else { Unit::GBs }
    }

    /// Whether its blocks are of 1 MiB.
    pub fn is_long(&self) -> bool {
        self.arguments.contains(&"--bs=1m")
    }

    /// The command line on a file of this size.
    pub fn words(&self, file: &Path, bytes: usize, seconds: usize) -> Vec<String> {
        let mut words: Vec<String> = ["fio", "--name=bench", "--output-format=json", "--thread", "--invalidate=1"]
            .into_iter()
            .chain(self.arguments.iter().copied())
            .map(str::to_owned)
            .collect();
        // Without it a network file system has not written what it has accepted.
        words.extend((!self.reads).then(|| "--end_fsync=1".to_owned()));
        words.extend([
            format!("--filename={}", file.display()),
            format!("--size={bytes}"),
            format!("--runtime={seconds}"),
            "--randrepeat=0".to_owned(),
        ]);
        words
    }

    /// The command line on a disk.
    pub fn words_on_disk(&self, uri: &str, bytes: usize, seconds: usize) -> Vec<String> {
        let words = self.words(Path::new("disk"), bytes, seconds);
        let is_local =
            |word: &String| ["--filename=", "--invalidate=", "--end_fsync="].iter().any(|of| word.starts_with(of));
        let more = [format!("--uri={uri}"), "--time_based".to_owned()];
        words.into_iter().filter(|word| !is_local(word)).chain(more).collect()
    }

    /// Runs it by a command that ends in its words. Returns operations a second, or GB/s.
    pub fn run(&self, command: &mut Command) -> Result<f64> {
        self.figure(&self.report(command)?)
    }

    /// [`Job::run`]; returns the CPU time of fio's thread for each operation, ns, too.
    pub fn run_with_cpu(&self, command: &mut Command) -> Result<(f64, f64)> {
        let report = self.report(command)?;
        Ok((self.figure(&report)?, self.cpu(&report)?))
    }

    fn report(&self, command: &mut Command) -> Result<String> {
        let output = cleanup::output(command).context("fio (package fio)")?;
        let (said, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        ensure!(output.status.success(), "fio: {}", said.lines().chain(printed.lines()).last().unwrap_or_default());
        Ok(printed.into_owned())
    }

    /// The CPU time for each operation, ns.
    fn cpu(&self, printed: &str) -> Result<f64> {
        let job = &parse(printed)?["jobs"][0];
        let number = |value: &serde_json::Value| value.as_f64().context("a figure of fio");
        let percent = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
        let side = &job[if self.reads { "read" } else { "write" }];
        Ok(percent / 100.0 * number(&job["job_runtime"])? * 1e6 / number(&side["total_ios"])?)
    }

    /// The figure in fio's report.
    fn figure(&self, printed: &str) -> Result<f64> {
        let report = parse(printed)?;
        let side = &report["jobs"][0][if self.reads { "read" } else { "write" }];
        let figure = if self.counts { side["iops"].as_f64() } else { side["bw_bytes"].as_f64().map(|rate| rate / 1e9) };
        match figure {
            Some(figure) if figure > 0.0 => Ok(figure),
            _ => bail!("fio reports no rate"),
        }
    }
}

/// fio's report. Messages of fio may precede it.
fn parse(printed: &str) -> Result<serde_json::Value> {
    let report = printed.find('{').map_or("", |at| &printed[at..]);
    serde_json::from_str(report).context("what fio printed")
}

/// Runs a job on a file of this host.
pub fn run(job: &Job, file: &Path, bytes: usize, seconds: usize) -> Result<f64> {
    let words = job.words(file, bytes, seconds);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_remove("LD_PRELOAD").current_dir(std::env::temp_dir());
    job.run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_side_that_the_job_has() {
        let report = r#"fio: a remark
            {"jobs": [{"read": {"iops": 80000.5, "bw_bytes": 327680000}, "write": {"iops": 0.0, "bw_bytes": 2000000000}}]}"#;
        let of = |what: &str| JOBS.iter().find(|job| job.what == what).unwrap().figure(report).unwrap();
        assert_eq!(of("4 KiB random read"), 80000.5);
        assert_eq!(of("1 MiB sequential read"), 0.32768);
        assert_eq!(of("1 MiB sequential write"), 2.0);
        let of_cpu =
            r#"{"jobs": [{"usr_cpu": 20.0, "sys_cpu": 30.0, "job_runtime": 1000, "read": {"total_ios": 100000}}]}"#;
        assert_eq!(OF_DISKS[0].cpu(of_cpu).unwrap(), 5000.0);
        let words = OF_DISKS[0].words_on_disk("nbd://x", 7, 1);
        assert!(words.contains(&"--uri=nbd://x".to_owned()) && !words.iter().any(|word| word.contains("--filename")));
        assert!(JOBS[0].figure("nothing").is_err());
        assert!(JOBS[0].figure(r#"{"jobs": [{"read": {"bw_bytes": 0}}]}"#).is_err());
    }
}
