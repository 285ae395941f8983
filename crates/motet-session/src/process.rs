//! A process, distinguished from a later one of the same id by its start time.

use serde::{Deserialize, Serialize};

/// A process of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The start time, in clock ticks since boot.
    pub started: u64,
}

impl Process {
    /// The process with this id, if it runs. It does as long as any of its threads does; a zombie does not.
    pub fn of(pid: u32) -> Option<Self> {
        Self::with_parent(pid).map(|(process, _)| process)
    }

    /// The process with this id, if it runs, and the id of its parent.
    pub fn with_parent(pid: u32) -> Option<(Self, u32)> {
        // The name of a command is no text perhaps.
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let (started, parent) = parse_stat(&String::from_utf8_lossy(&stat))?;
        Some((Self { pid, started }, parent))
    }

    /// This process.
    pub fn this() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, started: 0 })
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }
}

/// The start time and the parent in the text of `/proc/PID/stat`. `None`: a zombie, or no such text. The command's name, in parentheses, may contain anything.
fn parse_stat(stat: &str) -> Option<(u64, u32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
    let [state, parent, .., threads, _, started] = fields[..] else { return None };
    if fields.len() != 20 {
        return None;
    }
    // The state is that of the first thread. When that alone has ended (pthread_exit), it is a zombie among other threads.
    let is_dead = state == "X" || state == "Z" && threads.parse().is_ok_and(|threads: u32| threads <= 1);
    if is_dead { None } else { Some((started.parse().ok()?, parent.parse().ok()?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_until_its_end() {
        assert!(Process::this().is_running() && Process::this().started > 0);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_running());
        assert!(!Process { started: process.started + 1, ..process }.is_running());
        child.kill().unwrap();
        while process.is_running() {
            std::thread::yield_now(); // it is a zombie then, as nothing has waited for it
        }
        child.wait().unwrap();
        assert!(!process.is_running());
    }

    #[test]
    fn stat_text_with_a_strange_command_is_parsed() {
        let fields = (4..=21).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(parse_stat(&format!("1 (a) b) S {fields} 777 1")), Some((777, 4)));
        assert_eq!(parse_stat("1 (a) Z 2 3"), None);
        assert_eq!(parse_stat("nonsense"), None);
        for (state, threads, runs) in [("Z", 1, false), ("Z", 2, true), ("X", 2, false), ("S", 1, true)] {
            let text = format!("1 (a) {state} 7 {} {threads} 0 777 1", vec!["0"; 15].join(" "));
            assert_eq!(parse_stat(&text), runs.then_some((777, 7)), "{text}");
        }
    }
}
