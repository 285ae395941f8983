//! libmotet.so: `include/motet.h` over the engine. Translation only; the header documents every function.
//!
//! What the C side promises, once for all functions below: pointers are valid for the length given beside them, for the
//! call; `motet_wait` memory is untouched between begin and end. What this side promises: no panic gets out, and errno
//! is left as it was.

mod abi;
mod memory;
mod messages;
mod split_calls;
mod streams;
mod waits;

use motet_engine::Engine;

/// The running engine, or none.
#[inline(always)]
pub(crate) fn engine() -> Option<&'static Engine> {
    Engine::running()
}

/// Runs `f`; a panic becomes `failed`.
#[inline(always)]
pub(crate) fn guard<T>(failed: T, f: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(failed)
}

/// -EPROTO, what an internal failure looks like.
pub(crate) const EPROTO: isize = -71;
