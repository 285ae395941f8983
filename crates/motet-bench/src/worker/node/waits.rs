//! Waiting for one operation, for any of several, for a cq: by the thread that wants to know, or by one that dispatches.
//!
//! The dispatcher is what a program has without such waits: a thread that takes every end and puts it on a board, where the thread
//! that wants it looks and sleeps.

use super::{ANSWER, END, join};
use crate::worker::measure;
use anyhow::{Context, Result, bail};
use motet::node::{Channel, Completion, CompletionOptions, CqId, Node, OperationId, OperationMemory, RecvFrom};
use std::sync::{Arc, Condvar, Mutex};

/// Receives that are under way where any of several, or a cq, is waited for.
const SEVERAL: usize = 8;
const ROUND_TRIPS: usize = 500;
const SIZE: usize = 8;

/// What is waited for.
#[derive(Clone, Copy, PartialEq)]
enum For {
    One,
    Any,
    Group,
}

/// Where a dispatcher puts the ends.
#[derive(Default)]
struct Board {
    ended: Mutex<Vec<Completion>>,
    changed: Condvar,
}

impl Board {
    /// Takes the first end that is wanted, and waits for one.
    fn take(&self, wanted: impl Fn(&Completion) -> bool) -> Result<Completion> {
        let poisoned = || anyhow::anyhow!("the dispatcher has died");
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
    what: For,
    posted: Vec<OperationId>,
}

impl Waiting {
    fn post(&mut self, memory: Vec<u8>) -> Result<()> {
        // What a dispatcher is to see must be in its cq.
        let in_group = self.what == For::Group || self.board.is_some();
        let notice = CompletionOptions { cq: in_group.then_some(self.cq), ..CompletionOptions::default() };
        let from = RecvFrom::Channel(self.channel);
        self.posted.push(self.node.post(from, 0, u64::MAX, OperationMemory::Owned(memory), notice)?);
        Ok(())
    }

    /// The next end; its record is used again.
    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        let completion = match (&self.board, self.what) {
            (None, For::One) => self.node.wait_for(self.posted[0], None)?,
            (None, For::Any) => self.node.wait_any(&self.posted, None)?.1,
            (None, For::Group) => self.node.wait_cq(self.cq, None)?,
            (Some(board), For::One) => board.take(|end| end.operation == self.posted[0])?,
            (Some(board), For::Any) => board.take(|end| self.posted.contains(&end.operation))?,
            (Some(board), For::Group) => board.take(|_| true)?,
        };
        if completion.length != SIZE as u64 {
            bail!("an answer of {} bytes", completion.length);
        }
        self.posted.retain(|&posted| posted != completion.operation);
        self.post(completion.memory.context("a receive without its memory")?)
    }
}

/// `for-one`, `for-any` or `for-cq`; `dispatched-` the same: half a round trip.
pub fn call(how: &str, wait: &str, at: [&str; 2], ms: usize) -> Result<()> {
    let (way, what) = wait.split_once('-').with_context(|| format!("no such measurement of nodes: {wait}"))?;
    let what = match what {
        "one" => For::One,
        "any" => For::Any,
        "cq" => For::Group,
        _ => bail!("nothing to wait for: {what}"),
    };
    let (node, channel) = join(how, at[0], at[1])?;
    let cq = node.add_cq()?;
    let node = Arc::new(node);
    let board = match way {
        "for" => None,
        "dispatched" => Some(dispatch(node.clone(), cq)),
        _ => bail!("no such way to wait: {way}"),
    };
    let mut waiting = Waiting { node, channel, cq, board, what, posted: Vec::new() };
    for _ in 0..if what == For::One { 1 } else { SEVERAL } {
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
