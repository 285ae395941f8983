//! A proxy that forwards connections and cuts each after a random number of bytes, now with a reset, now with an end.

use crate::prng::Prng;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

pub struct Proxy {
    address: String,
    cuts: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub fn new(target: &str, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (cuts, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (target, cut, end) = (target.to_string(), cuts.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            let mut prng = Prng(seed);
            let mut forwarders = Vec::new();
            // The first one lives long enough for the nodes to meet.
            let mut least = 4096;
            for near in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(&target)) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let quota = if prng.one_in(8) { prng.below(200) } else { prng.below(400_000) };
                    let ends = [from, to].map(|s| s.try_clone().expect("a descriptor"));
                    let (quota, cut) = (quota + least, cut.clone());
                    forwarders.push(std::thread::spawn(move || forward(ends, quota, &cut)));
                }
                least = 0;
            }
            drop(listener);
            forwarders.into_iter().for_each(|f| f.join().expect("a forwarder"));
        });
        Self { address, cuts, over, thread: Some(thread) }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

fn forward([mut from, mut to]: [TcpStream; 2], mut quota: u64, cuts: &AtomicU64) {
    let mut bytes = vec![0; 65536];
    loop {
        let most = bytes.len().min(quota as usize);
        if most == 0 {
            cuts.fetch_add(1, Ordering::Relaxed);
            break;
        }
        match from.read(&mut bytes[..most]) {
            Ok(n) if n > 0 => {
                if to.write_all(&bytes[..n]).is_err() {
                    break;
                }
                quota -= n as u64;
            }
            _ => break,
        }
    }
    // What is unread becomes a reset when both threads have let go.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
        // Forwarders end with the links; a test drops those after the proxy, so nobody waits here.
        drop(self.thread.take());
    }
}
