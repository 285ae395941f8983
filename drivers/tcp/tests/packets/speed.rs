//! Bandwidth, round trips and CPU time of a link beside those of TCP alone, with the same sizes and socket options and with both ends
//! polling. The two are measured in turns, and the medians compared. Not run with the tests:
//! `cargo test --release -p motet-driver-tcp --test packets -- --ignored --nocapture speed`

use crate::nodes::pair;
use motet_engine::message::transport::PacketTransport;
use motet_sys::clock::nanoseconds;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

const TURNS: usize = 7;

fn tcp_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
    let (far, _) = listener.accept().expect("accepted");
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_nonblocking(true).expect("nonblocking");
    }
    [near, far]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Sends `n` packets of `size` bytes one way; returns bytes per ns.
fn tcp_one_way([mut near, mut far]: [TcpStream; 2], size: usize, n: usize) -> f64 {
    let receiver = std::thread::spawn(move || {
        let (mut bytes, mut left) = (vec![0; 256 << 10], size * n);
        while left > 0 {
            match far.read(&mut bytes) {
                Ok(0) => panic!("the end"),
                Ok(got) => left -= got,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
    });
    let bytes = vec![1; size];
    let begun = nanoseconds();
    for _ in 0..n {
        let mut left = &bytes[..];
        while !left.is_empty() {
            match near.write(left) {
                Ok(sent) => left = &left[sent..],
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
    }
    receiver.join().expect("the receiver");
    (size * n) as f64 / (nanoseconds() - begun) as f64
}

fn link_one_way(mut near: Box<dyn PacketTransport>, mut far: Box<dyn PacketTransport>, size: usize, n: usize) -> f64 {
    let receiver = std::thread::spawn(move || {
        let mut left = n;
        while left > 0 {
            while let Some((_, bytes)) = far.poll(nanoseconds()).expect("the link is up") {
                assert_eq!(bytes.len(), size);
                left -= 1;
            }
            far.progress(nanoseconds()).expect("the link is up");
        }
        far
    });
    let bytes = vec![1; size];
    let begun = nanoseconds();
    for _ in 0..n {
        while !near.put(1, &[&bytes]) {
            let now = nanoseconds();
            assert!(near.poll(now).expect("the link is up").is_none());
            near.progress(now).expect("the link is up");
        }
    }
    while !receiver.is_finished() {
        near.progress(nanoseconds()).expect("the link is up");
    }
    receiver.join().expect("the receiver");
    (size * n) as f64 / (nanoseconds() - begun) as f64
}

/// The time of a round trip of `size` bytes, ns.
fn tcp_round_trip([mut near, mut far]: [TcpStream; 2], size: usize, n: usize) -> f64 {
    fn receive(stream: &mut TcpStream, bytes: &mut [u8]) {
        let mut got = 0;
        while got < bytes.len() {
            match stream.read(&mut bytes[got..]) {
                Ok(0) => panic!("the end"),
                Ok(n) => got += n,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
    }
    let echo = std::thread::spawn(move || {
        let mut bytes = vec![0; size];
        for _ in 0..n {
            receive(&mut far, &mut bytes);
            far.write_all(&bytes).expect("sent");
        }
    });
    let mut bytes = vec![0; size];
    let begun = nanoseconds();
    for _ in 0..n {
        near.write_all(&bytes).expect("sent");
        receive(&mut near, &mut bytes);
    }
    let took = nanoseconds() - begun;
    echo.join().expect("the echo");
    took as f64 / n as f64
}

fn link_round_trip(
    mut near: Box<dyn PacketTransport>,
    mut far: Box<dyn PacketTransport>,
    size: usize,
    n: usize,
) -> f64 {
    fn receive(link: &mut dyn PacketTransport, size: usize) {
        loop {
            let now = nanoseconds();
            link.progress(now).expect("the link is up");
            if let Some((_, bytes)) = link.poll(now).expect("the link is up") {
                assert_eq!(bytes.len(), size);
                return;
            }
        }
    }
    let bytes = vec![0; size];
    let echo = std::thread::spawn(move || {
        let bytes = vec![0; size];
        for _ in 0..n {
            receive(&mut *far, size);
            assert!(far.put(1, &[&bytes]));
        }
        far
    });
    let begun = nanoseconds();
    for _ in 0..n {
        assert!(near.put(1, &[&bytes]));
        receive(&mut *near, size);
    }
    let took = nanoseconds() - begun;
    drop(echo.join().expect("the echo"));
    took as f64 / n as f64
}

#[test]
#[ignore = "measures"]
fn link_speed_beside_tcp_is_measured() {
    for size in [64, 1024, 16384, 65536] {
        let n = (if size < 4096 { 64 << 20 } else { 1 << 30 }) / size;
        let (mut raw, mut link) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            raw.push(tcp_one_way(tcp_pair(), size, n));
            let (_listener, a, b) = pair();
            link.push(link_one_way(a.link, b.link, size, n));
        }
        let (raw, link) = (median(raw), median(link));
        println!("one way {size:6} B: TCP {raw:.3} GB/s, link {link:.3} GB/s, ratio {:.3}", link / raw);
    }
    for size in [8, 1024, 16384] {
        let n = 20_000;
        let (mut raw, mut link) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            raw.push(tcp_round_trip(tcp_pair(), size, n));
            let (_listener, a, b) = pair();
            link.push(link_round_trip(a.link, b.link, size, n));
        }
        let (raw, link) = (median(raw), median(link));
        println!("round trip {size:6} B: TCP {raw:.0} ns, link {link:.0} ns, ratio {:.3}", link / raw);
    }
}

/// CPU time of this thread, ns.
fn cpu_time() -> u64 {
    use motet_sys::rustix::time::{ClockId, clock_gettime};
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The CPU time of a packet, ns: one thread is both ends, `burst` packets at a time. Also valid on a busy machine.
fn tcp_cost([mut near, mut far]: [TcpStream; 2], size: usize, burst: usize, n: usize) -> f64 {
    let (bytes, mut into) = (vec![1; size], vec![0; 256 << 10]);
    let begun = cpu_time();
    for _ in 0..n / burst {
        let (mut sent, mut got) = (0, 0);
        while got < size * burst {
            while sent < size * burst {
                match near.write(&bytes[sent % size..]) {
                    Ok(n) => sent += n,
                    Err(_) => break,
                }
            }
            if let Ok(n) = far.read(&mut into) {
                got += n;
            }
        }
    }
    (cpu_time() - begun) as f64 / (n / burst * burst) as f64
}

fn link_cost(
    mut near: Box<dyn PacketTransport>,
    mut far: Box<dyn PacketTransport>,
    size: usize,
    burst: usize,
    n: usize,
) -> f64 {
    let bytes = vec![1; size];
    let begun = cpu_time();
    for _ in 0..n / burst {
        let now = nanoseconds();
        let (mut sent, mut got) = (0, 0);
        while got < burst {
            while sent < burst && near.put(1, &[&bytes]) {
                sent += 1;
            }
            while far.poll(now).expect("the link is up").is_some() {
                got += 1;
            }
            far.progress(now).expect("the link is up");
            assert!(near.poll(now).expect("the link is up").is_none());
            near.progress(now).expect("the link is up");
        }
    }
    (cpu_time() - begun) as f64 / (n / burst * burst) as f64
}

#[test]
#[ignore = "measures"]
fn link_cpu_time_beside_tcp_is_measured() {
    for (size, burst) in [(8, 1), (1024, 1), (64, 64), (1024, 64), (16384, 16), (65536, 4), (65536, 16)] {
        let n = if size < 4096 { 64_000 } else { (1 << 28) / size };
        let (mut raw, mut link) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            raw.push(tcp_cost(tcp_pair(), size, burst, n));
            let (_listener, a, b) = pair();
            link.push(link_cost(a.link, b.link, size, burst, n));
        }
        let (raw, link) = (median(raw), median(link));
        println!("CPU of {size:6} B, {burst:2} at a time: TCP {raw:.0} ns, link {link:.0} ns, ratio {:.3}", link / raw);
    }
}
