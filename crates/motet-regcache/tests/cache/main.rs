//! The registration cache against real mappings: whatever happens to memory, no lease sees pages that are not there any more.
#![forbid(unsafe_code)]

mod alone;
mod malloc;
mod mappings;
mod model;
mod support;
mod threads;
