//! Nodes, and what they send each other.

use motet_driver_tcp::Tcp;
use motet_engine::driver::MessageDriver;
pub use motet_engine::message::transport::Identity;
use motet_engine::message::transport::{Connected, Listener, NodeId, PacketTransport, Secret, Transport};
use motet_sys::clock::nanoseconds;

/// Another one with each call, as nodes are.
pub fn identity(n: u8, listens: bool) -> Identity {
    let mut id = motet_sys::memory::nonce().expect("random bytes");
    id[0] = n;
    let listen = listens.then(|| "127.0.0.1:0".parse().expect("an address"));
    let secret = Secret::random().expect("random bytes");
    Identity { id: NodeId(id), name: format!("node-{n}"), listen, secret }
}

/// Until it is so. What never becomes so is a failure and not a hanging test.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = nanoseconds();
    while !done() {
        assert!(nanoseconds() - begun < 120_000_000_000, "never: {what}");
    }
}

/// One end of a link and what it has sent and received: packet `n` has the size that `sizes` says, and bytes that `n` says.
pub struct End {
    pub frames: Box<dyn PacketTransport>,
    pub sizes: Vec<usize>,
    pub put: u32,
    pub got: u32,
}

fn byte(n: u32, at: usize) -> u8 {
    (n as usize ^ at ^ at >> 8) as u8
}

impl End {
    fn new(met: Connected) -> Self {
        let Transport::Packet(frames) = met.transport else { panic!("frames") };
        Self { frames, sizes: vec![100], put: 0, got: 0 }
    }

    /// Puts what goes, up to `count` in all; takes what is there, and looks whether it is what comes next.
    pub fn round(&mut self, count: u32) {
        let now = nanoseconds();
        for _ in 0..100 {
            let size = self.sizes[self.put as usize % self.sizes.len()];
            if self.put == count || self.frames.room() < size {
                break;
            }
            let bytes: Vec<u8> = (0..size).map(|at| byte(self.put, at)).collect();
            let (a, b) = bytes.split_at(size / 3);
            if !self.frames.put(self.put as u8, &[a, b]) {
                break;
            }
            self.put += 1;
        }
        for _ in 0..100 {
            match self.frames.poll(now).expect("the link stands") {
                Some((kind, bytes)) => {
                    let n = self.got;
                    assert_eq!((kind, bytes.len()), (n as u8, self.sizes[n as usize % self.sizes.len()]), "packet {n}");
                    assert!(bytes.iter().enumerate().all(|(at, b)| *b == byte(n, at)), "the bytes of packet {n}");
                    self.got += 1;
                }
                None => break,
            }
        }
        self.frames.progress(now).expect("the link stands");
    }
}

/// A caller and the node that listens, once they have met.
pub fn meet(caller: &Identity, listener: &mut dyn Listener, address: &str) -> (End, End) {
    let mut call = Tcp.connect(caller, address).expect("a call");
    let (mut near, mut far) = (None, None);
    until("they meet", || {
        if near.is_none() {
            near = call.step(nanoseconds()).map(|met| met.expect("an answer"));
        }
        if let Some(met) = listener.step(nanoseconds()) {
            assert!(met.peer == caller.id && far.is_none());
            far = Some(met);
        }
        near.is_some() && far.is_some()
    });
    let (Some(near), Some(far)) = (near, far) else { unreachable!("both are there") };
    (End::new(near), End::new(far))
}

/// Two that have met.
pub fn pair() -> (Box<dyn Listener>, End, End) {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let address = listener.address();
    let (a, b) = meet(&identity(1, false), &mut *listener, &address);
    (listener, a, b)
}
