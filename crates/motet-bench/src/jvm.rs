//! The measuring programs in Java: compiled, and how one is started. Virtual threads need a newer JDK than that of Debian 12: `scripts/zoo virtual-threads`
//! fetches one, and [`NEWER_JAVA`] names it.

use crate::bench::Bench;
use crate::sandbox::Sandbox;
use anyhow::Result;

const SOURCES: [(&str, &str); 2] = [
    ("PingPong.java", include_str!("../../../tests/bench/PingPong.java")),
    ("Remote.java", include_str!("../../../tests/programs/java/Remote.java")),
];

/// Compiles the programs in a sandbox.
pub fn compiled(bench: &Bench) -> Result<Sandbox<'_>> {
    let sandbox = Sandbox::new(bench)?;
    let mut all = vec!["javac".to_owned(), "-d".to_owned(), sandbox.path("")];
    for (name, text) in SOURCES {
        all.push(sandbox.file(name, text)?);
    }
    sandbox.build(&all)?;
    Ok(sandbox)
}

/// The variable with the path of a `java` that has virtual threads: JDK 22 or later.
pub const NEWER_JAVA: &str = "MOTET_BENCH_JAVA";

/// The command that starts one of them.
pub fn command(sandbox: &Sandbox<'_>, more: &[&str]) -> Vec<String> {
    command_of("java", sandbox, more)
}

/// The command that starts one of them on this virtual machine.
pub fn command_of(java: &str, sandbox: &Sandbox<'_>, more: &[&str]) -> Vec<String> {
    let folder = sandbox.path("");
    let all = [java, "-Xshare:auto", "-Xmx128m", "-Djava.rmi.server.hostname=127.0.0.1", "-cp", &folder];
    [&all, more].concat().into_iter().map(str::to_owned).collect()
}

/// How long a caller runs before it is measured, ms, so that the JIT compiler is done: with a loop over a socket, or with RMI.
pub const WARM_UP_MS: usize = 1000;
pub const RMI_WARM_UP_MS: usize = 4000;
