//! The sockets adapter: programs in C, C++, Go, Python and others under it print what they print without it, and take the fast path where they can.

mod adapters;
mod basics;
mod confined;
mod cpython;
mod ends;
mod forks;
mod forms;
mod handed_on;
mod handlers;
mod limits;
mod numbers;
mod operation;
mod scale;
mod sets;
mod threads;
mod waits;
