//! libmotet.so: `include/motet.h`, `include/motet_group.h`, `include/motet_file.h`, `include/motet_rsr.h` and `include/motet_adapter.h` over the engine. Translation only; the headers document every function.
//!
//! What callers promise for every function: pointers are valid for the length that is passed with them, during the call; `motet_wait` memory
//! is untouched between begin and end. What the library promises: no panic leaves it, and errno is unchanged.

mod abi;
mod files;
mod groups;
mod memory;
mod messages;
mod objects;
mod pin;
mod process_life;
mod rsr;
mod split_calls;
mod streams;
mod user_pointer;
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

/// -EPROTO: the result after an internal failure.
pub(crate) const EPROTO: isize = -71;
