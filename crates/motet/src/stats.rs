//! What `motet run --stats` prints: one line of JSON per process, written when it ends. The fields are described in docs/cli.md.

use motet_engine::Engine;
use std::fmt::Write as _;
use std::io::Write as _;

/// Appends this process's line to the file named by MOTET_STATS, if any. Allocates, so a program that ends inside a signal
/// handler should not ask for it.
pub fn write(engine: &Engine) {
    let Some(path) = motet_config::Config::from_env().0.stats else { return };
    let path = motet_config::Config::for_process(&path, std::process::id());
    let line = line(engine);
    // One write, so lines of several processes do not mix. There is nobody to tell of a failure.
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}

fn line(engine: &Engine) -> String {
    let ((totals, plain), links) = (engine.totals(), engine.links());
    let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let command: String = command.trim_end().chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).collect();
    let plain: Vec<String> = plain.iter().map(|(code, n)| format!("\"{code}\":{n}")).collect();
    let mut line = String::new();
    let _ = writeln!(
        line,
        "{{\"pid\":{},\"command\":\"{command}\",\"streams\":{},\"upgraded\":{},\"sent_fast\":{},\"sent_tcp\":{},\
         \"received_fast\":{},\"received_tcp\":{},\"spilled\":{},\"downgraded\":{},\"single_copy\":{},\"links\":{},\"links_closed\":{},\"plain\":{{{}}}}}",
        std::process::id(),
        totals.streams.0,
        totals.streams.1,
        totals.fast.0,
        totals.tcp.0,
        totals.fast.1,
        totals.tcp.1,
        totals.events[0],
        totals.events[1],
        totals.events[2],
        links[0],
        links[1],
        plain.join(","),
    );
    line
}
