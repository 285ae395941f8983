//! motet.h and motet_group.h, used from C and C++.

mod circuits;
mod examples;
mod messages;
