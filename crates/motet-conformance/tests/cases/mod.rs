//! The cases: each is a function for the near end, which accepted the connections, and one for the far end, which made them. The ends
//! synchronize through the streams only.

mod bytes;
mod faults;
mod waits;

use crate::ends::Ends;
use motet::Stream;
use motet_engine::{Engine, Handle};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;

/// One case.
pub struct Case {
    pub name: &'static str,
    /// The number of connections between the two ends.
    pub streams: usize,
    /// Bytes are exchanged first, so that the wire is up.
    pub warm: bool,
    /// The far end kills its process, so the ends need two.
    pub two_processes_only: bool,
    pub near: fn(Ends),
    pub far: fn(Ends),
}

const fn case(name: &'static str, near: fn(Ends), far: fn(Ends)) -> Case {
    Case { name, streams: 1, warm: true, two_processes_only: false, near, far }
}

/// All cases.
pub static CASES: &[Case] = &[
    Case { warm: false, ..case("bytes_from_the_first_on", bytes::both_ways, bytes::both_ways) },
    case("bytes_both_ways", bytes::both_ways, bytes::both_ways),
    case("bytes_of_large_buffers", bytes::large_out, bytes::large_in),
    case("bytes_both_ways_large", bytes::large_both, bytes::large_both),
    Case { streams: 48, ..case("many_streams", bytes::many, bytes::many) },
    case("half_close", bytes::half_close, bytes::half_close_far),
    case("flags", bytes::flags, bytes::flags_far),
    case("nonblocking_descriptor", bytes::nonblocking, bytes::nonblocking_far),
    case("identity", bytes::identity, bytes::wait_for_close),
    case("readiness", waits::readiness, waits::readiness_far),
    Case { streams: 4, ..case("wait_any", waits::wait_any, waits::wait_any_far) },
    case("wake", waits::wake, bytes::wait_for_close),
    Case { streams: 2, ..case("wake_of_wait_any", waits::wake_of_wait_any, bytes::wait_for_close) },
    Case { streams: 12, ..case("close_under_calls", waits::close_under_calls, bytes::wait_for_close) },
    case("deadline", waits::deadline, waits::deadline_far),
    Case { streams: 2, ..case("deadline_of_wait_any", waits::deadline_of_wait_any, bytes::wait_for_close) },
    case("close_with_unread_data", faults::read_to_the_end, faults::send_and_close),
    case("reset", faults::sees_reset, faults::resets),
    Case { two_processes_only: true, ..case("killed_reader_and_writer", faults::survives, faults::is_killed) },
    Case {
        two_processes_only: true,
        ..case("killed_while_we_send", faults::survives_sending, faults::is_killed_reading)
    },
];

/// A pseudorandom generator (SplitMix64).
pub struct Prng(pub u64);

impl Prng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The byte at a position, in either direction.
pub fn byte(position: u64) -> u8 {
    (position ^ position >> 8 ^ position >> 16).wrapping_mul(31) as u8
}

/// The `length` bytes from a position on.
pub fn bytes(position: u64, length: usize) -> Vec<u8> {
    (position..position + length as u64).map(byte).collect()
}

/// Sends all bytes.
pub fn send(stream: &Stream, data: &[u8]) {
    let mut at = 0;
    while at < data.len() {
        at += stream.send(&data[at..]).expect("a send");
    }
}

/// Receives exactly `length` bytes.
pub fn receive(stream: &Stream, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    let mut at = 0;
    while at < length {
        match stream.recv(&mut data[at..]).expect("a receive") {
            0 => panic!("end of file after {at} of {length} bytes"),
            n => at += n,
        }
    }
    data
}

/// Exchanges 64 bytes, one at a time.
pub fn warm_up(stream: &Stream, first: bool) {
    for n in 0..64u8 {
        if first {
            send(stream, &[n]);
            assert_eq!(receive(stream, 1), [n]);
        } else {
            assert_eq!(receive(stream, 1), [n]);
            send(stream, &[n]);
        }
    }
}

/// The engine, and its handle of a stream.
pub fn handle(stream: &Stream) -> (&'static Engine, Handle) {
    let engine = motet::engine().expect("the engine");
    let cookie = motet_sys::socket::cookie(stream.tcp().as_raw_fd()).expect("a cookie");
    let handle = *engine.owners().get(&cookie).expect("a stream");
    (engine, handle)
}

/// Receives with flags.
pub fn receive_with(stream: &Stream, data: &mut [u8], flags: i32) -> io::Result<usize> {
    let (engine, handle) = handle(stream);
    engine.recv(handle, &mut [IoSliceMut::new(data)], flags).map_err(io::Error::from_raw_os_error)
}

/// Sends with flags.
pub fn send_with(stream: &Stream, data: &[u8], flags: i32) -> io::Result<usize> {
    let (engine, handle) = handle(stream);
    engine.send(handle, &[IoSlice::new(data)], flags).map_err(io::Error::from_raw_os_error)
}
