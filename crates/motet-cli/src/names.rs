//! Names on the command line.

use crate::exit_error::{Failure, Outcome, USAGE};

/// Checks the name of a group or a host. `what`: which of them.
pub fn check(what: &str, name: &str) -> Outcome<()> {
    motet_session::paths::check_name(what, name).map_err(|error| Failure::new(USAGE, error.to_string()))
}

/// Checks the name of an export: NAME, HOST:NAME, or USER@NAME.
pub fn check_export(text: &str) -> Outcome<()> {
    match text.split_once(':') {
        Some((host, export)) => check("host", host).and_then(|()| check("export", export)),
        None => match text.split_once('@') {
            Some((user, export)) => check("user", user).and_then(|()| check("export", export)),
            None => check("export", text),
        },
    }
}
