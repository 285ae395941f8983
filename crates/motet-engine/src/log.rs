//! The log: one line for each event of a stream as a whole, in the file that `MOTET_LOG` names.
//!
//! A line has words `name=value`, with wall-clock and monotonic time first. It is put together on the stack and written with one system call. The
//! descriptor is a private one, opened at the first line. Nothing is logged on the path of a message, or on the program's own output.
//!
//! | event | when |
//! | --- | --- |
//! | `start` | the engine begins, with the sizes in use and the profile that they come from |
//! | `attached` | a stream's wire is up |
//! | `tcp_only` | a stream stays on TCP, or goes back there for good |
//! | `reset` | the peer broke the protocol |
//! | `closed` | a stream that had a wire ends: bytes by path, and how often it fell back |
//! | `exit` | the process ends: the sums over all its streams |

use crate::driver::Driver;
use crate::lock;
use crate::reason::{self, Reason};
use crate::stream::addresses::addresses;
use crate::stream::engine::Totals;
use crate::stream::options::Options;
use motet_sys::append_file::{Appender, DescriptorLost};
use motet_sys::{clock, thread};
use motet_wire::stream::record::StreamRecord;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

/// Longest line, bytes.
const MAX_LINE_BYTES: usize = 1024;

/// The log of a process; nothing is written if no file is named.
#[derive(Debug, Default)]
pub struct Log {
    path: Option<PathBuf>,
    file: Mutex<File>,
}

/// The log file, opened when the first line is written.
#[derive(Debug, Default)]
pub struct File {
    /// The process that opened the file; 0: none.
    pid: u32,
    open: Option<Appender>,
}

impl Log {
    /// A log at this path, in which `%p` is the process id.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, file: Mutex::default() }
    }

    /// Writes a line that begins with `event`.
    #[cold]
    fn line(&self, event: &str, rest: impl FnOnce(&mut Line) -> fmt::Result) {
        let Some(path) = &self.path else { return };
        let pid = thread::pid();
        let (seconds, nanoseconds) = clock::wall();
        let mono = clock::nanoseconds();
        let mut line = Line { bytes: [0; MAX_LINE_BYTES], length: 0 };
        let _ = write!(
            line,
            "{}.{:06}Z mono={}.{:06}",
            Calendar(seconds),
            nanoseconds / 1000,
            mono / NS_PER_SECOND,
            mono % NS_PER_SECOND / 1000
        )
        .and_then(|()| write!(line, " pid={pid} event={event}"))
        .and_then(|()| rest(&mut line));
        let mut file = lock(&self.file);
        // A forked child has the parent's file, unless each process has its own.
        let own = path.to_str().is_some_and(|p| p.contains("%p"));
        if file.pid == 0 || (own && file.pid != pid) {
            *file = File { pid, open: Appender::open(&motet_config::Config::for_process(path, pid)).ok() };
        }
        // If the program closes descriptors that are not its own (by bare system calls), the file is opened again.
        if let Some(open) = &file.open
            && open.append(line.end()) == Err(DescriptorLost)
        {
            file.open.take().into_iter().for_each(Appender::abandon);
            file.open = Appender::open(&motet_config::Config::for_process(path, pid)).ok();
            if let Some(open) = &file.open {
                let _ = open.append(line.end());
            }
        }
    }

    /// Locks the file for a fork: no thread writes while the guard is held.
    pub fn hold(&self) -> MutexGuard<'_, File> {
        lock(&self.file)
    }

    /// Logs the start of the engine.
    pub fn start(&self, options: &Options) {
        self.line("start", |line| {
            write!(
                line,
                " motet={} single_copy_min={} single_copy_min_far={} half_copy_min={}",
                env!("CARGO_PKG_VERSION"),
                options.single_copy,
                options.single_copy_far,
                options.half_copy
            )?;
            match &options.profile {
                Some(path) => write!(line, " profile=\"{}\"", Quoted(&path.to_string_lossy())),
                None => line.write_str(" profile=none"),
            }
        });
    }

    /// Logs that a wire is up.
    pub fn attached(&self, record: &StreamRecord, driver: Option<&dyn Driver>) {
        self.line("attached", |line| {
            ends(line, record)?;
            write!(
                line,
                " peer_pid={} driver={}",
                record.connection.pid.load(Relaxed),
                driver.map_or("?", Driver::name)
            )
        });
    }

    /// Logs that a stream stays on TCP.
    pub fn tcp_only(&self, record: &StreamRecord, why: Reason) {
        self.line("tcp_only", |line| {
            ends(line, record)?;
            because(line, why)
        });
    }

    /// Logs a connection that stays on TCP because there is no record for it.
    pub fn refused(&self, fd: i32, (local, peer): (SocketAddr, SocketAddr), why: Reason) {
        self.line("tcp_only", |line| {
            write!(line, " fd={fd} local={local} peer={peer}")?;
            because(line, why)
        });
    }

    /// Logs that a stream was reset.
    pub fn reset(&self, record: &StreamRecord, why: Reason) {
        self.line("reset", |line| {
            ends(line, record)?;
            because(line, why)
        });
    }

    /// Logs the end of a stream that had a wire.
    pub fn closed(&self, record: &StreamRecord) {
        let (fast, tcp) = (record.fast_bytes(), record.tcp_bytes());
        let events = [&record.events.spilled, &record.events.downgraded, &record.events.single_copy];
        self.line("closed", |line| {
            ends(line, record)?;
            counts(line, fast, tcp, events.map(|n| n.load(Relaxed)))?;
            because(line, Reason(record.lifecycle.reason.load(Relaxed)))
        });
    }

    /// Logs the end of the process.
    pub(crate) fn exit(&self, totals: &Totals) {
        self.line("exit", |line| {
            write!(line, " streams={} attached={}", totals.streams.0, totals.streams.1)?;
            counts(line, totals.fast, totals.tcp, totals.events)
        });
    }
}

