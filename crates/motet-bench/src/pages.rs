//! The figures pages: what a run measured as Markdown tables, one file for each group of rows.
//!
//! A page has a title, the command that made it, the machine, the date, the commit, the floor, and one table. A run writes the pages of
//! the groups that it measured and leaves all others alone.

use crate::floor::Distance;
use crate::format;
use crate::report::{Line, Machine, Quantity, Report, Verdict, WithMotet};
use crate::stats::Spread;
use crate::table;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The columns of every table. A ratio is with Motet over beside, unless it says how many times as fast it is with Motet.
const HEAD: [&str; 5] = ["row", "with Motet", "beside, or without Motet", "ratio", "bound"];
/// Options of the command line that name paths of one machine; a page does not show them.
const PATHS: [&str; 4] = ["--figures", "--plots", "--libdir", "--demo-report"];

/// Rows that share a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Streams of the engine and of the sockets adapter.
    Streams,
    /// Unmodified programs of other projects.
    Programs,
    /// `motet bench messages`.
    Messages,
    /// `motet bench corba`.
    Corba,
    /// `motet bench mpi`.
    Mpi,
    /// `motet bench session`.
    Session,
    /// `motet bench files`.
    Files,
    /// `motet bench globus`.
    Globus,
    /// `motet bench rsr`.
    Rsr,
}

impl Group {
    /// All groups.
    pub const ALL: [Group; 9] = [
        Group::Streams,
        Group::Programs,
        Group::Messages,
        Group::Corba,
        Group::Mpi,
        Group::Session,
        Group::Files,
        Group::Globus,
        Group::Rsr,
    ];

    /// The name of its page.
    pub fn file(self) -> &'static str {
        match self {
            Group::Streams => "streams.md",
            Group::Programs => "programs.md",
            Group::Messages => "messages.md",
            Group::Corba => "corba.md",
            Group::Mpi => "mpi.md",
            Group::Session => "session.md",
            Group::Files => "files.md",
            Group::Globus => "globus.md",
            Group::Rsr => "rsr.md",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Group::Streams => "Figures: streams",
            Group::Programs => "Figures: unmodified programs",
            Group::Messages => "Figures: messages between processes",
            Group::Corba => "Figures: CORBA calls",
            Group::Mpi => "Figures: MPI",
            Group::Session => "Figures: sessions",
            Group::Files => "Figures: remote files",
            Group::Globus => "Figures: GridFTP",
            Group::Rsr => "Figures: remote service requests",
        }
    }
}

/// Where the figures of a page are from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The command that measured them.
    pub command: String,
    /// The day, UTC, as YYYY-MM-DD.
    pub date: String,
    /// The commit of the checkout that the command ran in; `unknown` outside of one.
    pub commit: String,
}

impl Origin {
    /// The origin of what this process measures.
    pub fn here() -> Self {
        let mut words = std::env::args();
        let program = words.next().unwrap_or_default();
        let program = Path::new(&program).file_name().map_or("motet".into(), |name| name.to_string_lossy());
        let command = format!("{program} {}", shown(words)).trim_end().to_owned();
        let date = printed(Path::new("."), "date", &["--utc", "+%F"]);
        Self { command, date: date.unwrap_or("unknown date".into()), commit: commit().unwrap_or("unknown".into()) }
    }
}

/// The words of a command line, without the options that name paths.
fn shown(words: impl Iterator<Item = String>) -> String {
    let mut kept = Vec::new();
    let mut is_value = false;
    for word in words {
        let is_path = PATHS.iter().any(|option| word.split('=').next() == Some(option));
        if !is_value && !is_path {
            kept.push(word.clone());
        }
        is_value = is_path && !word.contains('=');
    }
    kept.join(" ")
}

