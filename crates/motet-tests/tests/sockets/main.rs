//! The sockets adapter: programs in C, C++, Go, Python and others print under it what they print without it, and use the fast path where they can.

mod adapters;
mod basics;
mod call_forms;
mod confined;
mod connection_end;
mod cpython;
mod descriptor_numbers;
mod epoll_sets;
mod forks;
mod go_programs;
mod handed_over;
mod limits;
mod operation;
mod scale;
mod signal_handlers;
mod threads;
mod under_run;
mod waits;