fn ends(line: &mut Line, record: &StreamRecord) -> fmt::Result {
    let [local, peer] = addresses(record);
    write!(line, " fd={} local={local} peer={peer}", record.lifecycle.fd.load(Relaxed) as i32)
}

fn because(line: &mut Line, why: Reason) -> fmt::Result {
    write!(line, " reason={} text=\"{}\"", why.0, Quoted(reason::text(why.0)))
}

fn counts(line: &mut Line, fast: (u64, u64), tcp: (u64, u64), events: [u64; 3]) -> fmt::Result {
    write!(line, " sent_fast={} sent_tcp={} received_fast={} received_tcp={}", fast.0, tcp.0, fast.1, tcp.1)?;
    write!(line, " spilled={} downgraded={} single_copy={}", events[0], events[1], events[2])
}

/// A line that is being put together; what does not fit is left out.
struct Line {
    bytes: [u8; MAX_LINE_BYTES],
    length: usize,
}

impl Line {
    fn end(&mut self) -> &[u8] {
        self.bytes[self.length] = b'\n';
        &self.bytes[..=self.length]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_LINE_BYTES - 1 - self.length; // one byte is the line's end
        let n = (0..=room.min(text.len())).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
        self.bytes[self.length..self.length + n].copy_from_slice(&text.as_bytes()[..n]);
        self.length += n;
        if n == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// A text that can stand between quotes on one line.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| f.write_char(if c.is_control() || c == '"' { '?' } else { c }))
    }
}

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Seconds since 1970 as date and time of day, UTC.
struct Calendar(u64);

impl fmt::Display for Calendar {
    /// Days to a date as in H. Hinnant, "chrono-Compatible Low-Level Date Algorithms" (`civil_from_days`): years begin in
    /// March, so that a leap day is the last of its year.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400 + 719_468, self.0 % 86_400);
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        write!(f, "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_dates_are_right() {
        // As `date -u -d @N` says.
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_700_000_000, "2023-11-14T22:13:20"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(Calendar(seconds).to_string(), date);
        }
    }

    #[test]
    fn line_has_time_process_and_end_whatever_its_length() {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let made = tempfile::Builder::new().prefix("motet-log-").permissions(mode).tempdir().unwrap();
        let folder = made.path();
        let log = Log::new(Some(folder.join("of-%p")));
        log.line("short", |line| write!(line, " path=\"{}\"", Quoted("a\"\nb")));
        log.line("long", |line| write!(line, " {}", "é".repeat(2000)));
        let text = std::fs::read_to_string(folder.join(format!("of-{}", std::process::id()))).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with(&format!(" pid={} event=short path=\"a??b\"", std::process::id())), "{text}");
        assert!(lines[0].contains("Z mono=") && lines.len() == 2 && lines[1].len() < MAX_LINE_BYTES, "{text}");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1);
        Log::new(Some("/proc/no/such/file".into())).line("lost", |_| Ok(()));
        Log::default().line("nowhere", |_| panic!("no line is formatted without a file"));
    }
}
