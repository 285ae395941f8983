//! Clients of remote files that measure.
//!
//! `--worker files client WAY NAME BYTES` reads and writes the file of BYTES bytes of an export, or of a folder for the way `local`; for the way `new` it makes the file.
//! Each line
//! `OPERATION SIZE MS` on standard input is answered with `MEDIAN MEAN COUNT`, times in ns. `--worker files writers NAME FIRST COUNT` has COUNT clients, each
//! with a thread and a file of its own; each line `SIZE MS` is answered with how many writes each of them made in that time. `echo` and `exchange ADDRESS`
//! are the two ends of an exchange of messages as a read has it, without files.

use super::number;
use crate::files::scene::FILE;
use anyhow::{Context, Result, bail, ensure};
use motet::node::{Node, RecvFrom, Serve};
use motet_files::client::{Client, File, Source};
use motet_files::protocol::OpenFlags;
use motet_sys::rustix::fs::OFlags;
use std::io::BufRead;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// How long a call waits for its server.
const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
/// The file that is made and removed.
const NEW_FILE: &str = "new";
/// Bytes of the file of each writer.
const WRITTEN_BYTES: usize = 1 << 20;
/// Threads of the operations `read-together` and `write-together`.
const TOGETHER: usize = 4;
/// Bytes of a page.
const PAGE: usize = 4096;
/// The service, the tags, and the bytes of a request of an exchange.
const SERVICE: u64 = u64::from_be_bytes(*b"mt.bench");
const REQUEST: u64 = 1;
const ANSWER: u64 = 2;
const REQUEST_BYTES: usize = 16;

/// Runs a role.
pub fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["client", way, name, bytes] => {
            let bytes = number(bytes)?;
            client(&Files::open(way, name, bytes)?, bytes)
        }
        ["echo"] => echo(),
        ["exchange", address] => exchange(address),
        ["writers", name, first, count] => writers(name, number(first)?, number(count)?),
        _ => bail!("no such role: {}", words.join(" ")),
    }
}

/// Files in one of the ways to reach them.
enum Files {
    /// By system calls.
    Local(PathBuf, std::fs::File),
    /// By a client.
    Remote(Client, File),
}

impl Files {
    fn open(way: &str, name: &str, bytes: usize) -> Result<Self> {
        let client = match way {
            "local" | "uncached" => {
                let folder = PathBuf::from(name);
                let flags = if way == "uncached" { OFlags::DIRECT } else { OFlags::empty() };
                let mut options = std::fs::OpenOptions::new();
                options.read(true).write(true).custom_flags(flags.bits().cast_signed());
                let file = options.open(folder.join(FILE))?;
                return Ok(Self::Local(folder, file));
            }
            "direct" => {
                let client = Client::named(name, LIMIT)?;
                ensure!(client.is_direct(), "the server does not hand out its folder");
                client
            }
            _ => Client::connect(Source::Name(name.to_owned()), LIMIT)?,
        };
        let create = if way == "new" { OpenFlags::CREATE } else { OpenFlags::empty() };
        let file = client.open_file(FILE.as_bytes(), OpenFlags::READ | OpenFlags::WRITE | create, 0o600)?.0;
        if way == "new" {
            let block = vec![1; WRITTEN_BYTES];
            for at in 0..bytes / block.len() {
                file.write_at(&block, (at * block.len()) as u64)?;
            }
        }
        Ok(Self::Remote(client, file))
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let read = match self {
            Self::Local(_, file) => file.read_at(buffer, offset)?,
            Self::Remote(_, file) => file.read_at(buffer, offset)?,
        };
        ensure!(read == buffer.len(), "a read of {read} bytes");
        Ok(())
    }

    fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        let written = match self {
            Self::Local(_, file) => file.write_at(data, offset)?,
            Self::Remote(_, file) => file.write_at(data, offset)?,
        };
        ensure!(written == data.len(), "a write of {written} bytes");
        Ok(())
    }

    fn attributes(&self) -> Result<()> {
        let size = match self {
            Self::Local(folder, _) => std::fs::symlink_metadata(folder.join(FILE))?.len(),
            Self::Remote(client, _) => client.attributes(FILE.as_bytes())?.size,
        };
        ensure!(size > 0, "the file is empty");
        Ok(())
    }

    /// Makes a file, closes it, and removes it.
    fn create(&self) -> Result<()> {
        match self {
            Self::Local(folder, _) => {
                let path = folder.join(NEW_FILE);
                drop(std::fs::OpenOptions::new().write(true).create_new(true).open(&path)?);
                std::fs::remove_file(path)?;
            }
            Self::Remote(client, _) => {
                let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
                drop(client.open_file(NEW_FILE.as_bytes(), flags, 0o600)?);
                client.unlink(NEW_FILE.as_bytes(), false)?;
            }
        }
        Ok(())
    }
}

