//! Messages: the second half of the engine, for those who think in messages and remote memory.

pub mod medium;
pub mod registrations;
