//! The registration cache on real mappings: whatever happens to memory, no lease sees removed pages.
#![forbid(unsafe_code)]

mod alone;
mod malloc;
mod mappings;
mod model;
mod support;
mod threads;
