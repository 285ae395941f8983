//! What POSIX says of a file system, at a mounted export.

mod clients;
mod limits;
mod locks;
#[path = "../scene/mod.rs"]
mod scene;
mod users;
