//! motet.h, used from C and C++.

mod examples;
mod messages;
