//! The processes under Motet, seen from outside: which streams, nodes and links they have, over which path, and why.
//!
//! It is no part of a running program. It never connects to a program and never maps its memory: stats files and stats pages are read with `pread` and
//! parsed as bytes that any process may have written, so that to watch a program does not slow it.
//!
//! | module | what |
//! | --- | --- |
//! | [`process_scan`] | all processes under Motet, with their streams, nodes and links |
//! | [`recent`] | the path that bytes take now, from two scans |
//! | [`rates`], [`rate`] | bytes per second, from two scans |
//! | [`sampler`] | scan after scan, with rates and recent paths |
//! | [`report`] | what one host shows to the commands and to the dashboard |
//! | [`falls`] | which streams are on TCP although no user has chosen that |
//! | `other_end` | why a stream gets no offer, if its other end says so |
//! | [`stream_stats`], [`node_stats`], [`stats_table`] | the files of streams and nodes |
//! | [`procfs`] | /proc |
//! | [`exported`] | the exports that a program of `motet run --files` sees |
//! | [`elf_check`] | whether a program can run under Motet |
//! | [`ranks`], [`mpi_skip`] | the transport of MPI ranks |
//! | [`drivers`] | the drivers of this build |
//! | [`quantity`] | numbers for users |
#![forbid(unsafe_code)]

pub mod drivers;
pub mod elf_check;
pub mod exported;
pub mod falls;
pub mod mpi_skip;
pub mod node_stats;
mod other_end;
pub mod process_scan;
pub mod procfs;
pub mod quantity;
pub mod ranks;
pub mod rate;
pub mod rates;
pub mod recent;
pub mod report;
pub mod sampler;
pub mod stats_table;
pub mod stream_stats;
