//! Who receives at a server whose handler answers: a thread of its own that sleeps, the caller that polls, one thread that polls.

use super::{open, pair, tell};
use anyhow::{Result, anyhow, bail};
use motet::node::Node;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `sleeping-thread`, `caller` or `polling-thread`, until the last message.
pub fn serve(how: &str, method: &str) -> Result<()> {
    let node = Arc::new(open(how)?);
    let ended = pair::answer_by_handler(&node)?;
    tell(&node, how)?;
    let receive: fn(&Node, &AtomicBool) -> Result<()> = match method {
        "caller" => return poll(&node, &ended),
        "polling-thread" => poll,
        "sleeping-thread" => sleep,
        _ => bail!("nobody receives so: {method}"),
    };
    let receiver = std::thread::spawn(move || receive(&node, &ended));
    receiver.join().map_err(|_| anyhow!("the receiver has died"))?
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
