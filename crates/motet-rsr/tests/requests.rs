//! Requests between nodes of one process: what arrives, in each reception.
#![forbid(unsafe_code)]

mod scene;

use motet_rsr::{Buffer, Error, Handlers, MAX_ONE_PACKET, Options, Reception, Request, Startpoint};
use scene::{LIMIT, attach, attach_for_hosts, until, with};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const THREADS: [Reception; 2] = [Reception::OneThread, Reception::ThreadPerChannel];

/// Answers with what came.
fn echo(request: &mut Request<'_>) {
    let bytes = request.bytes().to_vec();
    let mut answer = Buffer::new();
    answer.put_block(&bytes);
    request.reply(&answer).unwrap();
}

#[test]
fn calls_of_all_lengths_come_back() {
    for reception in THREADS {
        for one_packet in [0, 100, MAX_ONE_PACKET] {
            let server = attach(Options { one_packet, ..with(reception) });
            let client = attach(Options { one_packet, ..with(reception) });
            let handlers = Handlers::new().on(1, echo).threaded("echo", echo);
            let endpoint = server.endpoint(handlers).unwrap();
            let start = endpoint.startpoint().unwrap();
            for length in [0, 1, 47, 48, 99, 100, 4096, 32751, 32752, 32753, 65536, 65537, 200_000, 3_000_000] {
                let block: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
                let mut buffer = Buffer::new();
                buffer.put(7u16).put_block(&block);
                for named in [false, true] {
                    let reply = match named {
                        false => client.call(&start, 1, &buffer, LIMIT),
                        true => client.call(&start, "echo", &buffer, LIMIT),
                    };
                    let reply = reply.unwrap();
                    let mut reader = reply.reader();
                    assert!(reader.get_block().unwrap() == buffer.to_vec(), "{reception:?} {one_packet} {length}");
                    reader.end().unwrap();
                }
            }
            assert_eq!(server.counts().handled, 28);
            until(|| server.held() == 0);
        }
    }
}

#[test]
fn all_types_arrive() {
    let (server, client) = (attach(Options::default()), attach(Options::default()));
    let failed = Arc::new(Mutex::new(None));
    let (report, seen) = (failed.clone(), Arc::new(AtomicBool::new(false)));
    let done = seen.clone();
    let check = move |request: &mut Request<'_>| -> Result<(), motet_rsr::Malformed> {
        let mut reader = request.reader();
        assert_eq!((reader.get::<u8>()?, reader.get::<i8>()?), (200, -100));
        assert_eq!((reader.get::<u16>()?, reader.get::<i16>()?), (60_000, -30_000));
        assert_eq!((reader.get::<u32>()?, reader.get::<i32>()?), (4_000_000_000, -2_000_000_000));
        assert_eq!((reader.get::<u64>()?, reader.get::<i64>()?), (1 << 63, i64::MIN));
        assert_eq!((reader.get::<f32>()?, reader.get::<f64>()?), (1.5, -2.25));
        assert_eq!((reader.get_bool()?, reader.get_long()?), (true, -5));
        assert_eq!(reader.get_array::<i32>()?, [1, -2, 3]);
        let mut four = [0.0f64; 4];
        assert!(reader.clone().get_array_into(&mut four[..3]).is_err());
        reader.get_array_into(&mut four)?;
        assert_eq!((four, reader.get_str()?), ([0.5; 4], "Grüße"));
        assert_eq!((reader.get_block()?, reader.get_startpoint()?.endpoints()), (&b"block"[..], 1));
        assert!(reader.get::<u8>().is_err());
        reader.end()
    };
    let handlers = Handlers::new().on("types", move |request| {
        *report.lock().unwrap() = check(request).err();
        done.store(true, Ordering::SeqCst);
    });
    let endpoint = server.endpoint(handlers).unwrap();
    let start = endpoint.startpoint().unwrap();
    let half = [0.5f64; 4];
    let mut buffer = Buffer::new();
    buffer.put(200u8).put(-100i8).put(60_000u16).put(-30_000i16).put(4_000_000_000u32).put(-2_000_000_000i32);
    buffer.put(1u64 << 63).put(i64::MIN).put(1.5f32).put(-2.25f64).put_bool(true).put_long(-5);
    buffer.put_array(&[1i32, -2, 3]).put_array_in_place(&half).put_str("Grüße").put_block(b"block");
    buffer.put_startpoint(&start);
    client.request(&start, "types", &buffer, LIMIT).unwrap();
    until(|| seen.load(Ordering::SeqCst));
    assert_eq!((*failed.lock().unwrap(), server.counts().panics), (None, 0));
}

