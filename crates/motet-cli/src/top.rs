//! `motet top`: `ps` again and again, with rates.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, event, execute, queue, style, terminal};
use serde::Serialize;

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::output::{self, bytes};
use crate::process_scan::{self, Process, Stream};
use crate::{ps, recent};

/// Watch the processes under Motet: `ps` with rates, refreshed; q quits
#[derive(Debug, Args)]
pub struct Arguments {
    /// Seconds between two tables
    #[arg(short, long, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,

    /// Print one table, after one interval, and exit
    #[arg(long)]
    once: bool,
}

/// Bytes per second of a process.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
struct Rate {
    sent: u64,
    received: u64,
}

/// Identifies a stream for as long as it lives.
type Key = (u32, usize, u32);
/// Bytes sent and received so far, by stream.
type Counts = HashMap<Key, (u64, u64)>;

fn counts(processes: &[Process]) -> Counts {
    let total = |m: process_scan::Moved| m.fast.wrapping_add(m.tcp);
    let of = |pid, s: &Stream| ((pid, s.id.0, s.id.1), (total(s.sent), total(s.received)));
    processes.iter().flat_map(|p| p.streams.iter().map(move |s| of(p.pid, s))).collect()
}

/// Rates by process. A new stream counts from the second scan on.
fn rates(before: &Counts, now: &Counts, elapsed: Duration) -> HashMap<u32, Rate> {
    let per_second = |bytes: u64| (bytes as f64 / elapsed.as_secs_f64().max(1e-3)) as u64;
    let mut moved: HashMap<u32, Rate> = HashMap::new();
    for (key, (sent, received)) in now {
        if let Some((sent_before, received_before)) = before.get(key) {
            let rate = moved.entry(key.0).or_default();
            rate.sent = rate.sent.saturating_add(sent.saturating_sub(*sent_before));
            rate.received = rate.received.saturating_add(received.saturating_sub(*received_before));
        }
    }
    moved
        .into_iter()
        .map(|(pid, r)| (pid, Rate { sent: per_second(r.sent), received: per_second(r.received) }))
        .collect()
}

#[derive(Serialize)]
struct RatedProcess {
    rate: Rate,
    #[serde(flatten)]
    process: Process,
}

/// The last scan, with rates since the scan before it.
struct View {
    processes: Vec<Process>,
    counts: Counts,
    at: Instant,
    rates: HashMap<u32, Rate>,
}

impl View {
    fn first() -> Self {
        let processes = process_scan::scan();
        Self { counts: counts(&processes), processes, at: Instant::now(), rates: HashMap::new() }
    }

    fn again(&mut self) {
        let mut next = Self::first();
        recent::set_recent_paths(&mut next.processes, &self.processes);
        next.rates = rates(&self.counts, &next.counts, next.at - self.at);
        *self = next;
    }

    /// The lines of the table, the busiest process first.
    fn lines(&self) -> Vec<String> {
        let rate = |p: &Process| self.rates.get(&p.pid).copied().unwrap_or_default();
        let mut processes: Vec<&Process> = self.processes.iter().collect();
        processes.sort_by_key(|p| (std::cmp::Reverse(rate(p).sent.saturating_add(rate(p).received)), p.pid));
        let mut table = ps::table().with_leading_columns(&["SENT/s", "RECEIVED/s"]);
        for process in processes {
            let rate = rate(process);
            let mut row = vec![bytes(rate.sent), bytes(rate.received)];
            row.extend(ps::row(process));
            table.row(row);
        }
        table.render().lines().map(str::to_owned).collect()
    }
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    if !(0.05..=3600.0).contains(&arguments.interval) {
        return Err(Failure::new(USAGE, "--interval must be from 0.05 to 3600 seconds"));
    }
    let interval = Duration::from_secs_f64(arguments.interval);
    let once = arguments.once || json;
    if !once && !std::io::stdout().is_terminal() {
        return Err(Failure::new(USAGE, "top needs a terminal; use --once or --json for a file or a pipe"));
    }
    let mut view = View::first();
    if once {
        std::thread::sleep(interval);
        view.again();
        if json {
            let rates = view.rates;
            let rate = |pid| rates.get(&pid).copied().unwrap_or_default();
            let rows = view.processes.into_iter().map(|process| RatedProcess { rate: rate(process.pid), process });
            output::json(&serde_json::json!({ "processes": rows.collect::<Vec<_>>() }))?;
        } else {
            output::text(&(view.lines().join("\n") + "\n"))?;
        }
        return Ok(0);
    }
    let terminated =
        watch(&mut view, interval).map_err(|e| Failure::new(FAILED, format!("cannot use the terminal: {e}")))?;
    Ok(if terminated { 143 } else { 0 })
}

/// Draws until a key or a signal ends it. Returns true for a signal.
fn watch(view: &mut View, interval: Duration) -> std::io::Result<bool> {
    let asked = termination_flag()?;
    let _screen = Screen::open()?;
    draw(view)?;
    loop {
        let next = view.at + interval;
        while let Some(left) = next.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            // In short steps, so that a signal to end is seen soon.
            if event::poll(left.min(Duration::from_millis(200)))? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                        if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                            return Ok(false);
                        }
                    }
                    Event::Resize(..) => draw(view)?,
                    _ => {}
                }
            }
            if asked.load(Ordering::Relaxed) {
                return Ok(true);
            }
        }
        view.again();
        draw(view)?;
    }
}

/// A flag that is set by a signal to end, so that the terminal is restored first.
fn termination_flag() -> std::io::Result<Arc<AtomicBool>> {
    use signal_hook::consts::TERM_SIGNALS;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS.iter().chain([&signal_hook::consts::SIGHUP]) {
        signal_hook::flag::register(*signal, Arc::clone(&asked))?;
    }
    Ok(asked)
}

fn draw(view: &View) -> std::io::Result<()> {
    let (width, height) = match terminal::size()? {
        (0, _) | (_, 0) => (80, 24), // the terminal has no size
        size => size,
    };
    let fits = |line: &str| line.chars().take(width.into()).collect::<String>();
    let mut out = std::io::stdout().lock();
    queue!(out, terminal::BeginSynchronizedUpdate, cursor::MoveTo(0, 0))?;
    let title = format!("motet top: {} processes under Motet (q quits)", view.processes.len());
    let lines = [title, String::new()].into_iter().chain(view.lines()).take(height.into());
    for (at, line) in lines.enumerate() {
        queue!(
            out,
            cursor::MoveTo(0, at as u16),
            style::Print(fits(&line)),
            terminal::Clear(terminal::ClearType::UntilNewLine)
        )?;
    }
    queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown), terminal::EndSynchronizedUpdate)?;
    out.flush()
}

/// The terminal in raw mode on its alternate screen, until dropped.
struct Screen;

impl Screen {
    fn open() -> std::io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(std::io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(std::io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_streams_of_both_scans_only() {
        let before = Counts::from([((1, 0, 0), (100, 0)), ((2, 1, 0), (5, 5))]);
        let now = Counts::from([((1, 0, 0), (300, 50)), ((1, 5, 0), (900, 900)), ((2, 1, 0), (1, 5))]);
        let rates = rates(&before, &now, Duration::from_secs(2));
        assert_eq!(rates[&1], Rate { sent: 100, received: 25 });
        assert_eq!(rates[&2], Rate { sent: 0, received: 0 });
    }
}