/// The commit of the checkout of Motet around the current directory, with a remark if there are changes outside of the figures.
fn commit() -> Option<String> {
    let here = Path::new(".");
    let root = PathBuf::from(printed(here, "git", &["rev-parse", "--show-toplevel"])?);
    if !root.join("crates/motet-bench").is_dir() {
        return None; // a checkout of something else
    }
    let commit = printed(&root, "git", &["describe", "--always", "--tags", "--abbrev=12"])?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/figures"];
    let changes = printed(&root, "git", &status)?;
    Some(if changes.is_empty() { commit } else { format!("{commit} with changes") })
}

/// What a command prints, without space around it; `None` when it fails.
fn printed(folder: &Path, program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).current_dir(folder).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Makes sure that pages can be written to a folder: before hours of measuring.
pub fn prepare(folder: &Path) -> Result<()> {
    let why = || format!("cannot write figures to {}", folder.display());
    fs::create_dir_all(folder).with_context(why)?;
    tempfile::tempfile_in(folder).with_context(why)?;
    Ok(())
}

/// Writes the pages of the groups of which at least one line was measured. Returns the files.
pub fn write(folder: &Path, report: &Report, group: impl Fn(&Line) -> Group, origin: &Origin) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for of in Group::ALL {
        let lines: Vec<&Line> = report.lines.iter().filter(|line| group(line) == of).collect();
        if lines.iter().all(|line| line.verdict == Verdict::NotMeasured) {
            continue;
        }
        let path = folder.join(of.file());
        let text = page(of, &report.machine, &lines, origin);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        files.push(path);
    }
    Ok(files)
}

fn page(group: Group, machine: &Machine, lines: &[&Line], origin: &Origin) -> String {
    let mut text = format!(
        "# {}\n\nGenerated by `{}`.\n\n{}, {} CPUs, Linux {}; {}; commit {}.\n{}\n\n",
        group.title(),
        origin.command,
        machine.processor,
        machine.cpus,
        machine.kernel,
        origin.date,
        origin.commit,
        floor(machine)
    );
    text += &table::markdown_head(&HEAD);
    for line in lines {
        text += &table::markdown_row(&cells(line).map(|cell| table::escaped(&cell)));
    }
    text
}

/// The floor, on near and on far CPUs where both were seen.
fn floor(machine: &Machine) -> String {
    let of = |(distance, floor): (Distance, &Option<Spread>)| {
        Some(format!("{} {} ns", distance.words(), format::spread(floor.as_ref()?)))
    };
    let seen: Vec<String> = Distance::ALL.into_iter().zip(&machine.floor_by_distance).filter_map(of).collect();
    if seen.is_empty() {
        return "Floor: not measured.".to_owned();
    }
    format!("Floor, one cache line to another CPU, median [smallest .. largest]: {}.", seen.join("; "))
}

fn cells(line: &Line) -> [String; 5] {
    let of = |quantities: &[&Option<Quantity>]| {
        quantities.iter().filter_map(|of| of.as_ref()).map(format::quantity).collect::<Vec<_>>().join("; ")
    };
    let (figure, reference) = (&line.figure, &line.reference);
    let (with, beside) = match line.with_motet {
        WithMotet::Figure => (of(&[figure]), of(&[reference])),
        WithMotet::Reference => (of(&[reference]), of(&[figure])),
        WithMotet::Neither => (String::new(), of(&[figure, reference])),
    };
    let better = if line.with_motet == WithMotet::Reference { " x as fast" } else { "" };
    let ratio = line.ratio.as_ref().map_or(String::new(), |ratio| format::spread(ratio) + better);
    let name = if line.row.is_empty() { line.what.clone() } else { format!("{}: {}", line.row, line.what) };
    [name, with, beside, ratio, bound(line)]
}

