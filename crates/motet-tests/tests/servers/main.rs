//! Servers and tools of other projects under Motet.

mod memcached;
mod middleware;
mod nginx;
mod others;
mod postgresql;
mod redis;
mod services;
mod services_web;
mod shares;
mod tools;
