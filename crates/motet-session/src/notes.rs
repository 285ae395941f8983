//! What the command and the daemons say on standard error.
//!
//! Standard error can be a full disk, a closed pipe or a terminal that has gone. Nothing depends on these lines, so an error of their
//! writer is ignored: `eprintln!` would end the thread instead.

use std::fmt::Display;
use std::io::Write;

/// Says one line: `motet: TEXT`.
pub fn note(text: impl Display) {
    raw(&format!("motet: {text}\n"));
}

/// Says text as it is, in one write.
pub fn raw(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
