//! Programs built with a sanitizer.
//!
//! The runtime of AddressSanitizer, where it is a shared library, ends a program in which another library was loaded before it. Motet's objects are preloaded,
//! so they come first; they call nothing of the runtime and it intercepts nothing of theirs, so the order has no effect. The runtime's own option says so.

use std::ffi::OsString;
use std::process::Command;

/// Options of AddressSanitizer's runtime, separated by colons. The last of equal ones is valid.
const VARIABLE: &str = "ASAN_OPTIONS";
const ANY_ORDER: &str = "verify_asan_link_order=0";

/// Permits the order in which `motet run` has libraries loaded, unless the user's own options decide it.
pub fn configure(command: &mut Command) {
    let mut options = OsString::from(ANY_ORDER);
    if let Some(users) = std::env::var_os(VARIABLE).filter(|users| !users.is_empty()) {
        if users.to_string_lossy().contains("verify_asan_link_order") {
            return;
        }
        options.push(":");
        options.push(users);
    }
    command.env(VARIABLE, options);
}
