//! Requests between processes: startpoints that go to a third one, peers that are killed, and how many links there are.
#![forbid(unsafe_code)]

mod scene;

use motet_rsr::{Buffer, Error, Handlers, Options, Reception, Request, Startpoint};
use scene::{LIMIT, Process, attach, attach_for_hosts, hear, say, until, with, word};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A process that serves `id`, which answers with its process's number, and `sleep`, which never answers; and that calls what comes on its input.
#[test]
fn serving_process() {
    let Some(word) = word() else { return };
    let rsr = attach_for_hosts(Options::default());
    let handlers = Handlers::new()
        .on("id", |request| request.reply(Buffer::new().put(std::process::id())).unwrap())
        .threaded("sleep", |_| std::thread::sleep(Duration::from_secs(600)));
    let endpoint = rsr.endpoint(handlers).unwrap();
    let mut own = endpoint.startpoint().unwrap();
    own.choose((word != "any").then_some(&word)).unwrap();
    say(&own.to_text());
    while let Some(line) = hear() {
        let start: Startpoint = line.parse().unwrap();
        let reply = rsr.call(&start, "id", &Buffer::new(), LIMIT).unwrap();
        let driver = rsr.ways(&start, LIMIT).remove(0).unwrap().driver;
        say(&format!("{} {driver}", reply.reader().get::<u32>().unwrap()));
    }
}

#[test]
fn a_startpoint_works_in_a_third_process() {
    for (word, driver) in [("any", "shm"), ("shm", "shm"), ("tcp", "tcp")] {
        let (mut server, mut third) =
            (Process::start("serving_process", word), Process::start("serving_process", "any"));
        let text = server.line();
        let of_third: Startpoint = third.line().parse().unwrap();
        let here = attach(Options::default());
        let start: Startpoint = text.parse().unwrap();
        let id: u32 = here.call(&start, "id", &Buffer::new(), LIMIT).unwrap().reader().get().unwrap();
        third.tell(&text);
        assert_eq!(third.line(), format!("{id} {driver}"));
        // The other way: the third's startpoint goes through this process to the server.
        server.tell(&of_third.to_text());
        assert!(server.line().ends_with(driver), "it takes the link that there is, or the same driver");
    }
}

#[test]
fn a_reply_may_come_from_a_third_process() {
    let (here, relay, last) = (attach(Options::default()), attach(Options::default()), attach(Options::default()));
    let last = Arc::new(last);
    let answers = Arc::downgrade(&last);
    let handlers = Handlers::new().threaded("answer", move |request| {
        let to = request.reader().get_startpoint().unwrap();
        answers.upgrade().unwrap().reply(&to, Buffer::new().put(9u8)).unwrap();
    });
    let end = last.endpoint(handlers).unwrap();
    let (end, sends) = (end.startpoint().unwrap(), Arc::new(relay));
    let forwards = Arc::downgrade(&sends);
    let handlers = Handlers::new().threaded("forward", move |request: &mut Request<'_>| {
        let to = request.take_reply_startpoint().unwrap();
        forwards.upgrade().unwrap().request(&end, "answer", Buffer::new().put_startpoint(&to), LIMIT).unwrap();
    });
    let middle = sends.endpoint(handlers).unwrap();
    let start = middle.startpoint().unwrap();
    // The first call tells where its caller is, and the others rely on that, until the caller is to be found elsewhere, too.
    for at in 0..6 {
        if at == 3 {
            here.node().listen_for_hosts("127.0.0.1:0".parse().unwrap()).unwrap();
            drop(here.endpoint(Handlers::new()).unwrap().startpoint().unwrap());
        }
        let reply = here.call(&start, "forward", &Buffer::new(), LIMIT).unwrap();
        assert_eq!(reply.reader().get::<u8>(), Ok(9));
    }
    drop(middle);
}

#[test]
fn a_killed_peer_ends_calls_and_no_other_peers() {
    for (driver, reception) in
        [("shm", Reception::OneThread), ("tcp", Reception::OneThread), ("shm", Reception::Caller)]
    {
        let (mut server, mut other) =
            (Process::start("serving_process", driver), Process::start("serving_process", driver));
        let starts = [&mut server, &mut other].map(|process| process.line().parse::<Startpoint>().unwrap());
        let here = attach(with(reception));
        let call = |at: usize, what: &str| here.call(&starts[at], what, &Buffer::new(), LIMIT);
        call(0, "id").unwrap();
        call(1, "id").unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| call(0, "sleep"));
            std::thread::sleep(Duration::from_millis(50));
            server.kill();
            assert_eq!(waits.join().unwrap().unwrap_err(), Error::PeerGone);
        });
        let again = here.request(&starts[0], "id", &Buffer::new(), LIMIT);
        assert!(matches!(again, Err(Error::NoRoute(_))), "{again:?}");
        call(1, "id").unwrap();
        assert_eq!(here.node().links().unwrap().len(), 1);
    }
}

