//! Names under which the kernel knows one file and the server has another one by now: another client, or a program of the server's host, has replaced it.
//!
//! The answer ESTALE makes the kernel look a name up again and go on with the new file, once in each call. A file that is replaced again meanwhile must not let the
//! call fail: then the kernel goes on with the file that it knows, and gets the attributes and the content of the one that has the name.

use crate::nodes::Name;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long after a name was to be looked up again a call may come that has done so.
const LIMIT: Duration = Duration::from_secs(5);
/// Names that are remembered. Of others the kernel is asked to look them up once more than it has to.
const MAX_NAMES: usize = 4096;

/// The names that the kernel was asked to look up again.
#[derive(Debug, Default)]
pub struct Replaced(Mutex<HashMap<Name, Instant>>);

impl Replaced {
    /// Whether the kernel is to look a name up again: it was not asked to a short time ago.
    pub fn is_to_be_looked_up(&self, name: Name) -> bool {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.get(&name).is_some_and(|since| since.elapsed() < LIMIT) {
            return false;
        }
        if asked.len() >= MAX_NAMES {
            asked.retain(|_, since| since.elapsed() < LIMIT);
        }
        if asked.len() >= MAX_NAMES {
            asked.clear();
        }
        asked.insert(name, Instant::now());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn a_name_is_looked_up_again_once_and_the_memory_is_bounded() {
        let replaced = Replaced::default();
        let name = |number: usize| (1, OsString::from(number.to_string()));
        assert!(replaced.is_to_be_looked_up(name(0)) && !replaced.is_to_be_looked_up(name(0)));
        for number in 1..2 * MAX_NAMES {
            assert!(replaced.is_to_be_looked_up(name(number)));
        }
        assert!(replaced.0.lock().expect("the names").len() <= MAX_NAMES);
    }
}