#[test]
fn a_process_without_threads_receives_when_it_polls() {
    let client = attach(with(Reception::Caller));
    std::thread::scope(|scope| {
        let (give, take) = std::sync::mpsc::channel();
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        scope.spawn(move || {
            let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
            let server = Arc::new(attach(with(Reception::Caller)));
            // It calls back, while the client waits for the reply.
            let back = Arc::downgrade(&server);
            let handlers = Handlers::new().threaded("back", move |request| {
                let start = request.reader().get_startpoint().unwrap();
                let reply = back.upgrade().unwrap().call(&start, "own", &Buffer::new(), LIMIT).unwrap();
                request.reply(Buffer::new().put(reply.reader().get::<u32>().unwrap() + 1)).unwrap();
            });
            let endpoint = server.endpoint(handlers).unwrap();
            give.send((endpoint.startpoint().unwrap(), threads)).unwrap();
            while !ended.load(Ordering::SeqCst) {
                server.poll(Some(Duration::from_millis(1))).unwrap();
            }
        });
        let (start, _) = take.recv().unwrap();
        let own = client.endpoint(Handlers::new().on("own", |request| {
            request.reply(Buffer::new().put(41u32)).unwrap();
        }));
        let own = own.unwrap();
        let mut buffer = Buffer::new();
        buffer.put_startpoint(&own.startpoint().unwrap());
        let reply = client.call(&start, "back", &buffer, LIMIT);
        end.store(true, Ordering::SeqCst);
        assert_eq!(reply.unwrap().reader().get::<u32>(), Ok(42));
    });
    let threaded = attach(Options::default());
    assert!(matches!(threaded.poll(None), Err(Error::Invalid(_))));
}

#[test]
fn one_startpoint_reaches_many_endpoints() {
    let client = attach(Options::default());
    let servers: Vec<_> = (0..5).map(|_| attach(Options::default())).collect();
    let count = Arc::new(AtomicU64::new(0));
    let endpoints: Vec<_> = servers
        .iter()
        .enumerate()
        .map(|(at, server)| {
            let count = count.clone();
            let run = move |request: &mut Request<'_>| {
                let block = request.reader().get_block().unwrap().len() as u64;
                count.fetch_add(block << (8 * at), Ordering::SeqCst);
            };
            server.endpoint(Handlers::new().on(0, run)).unwrap()
        })
        .collect();
    let mut all: Startpoint = endpoints[0].startpoint().unwrap();
    endpoints[1..].iter().for_each(|one| all.bind(&one.startpoint().unwrap()).unwrap());
    assert_eq!(all.endpoints(), 5);
    client.request(&all, 0, Buffer::new().put_block(&[1; 3]), LIMIT).unwrap();
    until(|| count.load(Ordering::SeqCst) == 0x03_0303_0303);
    assert!(matches!(client.call(&all, 0, &Buffer::new(), LIMIT), Err(Error::Invalid(_))));
    // One of them has gone: the others get it.
    drop((endpoints, servers));
    let gone = |link: &motet::node::LinkId| client.node().link_info(*link).map_or(true, |info| info.gone.is_some());
    until(|| client.node().links().unwrap().iter().all(gone));
    let here = attach(Options::default());
    let seen = Arc::new(AtomicU64::new(0));
    let run = seen.clone();
    let last = here.endpoint(Handlers::new().on(0, move |_| _ = run.fetch_add(1, Ordering::SeqCst))).unwrap();
    let mut mixed = all.split().swap_remove(2);
    mixed.bind(&last.startpoint().unwrap()).unwrap();
    let partly = client.request(&mixed, 0, &Buffer::new(), LIMIT);
    assert!(matches!(partly, Err(Error::Partly(1, _))), "{partly:?}");
    until(|| seen.load(Ordering::SeqCst) == 1);
}

