//! Measures direct reads of 4 KiB at random places by a server with threads and by one with io_uring: reads per second, and the CPU time of both ends.
//!
//! `scripts/measure-storage FOLDER` runs it. Server and client are two processes; both servers run all the time, and have their turns one after the other.

use motet_files::client::{Client, CompletionQueue, File, OperationMemory, Source, Submission};
use motet_files::exports::{self, Query};
use motet_files::protocol::OpenFlags;
use motet_files::server::{Options, Server, Storage};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a read.
const BLOCK: usize = 4096;
/// Bytes of the file that is read.
const FILE_BYTES: usize = 256 << 20;
/// Its name.
const NAME: &str = "motet-measure-storage";
/// Reads under way, and how many clients have them: one has at most 55.
const DEPTHS: [(usize, usize); 4] = [(1, 1), (4, 1), (16, 1), (64, 2)];
/// Turns of each server for each depth.
const TURNS: usize = 7;
/// How long a turn is, and the time before it that does not count.
const TURN: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);
/// How long a read may take.
const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// What a turn has brought.
#[derive(Debug, Clone, Copy)]
struct Turn {
    reads_per_second: f64,
    /// CPU time of client and server for one read, us.
    client: f64,
    server: f64,
}

/// A server in a process of its own, and clients of it.
struct Side {
    process: Child,
    clients: Vec<(Client, Arc<File>)>,
    export: String,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder] => measure(Path::new(folder)),
        ["--serve", folder, name, storage] => serve(Path::new(folder), name, storage),
        _ => Err("usage: measure_storage FOLDER".into()),
    }
}

