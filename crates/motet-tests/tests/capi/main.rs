//! motet.h, motet_group.h, motet_file.h and motet_rsr.h, used from C and C++.

mod circuits;
mod examples;
mod files;
mod messages;
mod requests;