#[test]
fn unknown_endpoints_and_handlers_are_counted_and_answered() {
    let (server, client) = (attach(Options { max_request: 100_000, ..Options::default() }), attach(Options::default()));
    let known = server.endpoint(Handlers::new().on(1, |_| ()).on(2, |_| panic!("as it should"))).unwrap();
    let start = known.startpoint().unwrap();
    let long = vec![1; 200_000];
    let call = |start: &Startpoint, handler: u32, bytes: &[u8]| {
        let ended = client.call(start, handler, Buffer::new().put_block(bytes), LIMIT);
        ended.expect_err("no answer").errno()
    };
    assert_eq!(call(&start, 3, b""), 38);
    assert_eq!(call(&start, 3, &long), 38);
    assert_eq!(call(&start, 1, &long), 7);
    assert_eq!((call(&start, 1, b""), call(&start, 2, b"")), (5, 5));
    drop(known);
    assert_eq!((call(&start, 1, b""), call(&start, 1, &long)), (2, 2));
    client.request(&start, 1, &Buffer::new(), LIMIT).unwrap();
    until(|| server.counts().no_endpoint == 3);
    let counts = server.counts();
    assert_eq!((counts.no_handler, counts.too_long, counts.panics, counts.malformed), (2, 1, 1, 0));
    assert_eq!(counts.handled, 2);
}

#[test]
fn deadlines_end_calls_and_late_replies_are_dropped() {
    for length in [3, 100_000] {
        let (server, client) = (attach(Options::default()), attach(Options::default()));
        let (give, go) = std::sync::mpsc::channel();
        let go = Mutex::new(go);
        let handlers = Handlers::new().threaded("slow", move |request: &mut Request<'_>| {
            go.lock().unwrap().recv().unwrap();
            let answer = vec![7; length];
            request.reply(Buffer::new().put_block(&answer)).unwrap();
        });
        let handlers = handlers.on("fast", echo);
        let endpoint = server.endpoint(handlers).unwrap();
        let start = endpoint.startpoint().unwrap();
        client.call(&start, "fast", &Buffer::new(), LIMIT).unwrap(); // the link is there: the next request leaves before its deadline
        let slow = client.call(&start, "slow", &Buffer::new(), Some(Duration::from_millis(20)));
        assert_eq!(slow.unwrap_err(), Error::TimedOut);
        give.send(()).unwrap();
        until(|| client.counts().late_replies == 1);
        // The channel is as good as before.
        give.send(()).unwrap();
        assert_eq!(client.call(&start, "slow", &Buffer::new(), LIMIT).unwrap().bytes().len(), length + 8);
        client.call(&start, "fast", &Buffer::new(), LIMIT).unwrap();
    }
}

#[test]
fn a_slow_receiver_holds_a_bounded_part_of_what_is_sent() {
    const BYTES: usize = 1 << 20;
    const REQUESTS: u64 = 64;
    let options = Options { memory: 8 * BYTES, workers: 1, queue: 2, ..Options::default() };
    let (server, client) = (attach(options), attach(Options::default()));
    let (give, go) = std::sync::mpsc::channel();
    let go = Mutex::new(go);
    let run = move |_: &mut Request<'_>| go.lock().unwrap().recv().unwrap();
    let endpoint = server.endpoint(Handlers::new().threaded(1, run)).unwrap();
    let start = endpoint.startpoint().unwrap();
    let block = vec![5; BYTES];
    let sent = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..REQUESTS {
                client.request(&start, 1, Buffer::new().put_block(&block), LIMIT).unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
            }
        });
        // The handler has not ended once: only some of the data have left their sender, and short ones wait, too.
        until(|| sent.load(Ordering::SeqCst) >= 1);
        std::thread::sleep(Duration::from_millis(200));
        assert!(sent.load(Ordering::SeqCst) < 8, "{sent:?}");
        assert!(server.held() <= 8 * BYTES + 4096, "{}", server.held());
        let full = client.request(&start, 1, Buffer::new().put_block(&block), Some(Duration::from_millis(20)));
        assert_eq!(full, Err(Error::TimedOut));
        (0..=REQUESTS).for_each(|_| give.send(()).unwrap());
    });
    until(|| server.counts().handled == REQUESTS);
}