fn client(files: &Files, bytes: usize) -> Result<()> {
    let mut state = 1u64;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [operation, size, ms] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("no such command: {line}")
        };
        let size = number(size)?;
        if let Some(operation) = operation.strip_suffix("-together") {
            println!(
                "{}",
                together(files, operation == "write", size, bytes, Duration::from_millis(number(ms)? as u64))?
            );
            continue;
        }
        // At the beginning of a page, for O_DIRECT.
        let mut memory = vec![1u8; size + PAGE];
        let from = memory.as_ptr().align_offset(PAGE);
        let buffer = &mut memory[from..from + size];
        let blocks = (bytes / size.max(1)) as u64;
        ensure!(blocks > 0, "the file is smaller than a block");
        let mut at = 0;
        let result = super::measure(0, number(ms)?, 1.0, |count| {
            for _ in 0..count {
                match operation {
                    "random-read" => {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        files.read(buffer, (state >> 33) % blocks * size as u64)?;
                    }
                    "read" => files.read(buffer, at % blocks * size as u64)?,
                    "write" => files.write(buffer, at % blocks * size as u64)?,
                    "stat" => files.attributes()?,
                    "create" => files.create()?,
                    "start" => {
                        let status = std::process::Command::new("/bin/true").status()?;
                        ensure!(status.success(), "/bin/true has failed");
                    }
                    _ => bail!("no such operation: {operation}"),
                }
                at += 1;
            }
            Ok(())
        })?;
        println!("{result}");
    }
    Ok(())
}

/// Reads or writes the file in order by [`TOGETHER`] threads, each the next block when it has one. Returns the time for each block, ns, and their number.
fn together(files: &Files, writes: bool, size: usize, bytes: usize, time: Duration) -> Result<String> {
    let blocks = (bytes / size) as u64;
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let run = || -> Result<()> {
        let mut buffer = vec![1; size];
        while began.elapsed() < time {
            let offset = next.fetch_add(1, Ordering::Relaxed) % blocks * size as u64;
            if writes { files.write(&buffer, offset)? } else { files.read(&mut buffer, offset)? }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread has failed")))
    })?;
    let count = next.into_inner();
    let each = began.elapsed().as_nanos() as f64 / count as f64;
    Ok(format!("{each} {each} {count}"))
}

/// Clients that write their own files until a time is over.
fn writers(name: &str, first: usize, count: usize) -> Result<()> {
    let begin = Barrier::new(count);
    thread::scope(|scope| {
        let (sender, counts) = channel();
        let threads: Vec<_> = (first..first + count)
            .map(|number| {
                let (orders, received) = channel::<(usize, Duration)>();
                let (sender, begin) = (sender.clone(), &begin);
                scope.spawn(move || {
                    let written = writer(name, number, &received, begin, |count| {
                        let _ = sender.send(count);
                    });
                    if let Err(error) = written {
                        eprintln!("a client has failed: {error:#}");
                        std::process::exit(1); // the others wait for it
                    }
                });
                orders
            })
            .collect();
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            let (size, ms) = line.split_once(' ').context("SIZE MS")?;
            let order = (number(size)?, Duration::from_millis(number(ms)? as u64));
            threads.iter().try_for_each(|orders| orders.send(order))?;
            let counts: Vec<String> = counts.iter().take(count).map(|count: u64| count.to_string()).collect();
            println!("{}", counts.join(" "));
        }
        Ok(())
    })
}

fn writer(
    name: &str,
    number: usize,
    orders: &std::sync::mpsc::Receiver<(usize, Duration)>,
    begin: &Barrier,
    done: impl Fn(u64),
) -> Result<()> {
    let client = Client::connect(Source::Name(name.to_owned()), LIMIT)?;
    let path = format!("written-{number}");
    let file = client.open_file(path.as_bytes(), OpenFlags::WRITE | OpenFlags::CREATE, 0o600)?.0;
    for (size, time) in orders {
        let data = vec![number as u8; size];
        let blocks = (WRITTEN_BYTES / size.max(1)).max(1) as u64;
        begin.wait();
        let (began, mut count) = (Instant::now(), 0u64);
        while began.elapsed() < time {
            ensure!(file.write_at(&data, count % blocks * size as u64)? == size, "a short write");
            count += 1;
        }
        done(count);
    }
    drop(file);
    client.close();
    Ok(())
}

/// Answers each request, which says a size, with so many bytes.
fn echo() -> Result<()> {
    let node = Node::open("")?;
    let context = node.context()?;
    node.serve(SERVICE, Serve::Tagged(context))?;
    println!("address {}", node.address()?);
    let data = vec![1u8; 1 << 20];
    let mut request = [0; REQUEST_BYTES];
    node.accept(SERVICE, None)?;
    while let Ok(received) = node.receive_tagged(RecvFrom::Any(context), REQUEST, 0, &mut request, None) {
        let (size, _) = request.split_first_chunk().context("a request")?;
        let size = u64::from_le_bytes(*size) as usize;
        node.send(received.channel, ANSWER, data.get(..size).context("a size")?, None)?;
    }
    Ok(())
}

/// Asks for messages of a size: each line `OPERATION SIZE MS` is answered as that of a client.
fn exchange(address: &str) -> Result<()> {
    let node = Node::open("")?;
    let context = node.context()?;
    let link = node.connect(address, LIMIT)?;
    let channel = node.open_channel(link, SERVICE, Serve::Tagged(context), LIMIT)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [_, size, ms] = line.split_whitespace().collect::<Vec<_>>()[..] else { bail!("no such command: {line}") };
        let mut data = vec![0u8; number(size)?];
        let mut request = [0; REQUEST_BYTES];
        request[..8].copy_from_slice(&(data.len() as u64).to_le_bytes());
        let result = super::measure(0, number(ms)?, 1.0, |count| {
            for _ in 0..count {
                node.send(channel, REQUEST, &request, LIMIT)?;
                let received = node.receive_tagged(RecvFrom::Channel(channel), ANSWER, 0, &mut data, LIMIT)?;
                ensure!(received.length == data.len(), "a message of {} bytes", received.length);
            }
            Ok(())
        })?;
        println!("{result}");
    }
    Ok(())
}
