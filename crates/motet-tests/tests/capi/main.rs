//! motet.h, motet_group.h and motet_file.h, used from C and C++.

mod circuits;
mod examples;
mod files;
mod messages;
