//! A TCP proxy that forwards connections and cuts each after some bytes, by a reset or by an end of stream.
//!
//! It knows nothing of nodes, so that tests of other packages can include this file by its path.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Additional bytes before the first connection is cut, so that the nodes can connect.
const FIRST: u64 = 4096;

/// The proxy. Dropping it stops accepting; existing connections are still forwarded.
pub struct Proxy {
    /// The address at which it listens.
    pub address: SocketAddr,
    cuts: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Proxy {
    /// Listens at `at` and forwards to `target`. `quota` returns the number of bytes after which a direction of a connection is cut.
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

    /// The number of connections that were cut.
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
    // Unread bytes cause a reset when both threads have closed the socket.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