/// The target and whether it was met; for a line that was not measured, why.
fn bound(line: &Line) -> String {
    let words = [table::target(line), table::verdict(line.verdict).to_owned()];
    let words = words.into_iter().filter(|of| !of.is_empty()).collect::<Vec<_>>().join(", ");
    match &line.note {
        Some(why) if line.verdict == Verdict::NotMeasured => format!("{words}: {why}"),
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Bound, Unit};

    fn report(lines: Vec<Line>) -> Report {
        let machine = Machine {
            processor: "CPU".into(),
            kernel: "6.1".into(),
            cpus: 2,
            floor: Spread::of(&[50.0, 52.0, 240.0]),
            floor_by_distance: [Spread::of(&[50.0, 52.0]), Spread::of(&[240.0])],
            exchange: None,
            floor_fast: 0.7,
            copy: None,
            repetitions: (5, 40),
        };
        Report { machine, lines, curves: Vec::new() }
    }

    fn origin() -> Origin {
        Origin { command: "motet bench".into(), date: "2026-01-31".into(), commit: "abc".into() }
    }

    fn group(line: &Line) -> Group {
        if line.row == "redis" { Group::Programs } else { Group::Streams }
    }

    fn measured(row: &str) -> Line {
        let of = |name: &str, value: f64| Quantity::of(name, &[value, value + 2.0, value + 4.0], Unit::Ns);
        Line::new(row, "64 B").figure(of("plain TCP", 200.0)).against(of("with", 100.0), &[2.0, 1.9, 2.1])
    }

    #[test]
    fn page_shows_every_line_of_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let lines = vec![
            measured("a").with_motet(WithMotet::Reference).bound(Bound::AtLeast(1.5)),
            measured("b").with_motet(WithMotet::Neither),
            measured("redis"),
            Line::not_measured("c", "a | b", "no program\n<here>"),
        ];
        let files = write(folder.path(), &report(lines), group, &origin()).unwrap();
        assert_eq!(files, ["streams.md", "programs.md"].map(|name| folder.path().join(name)));
        let text = fs::read_to_string(&files[0]).unwrap();
        let expected = "# Figures: streams\n\n\
            Generated by `motet bench`.\n\n\
            CPU, 2 CPUs, Linux 6.1; 2026-01-31; commit abc.\n\
            Floor, one cache line to another CPU, median [smallest .. largest]: near CPUs 51 [50 .. 52] ns; far CPUs 240 ns.\n\n\
            | row | with Motet | beside, or without Motet | ratio | bound |\n\
            | --- | --- | --- | --- | --- |\n\
            | a: 64 B | with 102 [100 .. 104] ns | plain TCP 202 [200 .. 204] ns | 2 [1.90 .. 2.10] x as fast | >= 1.50, met |\n\
            | b: 64 B |  | plain TCP 202 [200 .. 204] ns; with 102 [100 .. 104] ns | 2 [1.90 .. 2.10] |  |\n\
            | c: a \\| b |  |  |  | not measured: no program &lt;here> |\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn partial_run_leaves_other_pages_alone() {
        let folder = tempfile::tempdir().unwrap();
        let of = |group: Group| folder.path().join(group.file());
        Group::ALL.iter().for_each(|&group| fs::write(of(group), "kept").unwrap());
        let lines = vec![measured("redis"), Line::not_measured("a", "64 B", "no library")];
        let files = write(folder.path(), &report(lines), group, &origin()).unwrap();
        assert_eq!(files, [of(Group::Programs)]);
        for group in Group::ALL {
            assert_eq!(fs::read_to_string(of(group)).unwrap() == "kept", group != Group::Programs, "{group:?}");
        }
    }

    #[test]
    fn command_is_shown_without_paths() {
        let words = "bench --quick --figures /a/b --only redis --libdir=/c --plots d mpi";
        assert_eq!(shown(words.split(' ').map(str::to_owned)), "bench --quick --only redis mpi");
    }

    #[test]
    fn folder_that_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        prepare(&folder.path().join("docs/figures")).unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(prepare(&folder.path().join("file")).is_err());
        assert_eq!(fs::read_dir(folder.path().join("docs/figures")).unwrap().count(), 0);
    }
}
