//! Loops that accept connections. An error of accept(2), such as a lack of descriptors, does not end them: only [`Ending`] does.

use std::io::{ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The pause after an error, such as a lack of descriptors or memory.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// Whether a loop is to end. Clones are of the same loop.
#[derive(Debug, Clone, Default)]
pub struct Ending(Arc<AtomicBool>);

impl Ending {
    /// The loop ends at the next return of its accept(2), which shutdown(2) of the listening socket brings.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Calls `serve` for each connection that `accept` returns, until the end has begun.
pub fn accept_until<T>(ending: &Ending, mut accept: impl FnMut() -> Result<T>, mut serve: impl FnMut(T)) {
    loop {
        let accepted = accept();
        if ending.has_begun() {
            return;
        }
        match accepted {
            Ok(connection) => serve(connection),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(_) => thread::sleep(ERROR_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn errors_do_not_end_the_loop() {
        let ending = Ending::default();
        let errors = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::CONNABORTED, Errno::INTR];
        let mut results = errors.into_iter().map(|error| Err(error.into())).chain([Ok(1), Ok(2), Ok(3)]);
        let mut served = Vec::new();
        accept_until(
            &ending,
            || results.next().expect("the loop ends before"),
            |number| {
                served.push(number);
                if number == 2 {
                    ending.begin();
                }
            },
        );
        assert_eq!(served, [1, 2]);
    }
}
