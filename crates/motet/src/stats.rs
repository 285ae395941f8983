//! What `motet run --stats` prints: one line of JSON per process, written when it ends. The fields are described in docs/cli.md.
//!
//! A process may end by `_exit` in a signal handler, which may have interrupted the allocator. So the file's name is
//! determined when the engine starts, and writing the line needs only system calls and its own stack.

use motet_engine::Engine;
use motet_sys::rustix::{fs, io};
use motet_sys::{append_file, process_root};
use std::ffi::CStr;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// MOTET_STATS. `%p` stands for the process id, which is inserted at the end, because processes fork.
static NAME: OnceLock<Vec<u8>> = OnceLock::new();

/// Longest line (64 reasons with their counts) and longest file name (PATH_MAX), bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// Remembers where the line goes, if anywhere.
pub fn prepare(config: &motet_config::Config) {
    if let Some(path) = &config.stats {
        let _ = NAME.set(path.as_os_str().as_bytes().to_vec());
    }
}

/// Appends this process's line to the file named by MOTET_STATS, if any. Ignores failures. Does not allocate.
pub fn write(engine: &Engine) {
    let Some(template) = NAME.get() else { return };
    let (mut name, mut text) = (Text::new(), Text::new());
    if file_name(template, &mut name).is_err() || line(engine, &mut text).is_err() {
        return;
    }
    let Ok(path) = CStr::from_bytes_until_nul(&name.bytes) else { return };
    if !process_root::is_unchanged() {
        return;
    }
    // One write, so lines of several processes do not mix.
    let _ = append_file::append_once(path, text.written());
}

fn file_name(template: &[u8], name: &mut Text) -> fmt::Result {
    let mut rest = template;
    while let Some(at) = rest.windows(2).position(|two| two == b"%p") {
        name.push(&rest[..at])?;
        write!(name, "{}", std::process::id())?;
        rest = &rest[at + 2..];
    }
    name.push(rest)
}

fn line(engine: &Engine, text: &mut Text) -> fmt::Result {
    let (totals, links) = (engine.totals(), engine.links());
    write!(text, "{{\"pid\":{},\"command\":\"", std::process::id())?;
    let mut command = [0; 64];
    let length = fs::open(c"/proc/self/comm", fs::OFlags::RDONLY | fs::OFlags::CLOEXEC, fs::Mode::empty())
        .and_then(|file| io::read(file, &mut command))
        .unwrap_or(0);
    let command = str::from_utf8(&command[..length]).unwrap_or_default();
    for c in command.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)) {
        text.write_char(c)?;
    }
    write!(
        text,
        "\",\"streams\":{},\"upgraded\":{},\"sent_fast\":{},\"sent_tcp\":{},\
         \"received_fast\":{},\"received_tcp\":{},\"uncounted_tcp\":{},\"spilled\":{},\"downgraded\":{},\"single_copy\":{},\"links\":{},\"links_closed\":{},\"stayed_on_tcp\":{{",
        totals.streams.0,
        totals.streams.1,
        totals.fast.0,
        totals.tcp.0,
        totals.fast.1,
        totals.tcp.1,
        totals.uncounted,
        totals.events[0],
        totals.events[1],
        totals.events[2],
        links[0],
        links[1],
    )?;
    for (at, (code, n)) in engine.tcp_only_counts().enumerate() {
        write!(text, "{}\"{code}\":{n}", if at == 0 { "" } else { "," })?;
    }
    writeln!(text, "}}}}")
}

/// A text on the stack, followed by a zero. A text that does not fit is an error.
struct Text {
    bytes: [u8; MAX_TEXT_BYTES + 1],
    length: usize,
}

impl Text {
    fn new() -> Self {
        Self { bytes: [0; MAX_TEXT_BYTES + 1], length: 0 }
    }

    fn push(&mut self, more: &[u8]) -> fmt::Result {
        let end = self.length + more.len();
        self.bytes[..MAX_TEXT_BYTES].get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(more);
        self.length = end;
        Ok(())
    }

    fn written(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_take_the_process_id() {
        let named = |template: &str| {
            let mut name = Text::new();
            file_name(template.as_bytes(), &mut name).map(|()| String::from_utf8(name.written().to_vec()).unwrap())
        };
        let id = std::process::id();
        assert_eq!(named("/tmp/a.%p"), Ok(format!("/tmp/a.{id}")));
        assert_eq!(named("%p/%p%%"), Ok(format!("{id}/{id}%%")));
        assert_eq!(named("/tmp/100%"), Ok("/tmp/100%".to_owned()));
        assert!(named(&"x".repeat(MAX_TEXT_BYTES)).is_ok() && named(&"x".repeat(MAX_TEXT_BYTES + 1)).is_err());
    }
}
