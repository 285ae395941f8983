//! Motet's settings.
//!
//! What it is: the one [table](SETTINGS) of everything that can be set (name, environment variable, kind, default, help),
//! and the typed [`Config`] that the engine reads once, when it starts. The command line, the manual page and
//! `motet config` are made from the same table.
//!
//! What it is not: it never fails and never prints. For a wrong key or value the default holds and a [`Problem`] is kept. The
//! command line turns the first problem into an error; the library ignores it.
//!
//! Order, first found wins: environment variable, file, [`profile`] of this machine, default. The file is the first of `$MOTET_CONFIG`,
//! `$XDG_CONFIG_HOME/motet.toml` (`~/.config/motet.toml`) and `/etc/motet.toml` that exists; files are not merged.
//!
//! ```no_run
//! let (config, problems) = motet_config::Config::from_env();
//! if config.drivers.allows("shm") { /* ... config.ring ... */ }
//! ```

#![forbid(unsafe_code)]

mod config;
mod file;
mod kind;
mod load;
mod problem;
pub mod profile;
mod settings;

pub use config::{Config, Drivers, Mpi};
pub use kind::{Value, ValueKind};
pub use load::{Environment, Loaded, Origin};
pub use problem::{Problem, ValueSource};
pub use settings::{SETTINGS, Setting, VARIABLES, Variable, setting};
