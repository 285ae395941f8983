//! Pairs of connected nodes, and the packets that they exchange.

use motet_driver_tcp::Tcp;
use motet_engine::driver::MessageDriver;
pub use motet_engine::message::transport::Identity;
use motet_engine::message::transport::{Connected, Listener, NodeId, PacketTransport, Secret, Transport};
use motet_sys::clock::nanoseconds;

/// The identity of a new node; `n` is the first byte of its number.
pub fn identity(n: u8, listens: bool) -> Identity {
    let mut id = motet_sys::memory::nonce().expect("random bytes");
    id[0] = n;
    let listen = listens.then(|| "127.0.0.1:0".parse().expect("an address"));
    let secret = Secret::random().expect("random bytes");
    Identity { id: NodeId(id), name: format!("node-{n}"), listen, secret, other_users: false, folder: None }
}

/// Waits until `done`; fails after two minutes.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = nanoseconds();
    while !done() {
        assert!(nanoseconds() - begun < 120_000_000_000, "never: {what}");
    }
}

/// One end of a link, and what it has sent and received. The size of packet `n` is the entry `n` of `sizes`, from the start again after the
/// last; its bytes depend on `n`.
pub struct End {
    pub link: Box<dyn PacketTransport>,
    pub sizes: Vec<usize>,
    pub put: u32,
    pub got: u32,
}

fn byte(n: u32, at: usize) -> u8 {
    (n as usize ^ at ^ at >> 8) as u8
}

impl End {
    fn new(connected: Connected) -> Self {
        let Transport::Packet(link) = connected.transport else { panic!("a packet transport") };
        Self { link, sizes: vec![100], put: 0, got: 0 }
    }

    /// Puts packets, up to `count` in all, as far as there is room; receives packets, and checks that each is the next one.
    pub fn round(&mut self, count: u32) {
        let now = nanoseconds();
        for _ in 0..100 {
            let size = self.sizes[self.put as usize % self.sizes.len()];
            if self.put == count || self.link.room() < size {
                break;
            }
            let bytes: Vec<u8> = (0..size).map(|at| byte(self.put, at)).collect();
            let (a, b) = bytes.split_at(size / 3);
            if !self.link.put(self.put as u8, &[a, b]) {
                break;
            }
            self.put += 1;
        }
        for _ in 0..100 {
            match self.link.poll(now).expect("the link is up") {
                Some((kind, bytes)) => {
                    let n = self.got;
                    assert_eq!((kind, bytes.len()), (n as u8, self.sizes[n as usize % self.sizes.len()]), "packet {n}");
                    assert!(bytes.iter().enumerate().all(|(at, b)| *b == byte(n, at)), "the bytes of packet {n}");
                    self.got += 1;
                }
                None => break,
            }
        }
        self.link.progress(now).expect("the link is up");
    }
}

/// Connects a node to a listener; returns the ends of the caller and of the listener.
pub fn connect_nodes(caller: &Identity, listener: &mut dyn Listener, address: &str) -> (End, End) {
    let mut connector = Tcp.connect(caller, address).expect("a connector");
    let (mut near, mut far) = (None, None);
    until("they are connected", || {
        if near.is_none() {
            near = connector.step(nanoseconds()).map(|connected| connected.expect("an answer"));
        }
        if let Some(connected) = listener.step(nanoseconds()) {
            assert!(connected.peer == caller.id && far.is_none());
            far = Some(connected);
        }
        near.is_some() && far.is_some()
    });
    let (Some(near), Some(far)) = (near, far) else { unreachable!("both are there") };
    (End::new(near), End::new(far))
}

/// A listener, and a link of its node with another one: the ends of the caller and of the listener.
pub fn pair() -> (Box<dyn Listener>, End, End) {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let address = listener.address();
    let (a, b) = connect_nodes(&identity(1, false), &mut *listener, &address);
    (listener, a, b)
}
