//! Late threads: they looked a stream up, were delayed, and continue after the stream has ended, when another stream uses its record and its
//! slot. They learn that their stream has ended, and the other stream is not affected (invariant 7).

use motet_driver_shm::Shm;
use motet_engine::driver::Driver;
use motet_engine::stream::UpgradeParams;
use motet_engine::stream::engine::UpgradedStream;
use motet_engine::{Engine, Handle, Options};
use motet_proto::{
    EBADF,
    stream::{gate, rx, tx},
};
use motet_wire::stream::record::State;
use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

static DRIVERS: &[&dyn Driver] = &[&Shm];

fn engine() -> &'static Engine {
    let options = || Options {
        drivers: DRIVERS,
        allowed: Vec::new(),
        ring: 4096,
        bulk: 0,
        streams: 64,
        memory: usize::MAX,
        huge: false,
        spin: 30_000,
        patience: 0,
        hot: 64,
        single_copy: usize::MAX,
        single_copy_far: usize::MAX,
        half_copy: usize::MAX,
        log: None,
        profile: None,
    };
    Engine::start(options).expect("an engine")
}

/// A connection of this process with itself, with its wire up at both ends.
struct Pair {
    ends: [Handle; 2],
    _streams: [TcpStream; 2],
}

impl Pair {
    fn new(engine: &Engine) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let take = |fd: &TcpStream, connected| engine.upgrade(fd.as_raw_fd(), UpgradeParams { connected, lazy: false });
        let ends = [take(&near, true), take(&far, false)];
        let pair = Self { ends: ends.map(Result::unwrap), _streams: [near, far] };
        while pair.ends.iter().any(|&end| engine.attached(end).is_none()) {
            pair.talk(engine);
        }
        pair
    }

    fn talk(&self, engine: &Engine) {
        for (from, to) in [(0, 1), (1, 0)] {
            let (sent, mut received) = ([7; 100], [0; 100]);
            assert_eq!(engine.send(self.ends[from], &[IoSlice::new(&sent)], 0), Ok(100));
            assert_eq!(engine.recv(self.ends[to], &mut [IoSliceMut::new(&mut received)], 0x100), Ok(100));
            assert_eq!(sent, received);
        }
    }

    fn close(&self, engine: &Engine) {
        for end in self.ends {
            engine.close(end).unwrap();
        }
    }
}

#[test]
fn late_operation_touches_neither_record_nor_slot() {
    let engine = engine();
    let old = Pair::new(engine);
    // What a thread holds between the lookup of a stream and the lock.
    let late = old.ends.map(|handle| engine.attached(handle).unwrap());
    old.close(engine);
    // A record is reused once all have been used, the oldest first.
    let mut pairs = Vec::new();
    let reused = loop {
        let pair = Pair::new(engine);
        if pair.ends.iter().any(|end| late.iter().any(|s| s.handle >> 32 == end >> 32)) {
            break pair;
        }
        pairs.push(pair);
        if pairs.len() > 20 {
            pairs.remove(0).close(engine);
        }
    };
    let before = reused.ends.map(|end| format!("{:?}", engine.look_up(end).unwrap().0));
    for late_thread in &late {
        let (UpgradedStream { handle, record, slot, .. }, mut base) = (late_thread, late_thread.kernel_tcp());
        let ask = tx::Request {
            kernel_only: false,
            nonblocking: true,
            large: usize::MAX,
            large_far: usize::MAX,
            half: usize::MAX,
        };
        let step = tx::begin(record, Some(slot), &mut base, &[IoSlice::new(&[1; 64])], ask);
        assert_eq!(step, tx::Step::Failed(EBADF));
        tx::end(record, &mut base, 64);
        tx::finish(record, slot, &mut base);
        assert!(!tx::take_back(record, slot, &mut base));
        let ask = rx::Request { blocking: false, peek: false, kernel_only: false, spin: 0, large: usize::MAX };
        let step = rx::begin(record, None, &mut base, &mut [IoSliceMut::new(&mut [0; 64])], ask, || true, |_, _| false);
        assert_eq!(step, rx::Step::Failed(EBADF));
        rx::end(record, &mut base, 64);
        gate::raise(record, slot, &mut base, || true); // its answer does not matter: it only reads
        gate::enter_kernel(record, slot, &mut base);
        gate::enter_kernel_over_bytes(record, &mut base);
        gate::leave_kernel(record, &mut base);
        gate::close_gate_over_bytes(record, slot, &mut base);
        assert_eq!(engine.close(*handle), Err(EBADF));
    }
    let after = reused.ends.map(|end| format!("{:?}", engine.look_up(end).unwrap().0));
    assert_eq!(before, after);
    for _ in 0..100 {
        reused.talk(engine);
    }
    for end in reused.ends {
        assert_eq!(engine.attached(end).unwrap().record.state(), State::Attached);
    }
    // Only its own stream leaves a slot.
    for pair in pairs.iter().chain([&reused]) {
        for &end in &pair.ends {
            let UpgradedStream { record, slot, .. } = engine.attached(end).unwrap();
            assert_eq!(slot.head().left[slot.end()].load(Relaxed), 0, "{record:?}");
        }
    }
}
