//! `motet up --foreground`: the command stays in front until the session ends, and ends the session when it gets a signal to end itself.

use motet_session::paths::SessionPaths;
use motet_session::registration::Announcement;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::exit_error::{FAILED, Failure, Outcome};
use crate::session::{self, GatekeeperPlace};

/// The pause between two looks at the session and the gatekeeper.
const PAUSE: Duration = Duration::from_millis(100);
/// Programs that end slowly delay the end of the session.
const DOWN_LIMIT: Duration = Duration::from_secs(30);

/// The command in front of a session.
#[derive(Debug)]
pub struct Front {
    asked: Arc<AtomicBool>,
}

impl Front {
    /// From now on signals to end are noted: [`Front::wait`] ends the session then.
    pub fn note_signals() -> Outcome<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let noted = signal_hook::flag::register(signal, Arc::clone(&asked));
            noted.map_err(|error| Failure::new(FAILED, format!("cannot handle signals: {error}")))?;
        }
        Ok(Self { asked })
    }

    /// Whether a signal has asked for the end.
    pub fn is_asked_to_end(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns when the session has ended. `gatekeeper`: the one that this command has started; it is started again when it was killed.
    pub fn wait(&self, paths: &SessionPaths, mut gatekeeper: Option<Child>) -> Outcome {
        let identity = || Announcement::read(paths).map(|announced| announced.id);
        let session = identity();
        while session.is_some() && identity() == session && !self.is_asked_to_end() {
            let ended = gatekeeper.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
            if ended && identity() == session {
                gatekeeper = session::start_gatekeeper(paths, &[], GatekeeperPlace::Front)?.child;
            }
            std::thread::sleep(PAUSE);
        }
        if self.is_asked_to_end() {
            end(paths, || identity().is_none() || identity() != session)?;
        }
        if let Some(mut gatekeeper) = gatekeeper {
            let _ = gatekeeper.wait();
        }
        Ok(0)
    }
}

/// Ends the session. The gatekeeper may have got the same signal, and other hosts as well: what counts is that the session is gone.
fn end(paths: &SessionPaths, is_over: impl Fn() -> bool) -> Outcome<()> {
    let asked = session::client(paths).map(|client| client.within(DOWN_LIMIT).delete("/v1/session"));
    let until = Instant::now() + DOWN_LIMIT;
    while !is_over() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    match (is_over(), asked) {
        (true, _) => Ok(()),
        (false, Ok(Err(error))) => Err(error.into()),
        (false, Err(failure)) => Err(failure),
        (false, Ok(Ok(()))) => Err(Failure::new(FAILED, "the session does not end")),
    }
}
