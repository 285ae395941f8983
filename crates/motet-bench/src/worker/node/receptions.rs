//! The receiving thread of a server whose handler answers: one that sleeps, the caller that polls, or one that polls.

use super::{open, pair, print_address};
use anyhow::{Result, anyhow, bail};
use motet::node::Node;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Serves by a `sleeping-thread`, the `caller` or a `polling-thread` until the last message.
pub fn serve(how: &str, method: &str) -> Result<()> {
    let node = Arc::new(open(how)?);
    let ended = pair::answer_by_handler(&node)?;
    print_address(&node, how)?;
    let receive: fn(&Node, &AtomicBool) -> Result<()> = match method {
        "caller" => return poll(&node, &ended),
        "polling-thread" => poll,
        "sleeping-thread" => sleep,
        _ => bail!("no such method of receiving: {method}"),
    };
    let receiver = std::thread::spawn(move || receive(&node, &ended));
    receiver.join().map_err(|_| anyhow!("the receiver panicked"))?
}

fn poll(node: &Node, ended: &AtomicBool) -> Result<()> {
    while !ended.load(Ordering::Relaxed) {
        if !node.progress()? {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

fn sleep(node: &Node, ended: &AtomicBool) -> Result<()> {
    Ok(node.progress_until(|| ended.load(Ordering::Relaxed), None)?)
}
