//! A proxy that forwards connections and cuts each of them after a random number of bytes, now with a reset, now with an end.

use crate::random::Random;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A connection is cut after so many bytes at most; one of eight sooner.
const MOST: u64 = 2 << 20;
const SOON: u64 = 200;
/// The first one lives long enough for the nodes to meet.
const FIRST: u64 = 4096;

/// Forwards, for as long as the process lives.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    cuts: Arc<AtomicU64>,
}

impl Proxy {
    /// From `at`, an address of this host with any port, to `target`.
    pub fn new(at: &str, target: &str, seed: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        let address = listener.local_addr()?;
        let cuts = Arc::new(AtomicU64::new(0));
        let (target, cut) = (target.to_owned(), cuts.clone());
        std::thread::spawn(move || {
            let mut random = Random(seed);
            let mut least = FIRST;
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(&target)) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let most = if random.once_in(8) { SOON } else { MOST };
                    let quota = least + random.below(most);
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let cut = cut.clone();
                    std::thread::spawn(move || forward(from, to, quota, &cut));
                }
                least = 0;
            }
        });
        Ok(Self { address, cuts })
    }

    /// Connections that it has cut.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut quota: u64, cuts: &AtomicU64) {
    let mut bytes = vec![0; 65536];
    loop {
        let most = bytes.len().min(quota as usize);
        if most == 0 {
            cuts.fetch_add(1, Ordering::Relaxed);
            break;
        }
        match from.read(&mut bytes[..most]) {
            Ok(n) if n > 0 && to.write_all(&bytes[..n]).is_ok() => quota -= n as u64,
            _ => break,
        }
    }
    // What is unread becomes a reset when both threads have let go.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