/// A process that asks for a long reply, and says so just before.
#[test]
fn asking_process() {
    let Some(word) = word() else { return };
    let rsr = attach(Options::default());
    let start: Startpoint = hear().unwrap().parse().unwrap();
    rsr.call(&start, "short", &Buffer::new(), LIMIT).unwrap();
    say("attached");
    for _ in 0..word.parse().unwrap() {
        let reply = rsr.call(&start, "long", &Buffer::new(), LIMIT).unwrap();
        say(&reply.bytes().len().to_string());
    }
}

/// The handler that is asked waits until its caller is stopped, so its reply finds a peer that takes nothing.
#[test]
fn a_caller_that_is_stopped_stops_no_other() {
    for reception in [Reception::OneThread, Reception::ThreadPerChannel] {
        let asked = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let seen = asked.clone();
        let handlers = Handlers::new()
            .on("short", |request: &mut Request<'_>| request.reply(Buffer::new().put(1u8)).unwrap())
            .on("long", move |request: &mut Request<'_>| {
                let number = seen.0.fetch_add(1, Ordering::SeqCst) + 1;
                until(|| seen.1.load(Ordering::SeqCst) >= number);
                request.reply(Buffer::new().borrow(&[7; 4 << 20])).unwrap();
            });
        // A receiving thread that waited for the caller would do so for an hour.
        let server = attach(Options { reply_limit_ns: 3_600_000_000_000, ..with(reception) });
        let endpoint = server.endpoint(handlers).unwrap();
        let text = endpoint.startpoint().unwrap().to_text();
        let mut caller = Process::start("asking_process", "2");
        caller.tell(&text);
        assert_eq!(caller.line(), "attached");
        until(|| asked.0.load(Ordering::SeqCst) == 1);
        caller.stop();
        asked.1.store(1, Ordering::SeqCst);
        let here = attach(Options::default());
        let start: Startpoint = text.parse().unwrap();
        for _ in 0..10 {
            here.call(&start, "short", &Buffer::new(), LIMIT).unwrap();
        }
        // It gets its reply when it goes on, and the next one.
        caller.go_on();
        asked.1.store(2, Ordering::SeqCst);
        assert_eq!([caller.line(), caller.line()], ["4194304", "4194304"]);
    }
}

#[test]
fn a_sender_that_is_killed_within_long_requests_leaves_nothing() {
    let here = attach(Options { memory: 64 << 20, ..Options::default() });
    let count = Arc::new(AtomicU64::new(0));
    let run = count.clone();
    let handlers = Handlers::new().on(1, move |request: &mut Request<'_>| {
        let block = request.reader().get_block().unwrap();
        assert!(block.iter().all(|byte| *byte == block[0]));
        run.fetch_add(1, Ordering::SeqCst);
    });
    let endpoint = here.endpoint(handlers).unwrap();
    for _ in 0..5 {
        let before = count.load(Ordering::SeqCst);
        let mut sender = Process::start("sending_process", &endpoint.startpoint().unwrap().to_text());
        until(|| count.load(Ordering::SeqCst) > before + 3);
        sender.kill();
        until(|| here.held() == 0 && here.node().links().unwrap().is_empty());
    }
    assert_eq!(here.counts().panics, 0);
}

#[test]
fn senders_that_are_stopped_within_long_requests_stop_no_other() {
    for (driver, reception) in [("shm", Reception::OneThread), ("tcp", Reception::ThreadPerChannel)] {
        let options = Options { memory: 20 << 20, reply_limit_ns: 100_000_000, ..with(reception) };
        let (here, friend) = (attach_for_hosts(options), attach(Options::default()));
        let count = Arc::new(AtomicU64::new(0));
        let run = count.clone();
        let handlers = Handlers::new().on(1, move |request: &mut Request<'_>| {
            run.fetch_add(1, Ordering::SeqCst);
            if request.wants_reply() {
                request.reply(&Buffer::new()).unwrap();
            }
        });
        let endpoint = here.endpoint(handlers).unwrap();
        let mut start = endpoint.startpoint().unwrap();
        start.choose(Some(driver)).unwrap();
        let mut senders = [0; 4].map(|_| Process::start("sending_process", &start.to_text()));
        until(|| count.load(Ordering::SeqCst) > 12);
        senders.iter().for_each(Process::stop);
        friend.call(&start, 1, Buffer::new().put_block(&vec![1; 5 << 20]), LIMIT).unwrap();
        senders.iter_mut().for_each(Process::kill);
        until(|| here.held() == 0);
        assert_eq!(here.counts().panics, 0);
    }
}