#[test]
fn short_requests_wait_for_a_slow_receiver_too() {
    let (server, client) = (attach(with(Reception::Caller)), attach(Options::default()));
    let count = Arc::new(AtomicU64::new(0));
    let run = count.clone();
    let in_order = move |request: &mut Request<'_>| {
        let at = request.reader().get::<u64>().unwrap();
        assert_eq!(run.fetch_add(1, Ordering::SeqCst), at);
    };
    let endpoint = server.endpoint(Handlers::new().on(1, in_order)).unwrap();
    let start = endpoint.startpoint().unwrap();
    let padding = vec![0; 1000];
    let mut sent = 0u64;
    let full = std::thread::scope(|scope| {
        let first = scope.spawn(|| client.request(&start, 1, Buffer::new().put(0u64), LIMIT)); // the link needs both sides
        while !first.is_finished() {
            server.poll(Some(Duration::from_millis(1))).unwrap();
        }
        first.join().unwrap().unwrap();
        loop {
            sent += 1;
            let ended =
                client.request(&start, 1, Buffer::new().put(sent).put_array(&padding), Some(Duration::from_millis(50)));
            if let Err(error) = ended {
                break error;
            }
        }
    });
    assert_eq!(full, Error::TimedOut);
    assert!((8..100_000).contains(&sent), "{sent}");
    until(|| {
        server.poll(Some(Duration::ZERO)).unwrap();
        count.load(Ordering::SeqCst) == sent
    });
    assert_eq!(server.counts().panics, 0);
}

#[test]
fn a_driver_can_be_chosen_and_is_reported() {
    let (server, client) = (attach_for_hosts(Options::default()), attach(Options::default()));
    let endpoint = server.endpoint(Handlers::new().on(1, echo)).unwrap();
    let mut start = endpoint.startpoint().unwrap();
    assert_eq!(start.protocols(), [["shm", "tcp"]]);
    client.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
    let way = client.ways(&start, LIMIT).remove(0).unwrap();
    assert_eq!((way.driver, way.chosen, way.by_peer, way.rejected.len()), ("shm", false, false, 0));
    start.choose(Some("tcp")).unwrap();
    let start: Startpoint = start.to_text().parse().unwrap(); // the choice travels
    client.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
    let way = client.ways(&start, LIMIT).remove(0).unwrap();
    assert_eq!((way.driver, way.chosen), ("tcp", true));
    let mut other = start.clone();
    other.choose(Some("ib")).unwrap();
    assert!(matches!(client.request(&other, 1, &Buffer::new(), LIMIT), Err(Error::NoRoute(_))));
    assert_eq!(client.node().links().unwrap().len(), 2);
    assert!(other.choose(Some("a driver")).is_err());
}

#[test]
fn a_startpoint_to_the_own_node_works() {
    for reception in THREADS {
        let own = attach(with(reception));
        let endpoint = own.endpoint(Handlers::new().threaded(1, echo)).unwrap();
        let start = endpoint.startpoint().unwrap();
        let reply = own.call(&start, 1, Buffer::new().put(5u32), LIMIT).unwrap();
        assert_eq!(reply.bytes().len(), 12);
    }
}

#[test]
fn a_node_attaches_once_at_a_time() {
    let first = attach(Options::default());
    let node = first.node().clone();
    let again = motet_rsr::Rsr::attach(&node, Options::default());
    assert!(matches!(again, Err(Error::Invalid(_))));
    drop(first);
    let second = motet_rsr::Rsr::attach(&node, Options::default()).unwrap();
    let endpoint = second.endpoint(Handlers::new().user(7u64).on(1, |request| {
        let value = *request.user::<u64>().unwrap();
        request.reply(Buffer::new().put(value)).unwrap();
    }));
    let start = endpoint.as_ref().unwrap().startpoint().unwrap();
    let client = attach(Options::default());
    let reply = client.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
    assert_eq!(reply.reader().get::<u64>(), Ok(7));
}
