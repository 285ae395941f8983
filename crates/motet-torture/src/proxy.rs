//! A proxy that forwards connections and cuts each of them after some bytes, now with a reset, now with an end.
//!
//! It knows nothing of nodes, so that tests of other packages can take it in by this file's path.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The first connection lives so many bytes longer: long enough for the nodes to meet.
const FIRST: u64 = 4096;

/// Takes connections until it is dropped; those that it has are forwarded to their ends.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    cuts: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Proxy {
    /// From `at`, an address of this host with any port, to `target`. `quota` says, for each direction of each connection, how many bytes
    /// go before it is cut.
    pub fn new(at: &str, target: &str, mut quota: impl FnMut() -> u64 + Send + 'static) -> std::io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        let address = listener.local_addr()?;
        let (cuts, over) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let (target, cut, end) = (target.to_owned(), cuts.clone(), over.clone());
        std::thread::spawn(move || {
            let mut least = FIRST;
            for near in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(&target)) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let quota = least + quota();
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let cut = cut.clone();
                    std::thread::spawn(move || forward(from, to, quota, &cut));
                }
                least = 0;
            }
        });
        Ok(Self { address, cuts, over })
    }

    /// Connections that it has cut.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
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
