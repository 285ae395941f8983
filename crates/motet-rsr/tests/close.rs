//! Endpoints that are closed while threads have used them, and while handlers run.
#![forbid(unsafe_code)]

mod scene;

use motet_rsr::{Buffer, Error, Handlers, Options, Reception, Rsr, Startpoint};
use scene::{LIMIT, attach, until, with};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const ALL: [Reception; 3] = [Reception::Caller, Reception::OneThread, Reception::ThreadPerChannel];
/// More than enough for a thread to use its endpoints without an atomic exchange.
const MANY: u64 = 3000;

/// Polls for a server without threads of its own, until this is dropped.
struct Polls(Arc<AtomicBool>);

impl Polls {
    fn start<'a>(scope: &'a std::thread::Scope<'a, '_>, server: &'a Rsr, reception: Reception) -> Self {
        let ended = Arc::new(AtomicBool::new(reception != Reception::Caller));
        let end = ended.clone();
        scope.spawn(move || {
            while !end.load(Ordering::SeqCst) {
                server.poll(Some(Duration::from_millis(1))).unwrap();
            }
        });
        Self(ended)
    }
}

impl Drop for Polls {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_closed_endpoint_leaves_nothing_and_answers_no_more() {
    for reception in ALL {
        let (server, client) = (attach(with(reception)), attach(Options::default()));
        let count = Arc::new(AtomicU64::new(0));
        let counts = |count: &Arc<AtomicU64>| {
            let count = count.clone();
            Handlers::new().on(1, move |_| _ = count.fetch_add(1, Ordering::SeqCst)).on(2, |request| {
                request.reply(&Buffer::new()).unwrap();
            })
        };
        std::thread::scope(|scope| {
            let polls = Polls::start(scope, &server, reception);
            let first = server.endpoint(counts(&count)).unwrap();
            let other = server.endpoint(counts(&count)).unwrap();
            let starts = [&first, &other].map(|endpoint| endpoint.startpoint().unwrap());
            for at in 0..MANY {
                client.request(&starts[at as usize % 2], 1, &Buffer::new(), LIMIT).unwrap();
            }
            until(|| count.load(Ordering::SeqCst) == MANY);
            assert_eq!(Arc::strong_count(&count), 3);
            first.close();
            drop(first);
            assert_eq!(Arc::strong_count(&count), 2, "{reception:?}: the handlers are gone with their endpoint");
            let gone = client.call(&starts[0], 2, &Buffer::new(), LIMIT).unwrap_err();
            assert!(matches!(gone, Error::NotDone(_)), "{gone:?}");
            client.call(&starts[1], 2, &Buffer::new(), LIMIT).unwrap();
            assert_eq!((server.counts().handled, server.counts().no_endpoint), (MANY + 1, 1));
            drop(polls);
        });
    }
}

#[test]
fn a_close_waits_for_handlers_of_its_endpoint_alone() {
    for (reception, threaded) in ALL.into_iter().flat_map(|reception| [(reception, false), (reception, true)]) {
        let (server, client) = (attach(with(reception)), attach(Options::default()));
        let (runs, may_end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (running, end) = (runs.clone(), may_end.clone());
        let slow = move |_: &mut motet_rsr::Request<'_>| {
            running.store(true, Ordering::SeqCst);
            until(|| end.load(Ordering::SeqCst));
            running.store(false, Ordering::SeqCst);
        };
        let handlers = Handlers::new().on(2, |_| {});
        let handlers = if threaded { handlers.threaded(1, slow) } else { handlers.on(1, slow) };
        std::thread::scope(|scope| {
            let polls = Polls::start(scope, &server, reception);
            let endpoint = server.endpoint(handlers).unwrap();
            let idle = server.endpoint(Handlers::new().on(2, |_| {})).unwrap();
            let start = endpoint.startpoint().unwrap();
            (0..MANY).for_each(|_| client.request(&start, 2, &Buffer::new(), LIMIT).unwrap());
            until(|| server.counts().handled == MANY);
            client.request(&start, 1, &Buffer::new(), LIMIT).unwrap();
            until(|| runs.load(Ordering::SeqCst));
            idle.close();
            let closes = scope.spawn(move || drop(endpoint));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!closes.is_finished(), "{reception:?}");
            may_end.store(true, Ordering::SeqCst);
            closes.join().unwrap();
            assert!(!runs.load(Ordering::SeqCst));
            drop(polls);
        });
    }
}

#[test]
fn a_handler_may_close_its_own_endpoint() {
    for reception in ALL {
        let (server, client) = (attach(with(reception)), attach(Options::default()));
        let own: Arc<std::sync::Mutex<Option<motet_rsr::Endpoint>>> = Arc::default();
        let close = own.clone();
        std::thread::scope(|scope| {
            let polls = Polls::start(scope, &server, reception);
            let handlers = Handlers::new().on(1, move |request| {
                let endpoint = close.lock().unwrap().take().unwrap();
                assert!(endpoint.is_running_here());
                drop(endpoint);
                request.reply(&Buffer::new()).unwrap();
            });
            let endpoint = server.endpoint(handlers).unwrap();
            assert!(!endpoint.is_running_here());
            let start: Startpoint = endpoint.startpoint().unwrap();
            *own.lock().unwrap() = Some(endpoint);
            client.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
            assert!(matches!(client.call(&start, 1, &Buffer::new(), LIMIT), Err(Error::NotDone(_))));
            until(|| Arc::strong_count(&own) == 1);
            drop(polls);
        });
    }
}
