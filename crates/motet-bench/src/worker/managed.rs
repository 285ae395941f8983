//! Programs that manage their own reads and writes of remote files.
//!
//! `--worker files managed WAY NAME BYTES` opens the file of BYTES bytes of an export. Each line `OPERATION SIZE MS` on standard input is answered with
//! `MEDIAN MEAN COUNT`, times in ns. Operations: `queue-read` and `queue-write` through a completion queue with [`depth`] requests under way, `batch-read` by
//! batches of as many, `thread-read` one at a time by a thread that registers the memory at each request, `register` the registration alone. Places are random.

use super::number;
use crate::files::scene::FILE;
use anyhow::{Context, Result, bail, ensure};
use motet::node::{Node, Rights};
use motet_files::client::{Client, CompletionQueue, File, OperationMemory, Source, Submission, Transfer};
use motet_files::protocol::OpenFlags;
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Requests under way, or in a batch: fewer long ones, which occupy both ends.
pub const fn depth(size: usize) -> usize {
    if size > 4 << 10 { 4 } else { 16 }
}

/// How long a call waits for its server.
const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

/// An open file, and random places of it.
struct Managed {
    client: Client,
    file: Arc<File>,
    bytes: usize,
    state: u64,
}

/// Runs the role.
pub fn run(way: &str, name: &str, bytes: usize) -> Result<()> {
    let client = match way {
        "direct" => Client::named(name, LIMIT)?,
        _ => Client::connect(Source::Name(name.to_owned()), LIMIT)?,
    };
    ensure!(client.is_direct() == (way == "direct"), "the client does not use the way {way}");
    let file = Arc::new(client.open_file(FILE.as_bytes(), OpenFlags::READ | OpenFlags::WRITE, 0)?.0);
    let mut managed = Managed { client, file, bytes, state: 1 };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [operation, size, ms] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("no such command: {line}")
        };
        let (size, ms) = (number(size)?, number(ms)?);
        ensure!(size > 0 && size <= bytes, "a size of {size}");
        let result = match operation {
            "queue-read" | "queue-write" => managed.queue(operation == "queue-write", size, ms),
            "batch-read" => managed.batches(size, ms),
            "thread-read" => managed.by_thread(size, ms),
            "register" => registrations(size, ms),
            _ => bail!("no such operation: {operation}"),
        }?;
        println!("{result}");
    }
    Ok(())
}

impl Managed {
    fn place(&mut self, size: usize) -> u64 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) % (self.bytes / size) as u64 * size as u64
    }

    /// Requests through a completion queue. The next one is submitted when one has completed, into the same memory.
    fn queue(&mut self, writes: bool, size: usize, ms: usize) -> Result<String> {
        let queue = CompletionQueue::new(&self.client, depth(size))?;
        let mut submit = |mut memory: Vec<u8>| -> Result<()> {
            let offset = self.place(size);
            loop {
                let owned = OperationMemory::Owned(memory);
                let submission = match writes {
                    true => Submission::Write { offset, data: owned },
                    false => Submission::Read { offset, into: owned },
                };
                match queue.submit(&self.file, submission, 0) {
                    Ok(()) => return Ok(()),
                    Err((error, Some(returned))) if error.kind() == std::io::ErrorKind::WouldBlock => memory = returned,
                    Err((error, _)) => return Err(error.into()),
                }
            }
        };
        for _ in 0..depth(size) {
            submit(vec![1; size])?;
        }
        let measured = super::measure(0, ms, 1.0, |count| {
            for _ in 0..count {
                let completed = queue.wait(LIMIT)?;
                ensure!(completed.result? == size, "a short transfer");
                // Short writes were copied, and do not come back.
                submit(completed.memory.unwrap_or_else(|| vec![1; size]))?;
            }
            Ok(())
        })?;
        while queue.outstanding() > 0 {
            queue.wait(LIMIT)?;
        }
        Ok(measured)
    }

    fn batches(&mut self, size: usize, ms: usize) -> Result<String> {
        let mut memory = vec![1; size * depth(size)];
        super::measure(0, ms, 1.0, |count| {
            let mut left = count;
            while left > 0 {
                let batch = left.min(depth(size));
                let blocks = memory.chunks_mut(size).take(batch);
                let mut reads: Vec<_> = blocks.map(|block| Transfer::Read(self.place(size), block)).collect();
                for read in self.file.transfer(&mut reads) {
                    ensure!(read? == size, "a short read");
                }
                left -= batch;
            }
            Ok(())
        })
    }

    /// One request at a time: handed to a thread, which registers the memory, reads, and ends the registration.
    fn by_thread(&mut self, size: usize, ms: usize) -> Result<String> {
        let (requests, received): (Sender<u64>, Receiver<u64>) = channel();
        let (answers, answered) = channel();
        let file = Arc::clone(&self.file);
        let thread = thread::spawn(move || -> Result<()> {
            let node = Node::open("")?;
            let words = words(size);
            let mut memory = vec![1; size];
            for offset in received {
                let key = node.register_words(&words, Rights::ALL)?;
                let read = file.read_at(&mut memory, offset)?;
                node.revoke(key, None)?;
                answers.send(read)?;
            }
            Ok(())
        });
        let measured = super::measure(0, ms, 1.0, |count| {
            for _ in 0..count {
                requests.send(self.place(size))?;
                ensure!(answered.recv()? == size, "a short read");
            }
            Ok(())
        });
        drop(requests);
        thread.join().ok().context("the thread has failed")??;
        measured
    }
}

/// Memory that can be registered.
fn words(size: usize) -> Arc<[AtomicU64]> {
    (0..size.div_ceil(8)).map(|_| AtomicU64::new(1)).collect()
}

/// A registration and its end.
fn registrations(size: usize, ms: usize) -> Result<String> {
    let (node, words) = (Node::open("")?, words(size));
    super::measure(0, ms, 1.0, |count| {
        for _ in 0..count {
            node.revoke(node.register_words(&words, Rights::ALL)?, None)?;
        }
        Ok(())
    })
}
