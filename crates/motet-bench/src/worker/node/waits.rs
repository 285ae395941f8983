//! Waiting for one operation, for any of several, for a completion queue: by the interface, or through a thread that dispatches.
//!
//! A program without such waits has a dispatcher: a thread that takes every completion and puts it on a board, where the waiting thread
//! finds it.

use super::{ANSWER, END, join};
use crate::worker::measure;
use anyhow::{Context, Result, bail};
use motet::node::{Channel, Completion, CompletionOptions, CqId, Node, OperationId, OperationMemory, RecvFrom};
use std::sync::{Arc, Condvar, Mutex};

/// Posted receives, where the wait is for any of them or for a completion queue.
const POSTED_RECEIVES: usize = 8;
const ROUND_TRIPS: usize = 500;
const SIZE: usize = 8;

/// What is waited for.
#[derive(Clone, Copy, PartialEq)]
enum WaitFor {
    One,
    Any,
    Queue,
}

/// The board on which a dispatcher puts completions.
#[derive(Default)]
struct Board {
    ended: Mutex<Vec<Completion>>,
    changed: Condvar,
}

impl Board {
    /// Takes the first completion that is wanted. Waits until there is one.
    fn take(&self, wanted: impl Fn(&Completion) -> bool) -> Result<Completion> {
        let poisoned = || anyhow::anyhow!("the dispatcher panicked");
        let mut ended = self.ended.lock().map_err(|_| poisoned())?;
        loop {
            if let Some(at) = ended.iter().position(&wanted) {
                return Ok(ended.swap_remove(at));
            }
            ended = self.changed.wait(ended).map_err(|_| poisoned())?;
        }
    }

    fn put(&self, completion: Completion) {
        if let Ok(mut ended) = self.ended.lock() {
            ended.push(completion);
            self.changed.notify_all();
        }
    }
}

struct Waiting {
    node: Arc<Node>,
    channel: Channel,
    cq: CqId,
    board: Option<Arc<Board>>,
    what: WaitFor,
    posted: Vec<OperationId>,
}

impl Waiting {
    fn post(&mut self, memory: Vec<u8>) -> Result<()> {
        // A dispatcher sees completions of its queue only.
        let in_cq = self.what == WaitFor::Queue || self.board.is_some();
        let options = CompletionOptions { cq: in_cq.then_some(self.cq), ..CompletionOptions::default() };
        let from = RecvFrom::Channel(self.channel);
        self.posted.push(self.node.post(from, 0, u64::MAX, OperationMemory::Owned(memory), options)?);
        Ok(())
    }

    /// Waits for the next completion, and posts its memory again.
    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        let completion = match (&self.board, self.what) {
            (None, WaitFor::One) => self.node.wait_for(self.posted[0], None)?,
            (None, WaitFor::Any) => self.node.wait_any(&self.posted, None)?.1,
            (None, WaitFor::Queue) => self.node.wait_cq(self.cq, None)?,
            (Some(board), WaitFor::One) => board.take(|end| end.operation == self.posted[0])?,
            (Some(board), WaitFor::Any) => board.take(|end| self.posted.contains(&end.operation))?,
            (Some(board), WaitFor::Queue) => board.take(|_| true)?,
        };
        if completion.length != SIZE as u64 {
            bail!("an answer of {} bytes", completion.length);
        }
        self.posted.retain(|&posted| posted != completion.operation);
        self.post(completion.memory.context("a completion without memory")?)
    }
}

/// Measures half a round trip with a wait: `for-one`, `for-any`, `for-cq`, or `dispatched-one`, `dispatched-any`, `dispatched-cq`.
pub fn call(how: &str, wait: &str, at: [&str; 2], ms: usize) -> Result<()> {
    let (way, what) = wait.split_once('-').with_context(|| format!("no such measurement of nodes: {wait}"))?;
    let what = match what {
        "one" => WaitFor::One,
        "any" => WaitFor::Any,
        "cq" => WaitFor::Queue,
        _ => bail!("no such object of a wait: {what}"),
    };
    let (node, channel) = join(how, at[0], at[1])?;
    let cq = node.add_cq()?;
    let node = Arc::new(node);
    let board = match way {
        "for" => None,
        "dispatched" => Some(dispatch(node.clone(), cq)),
        _ => bail!("no such kind of wait: {way}"),
    };
    let mut waiting = Waiting { node, channel, cq, board, what, posted: Vec::new() };
    for _ in 0..if what == WaitFor::One { 1 } else { POSTED_RECEIVES } {
        waiting.post(vec![0; SIZE])?;
    }
    let data = [7u8; SIZE];
    let result = measure(ROUND_TRIPS, ms, 2.0, |count| {
        (0..count).try_for_each(|_| {
            waiting.node.send(channel, ANSWER, &data, None)?;
            waiting.next()
        })
    })?;
    waiting.node.send(channel, END, &[], None)?;
    println!("{result}");
    Ok(())
}

/// Starts the dispatcher, which ends with the process.
fn dispatch(node: Arc<Node>, cq: CqId) -> Arc<Board> {
    let board = Arc::new(Board::default());
    let mine = board.clone();
    std::thread::spawn(move || {
        while let Ok(completion) = node.wait_cq(cq, None) {
            mine.put(completion);
        }
    });
    board
}
