//! `motet top`: `ps` again and again, with rates.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, event, execute, queue, style, terminal};
use motet_inspect::process_scan::Process;
use motet_inspect::report::HostReport;

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::output::{self, bytes};
use crate::ps;
use crate::terminal_end;
use crate::watched::{self, Source};

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

/// The last look at all processes.
struct View {
    source: Source,
    reports: Vec<HostReport>,
    at: Instant,
}

impl View {
    fn first() -> Self {
        let mut source = Source::from_env();
        Self { reports: source.again(), source, at: Instant::now() }
    }

    fn again(&mut self) {
        self.reports = self.source.again();
        self.at = Instant::now();
    }

    /// The lines of the table, the busiest process first.
    fn lines(&self) -> Vec<String> {
        let rate = |p: &Process| p.rate.unwrap_or_default();
        let of = |report| move |process| (report, process);
        let mut processes: Vec<(&HostReport, &Process)> =
            self.reports.iter().flat_map(|report| report.processes.iter().map(of(report))).collect();
        processes.sort_by_key(|(_, p)| (std::cmp::Reverse(rate(p).both()), p.pid));
        let several = watched::several(&self.reports);
        let mut table = ps::table(several).with_leading_columns(&["SENT/s", "RECEIVED/s"]);
        for (report, process) in processes {
            let rate = rate(process);
            let mut row = vec![bytes(rate.sent), bytes(rate.received)];
            row.extend(ps::row(report, process, several));
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
            output::json(&serde_json::json!({ "processes": watched::processes(view.reports) }))?;
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
    terminal_end::watch(&asked)?;
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
    let processes: usize = view.reports.iter().map(|report| report.processes.len()).sum();
    let title = format!("motet top: {processes} processes under Motet (q quits)");
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
