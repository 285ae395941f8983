//! Modules: what a node process can load, start, stop and unload while it runs.
//!
//! A module has a [`descriptor`] and a driver. `motet node` runs a [`node::ModuleNode`], which is attached to the gatekeeper of its host and does
//! what that asks for. Programs of modules are children of it; shared objects, Java classes and Python modules are in its process.
//!
//! | module | what |
//! | --- | --- |
//! | [`descriptor`] | the parsed descriptor, from TOML or XML |
//! | [`units`] | the files that a descriptor names |
//! | [`plan`] | the order of loading |
//! | [`registry`] | the modules of a node, and the operations on them |
//! | [`instance`] | what a driver does with a module |
//! | [`driver`] | the table of drivers |
//! | `exec`, `shared`, `java`, `python` | the drivers |
//! | [`restart`] | when a program is started again |
//! | [`log`] | the log of a module |
//! | [`node`] | the node process |
#![deny(unsafe_code)]
// but for shared.rs, python/interpreter.rs and exec/child.rs
// Standard error may be a full disk: see `motet_session::notes`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod descriptor;
pub mod driver;
mod exec;
pub mod instance;
mod java;
pub mod log;
pub mod node;
pub mod plan;
mod python;
pub mod registry;
pub mod restart;
mod shared;
mod text;
pub mod units;