/// What the process below answers, bytes.
const PART: usize = 300_000;

/// A process with little memory and little patience, which answers a part of what it is sent.
#[test]
fn impatient_process() {
    let Some(_) = word() else { return };
    let rsr = attach(Options { memory: 8 << 20, reply_limit_ns: 500_000_000, ..Options::default() });
    let answer = |request: &mut Request<'_>| {
        let block = request.reader().get_block().unwrap().to_vec();
        request.reply(Buffer::new().put_block(&block[..PART])).unwrap();
    };
    let endpoint = rsr.endpoint(Handlers::new().on(1, answer)).unwrap();
    say(&endpoint.startpoint().unwrap().to_text());
    while hear().is_some() {}
    drop(endpoint);
    assert_eq!(rsr.counts().malformed, 0);
}

#[test]
fn a_server_that_is_stopped_disconnects_no_caller() {
    let mut server = Process::start("impatient_process", "1");
    let start: Startpoint = server.line().parse().unwrap();
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (here, block) = (attach(Options::default()), vec![1; 1_000_000]);
                while ended.load(Ordering::SeqCst) == 0 {
                    let reply = here.call(&start, 1, Buffer::new().put_block(&block), LIMIT).unwrap();
                    assert_eq!(reply.reader().get_block().unwrap().len(), PART);
                }
            });
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            server.stop();
            std::thread::sleep(Duration::from_secs(1));
            server.go_on();
        }
        std::thread::sleep(Duration::from_millis(100));
        ended.store(1, Ordering::SeqCst);
    });
}

/// A process that sends long requests from three threads, without end.
#[test]
fn sending_process() {
    let Some(word) = word() else { return };
    let start: Startpoint = word.parse().unwrap();
    let rsr = attach(Options::default());
    std::thread::scope(|scope| {
        for at in 1..=3u8 {
            let (rsr, start) = (&rsr, &start);
            scope.spawn(move || {
                let block = vec![at; 5 << 20];
                loop {
                    rsr.request(start, 1, Buffer::new().put_block(&block), None).unwrap();
                }
            });
        }
    });
}

/// One of a ring of processes without threads.
#[test]
fn ring_process() {
    let Some(_) = word() else { return };
    let rsr = attach(with(Reception::Caller));
    let from: Arc<Mutex<Vec<u32>>> = Arc::default();
    let note = from.clone();
    let run = move |request: &mut Request<'_>| note.lock().unwrap().push(request.reader().get().unwrap());
    let endpoint = rsr.endpoint(Handlers::new().on(1, run)).unwrap();
    say(&endpoint.startpoint().unwrap().to_text());
    let rank: u32 = hear().unwrap().parse().unwrap();
    let all: Vec<Startpoint> = hear().unwrap().split(' ').map(|text| text.parse().unwrap()).collect();
    for round in 0..20 {
        for step in [1, all.len() - 1] {
            let to = &all[(rank as usize + step) % all.len()];
            // Many startpoints to one node share its link.
            let copy = Startpoint::from_bytes(&to.to_bytes()).unwrap();
            rsr.request(&copy, 1, Buffer::new().put(rank), LIMIT).unwrap();
        }
        let began = Instant::now();
        while from.lock().unwrap().len() < 2 * (round + 1) && began.elapsed() < LIMIT.unwrap() {
            rsr.poll(Some(Duration::from_millis(20))).unwrap();
        }
    }
    let (links, tasks) = (rsr.node().links().unwrap(), std::fs::read_dir("/proc/self/task").unwrap().count());
    let channels: u32 = links.iter().map(|link| rsr.node().link_info(*link).unwrap().counts[0]).sum();
    say(&format!("{} {} {channels} {tasks}", from.lock().unwrap().len(), links.len()));
    while hear().is_some() {
        rsr.poll(Some(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn sixty_four_processes_have_links_to_their_neighbours_only() {
    const SIZE: usize = 64;
    let mut processes: Vec<_> = (0..SIZE).map(|_| Process::start("ring_process", "ring")).collect();
    let texts: Vec<String> = processes.iter_mut().map(Process::line).collect();
    let all = texts.join(" ");
    for (rank, process) in processes.iter_mut().enumerate() {
        process.tell(&rank.to_string());
        process.tell(&all);
    }
    for process in &mut processes {
        let line = process.line();
        let said: Vec<usize> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [received, links, channels, tasks] = said[..] else { panic!("{line}") };
        assert_eq!(received, 40);
        assert!((2..=4).contains(&links), "{links} links");
        assert!(channels <= 2 * links, "{channels} channels on {links} links");
        assert_eq!(tasks, 2, "the test's thread and the harness's");
    }
}
