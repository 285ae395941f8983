//! motet.h from C and C++.

mod examples;
mod messages;