/// Serves until the standard input ends.
fn serve(folder: &Path, name: &str, storage: &str) -> Result<()> {
    let storage = if storage == "threads" { Storage::Threads } else { Storage::IoUring };
    let options = Options { name: name.to_owned(), directory: folder.to_owned(), storage, ..Options::default() };
    let _server = Server::start(options)?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

impl Side {
    fn start(folder: &Path, storage: &str) -> Result<Self> {
        let export = format!("measure-{}-{storage}", std::process::id());
        let mut process = Command::new(env::current_exe()?)
            .arg("--serve")
            .arg(folder)
            .args([&export, storage])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        if line.trim() != "ready" {
            process.wait()?;
            return Err(format!("the server with {storage} has not started").into());
        }
        let mut side = Self { process, clients: Vec::new(), export };
        for _ in 0..2 {
            let client = Client::connect(Source::Name(side.export.clone()), None)?;
            let file = client.open_file(NAME.as_bytes(), OpenFlags::READ | OpenFlags::DIRECT, 0)?.0;
            side.clients.push((client, Arc::new(file)));
        }
        Ok(side)
    }

    /// Reads for a turn, with so many reads under way by so many clients.
    fn turn(&self, depth: usize, clients: usize, seed: u64) -> Result<Turn> {
        let pid = self.process.id().to_string();
        thread::scope(|scope| {
            let started: Vec<_> = self.clients[..clients]
                .iter()
                .enumerate()
                .map(|(number, (client, file))| {
                    let seed = seed * 16 + number as u64;
                    scope.spawn(move || read(client, file, depth / clients, seed))
                })
                .collect();
            thread::sleep(WARM_UP);
            let before = (cpu("self")?, cpu(&pid)?);
            thread::sleep(TURN);
            let after = (cpu("self")?, cpu(&pid)?);
            let mut reads = 0.0;
            for thread in started {
                reads += thread.join().map_err(|_| "a client has failed")??;
            }
            let each = |before: f64, after: f64| (after - before) * 1e6 / (reads * TURN.as_secs_f64());
            Ok(Turn { reads_per_second: reads, client: each(before.0, after.0), server: each(before.1, after.1) })
        })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.clients.iter().for_each(|(client, _)| client.close());
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Reads at random places during a turn; returns reads per second.
fn read(client: &Client, file: &Arc<File>, depth: usize, seed: u64) -> Result<f64> {
    let queue = CompletionQueue::new(client, depth)?;
    let mut state = seed;
    let mut submit = |mut memory: Vec<u8>| -> Result<()> {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (state >> 33) % (FILE_BYTES / BLOCK) as u64 * BLOCK as u64;
        loop {
            match queue.submit(file, Submission::Read { offset, into: OperationMemory::Owned(memory) }, 0) {
                Ok(()) => return Ok(()),
                Err((error, Some(returned))) if error.kind() == std::io::ErrorKind::WouldBlock => memory = returned,
                Err((error, _)) => return Err(error.into()),
            }
        }
    };
    for _ in 0..depth {
        submit(vec![0; BLOCK])?;
    }
    let began = Instant::now();
    let (mut count, mut end) = (0_u64, None);
    while end.is_none() {
        let completed = queue.wait(LIMIT)?;
        if completed.result? != BLOCK {
            return Err("a short read".into());
        }
        let elapsed = began.elapsed();
        count += u64::from(elapsed >= WARM_UP);
        if elapsed >= WARM_UP + TURN {
            end = Some(elapsed - WARM_UP);
        } else {
            submit(completed.memory.unwrap_or_else(|| vec![0; BLOCK]))?;
        }
    }
    while queue.outstanding() > 0 {
        queue.wait(LIMIT)?;
    }
    Ok(count as f64 / end.unwrap_or(TURN).as_secs_f64())
}

/// The CPU time of a process, also of threads that have ended, seconds.
fn cpu(process: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // Behind the name, which may contain anything: time in user and in kernel mode are the 12th and 13th field, in units of 10 ms.
    let fields = text.rsplit(')').next().unwrap_or("").split_whitespace();
    let ticks: Vec<f64> = fields.skip(11).take(2).map(str::parse).collect::<std::result::Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

fn measure(folder: &Path) -> Result<()> {
    let path = folder.join(NAME);
    let made = make_file(&path).and_then(|()| compare(folder));
    let _ = fs::remove_file(&path);
    made
}

fn make_file(path: &Path) -> Result<()> {
    let mut file = fs::File::create(path)?;
    for number in 0..FILE_BYTES >> 20 {
        file.write_all(&vec![number as u8; 1 << 20])?;
    }
    file.sync_all()?;
    Ok(())
}

fn compare(folder: &Path) -> Result<()> {
    let sides = [Side::start(folder, "threads")?, Side::start(folder, "io_uring")?];
    println!(
        "4 KiB direct reads at random places of 256 MiB; median of {TURNS} turns of 1 s, and their range; CPU time for a read\n"
    );
    println!("| under way | by | reads/s | client, us | server, us | both, us |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: |");
    for (depth, clients) in DEPTHS {
        let mut turns = [Vec::new(), Vec::new()];
        for turn in 0..TURNS {
            // Each is the first one in turn.
            for at in [turn % 2, 1 - turn % 2] {
                turns[at].push(sides[at].turn(depth, clients, turn as u64 + 1)?);
            }
        }
        for (name, turns) in ["threads", "io_uring"].into_iter().zip(&turns) {
            let of = |value: &dyn Fn(&Turn) -> f64| spread(turns.iter().map(value).collect());
            println!(
                "| {depth} | {name} | {} | {} | {} | {} |",
                of(&|turn| turn.reads_per_second.round()),
                of(&|turn| turn.client),
                of(&|turn| turn.server),
                of(&|turn| turn.client + turn.server)
            );
        }
    }
    let storage = exports::ask(&sides[1].export, &Query::default())?.info.storage;
    println!("\nThe server with io_uring: direct reads by {storage}");
    Ok(())
}

/// The median of values, and their range.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let digits = if values[0] < 1000.0 { 1 } else { 0 };
    let (low, high) = (values[0], values[values.len() - 1]);
    format!("{:.digits$} [{low:.digits$} .. {high:.digits$}]", values[values.len() / 2])
}
