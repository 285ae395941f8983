//! The report as text: an aligned table for a terminal, or Markdown.

use crate::floor::FAST_MAX_NS;
use crate::format::{number, quantity, scale, spread};
use crate::report::{Bound, Line, Machine, Report, Verdict};

const HEAD: [&str; 8] = ["", "what", "figure", "reference", "floor, ns", "ratio", "target", ""];

/// The report for a terminal: aligned columns, notes below their lines.
pub fn terminal(report: &Report) -> String {
    machine(&report.machine) + "\n" + &lines(&report.lines)
}

/// Lines only, for a terminal.
pub fn lines(lines: &[Line]) -> String {
    let mut text = String::new();
    let cells: Vec<[String; 8]> = lines.iter().map(cells).collect();
    let head = HEAD.map(str::to_owned);
    let width = |column: usize| cells.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let show = |row: &[String; 8]| {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    if !cells.is_empty() {
        text += &show(&head);
    }
    for (line, row) in lines.iter().zip(&cells) {
        text += &show(row);
        if let Some(note) = &line.note {
            text += &format!("   {note}\n");
        }
    }
    text
}

/// The report as Markdown.
pub fn markdown(report: &Report) -> String {
    machine(&report.machine) + "\n" + &markdown_lines(&report.lines)
}

/// Lines only, as Markdown.
pub fn markdown_lines(lines: &[Line]) -> String {
    let mut text = markdown_head(&HEAD);
    for line in lines {
        let mut row = cells(line).map(|cell| escaped(&cell));
        if let Some(note) = &line.note {
            row[1] += &format!("<br><sub>{}</sub>", escaped(note));
        }
        text += &markdown_row(&row);
    }
    text
}

/// The first two rows of a Markdown table.
pub fn markdown_head(names: &[&str]) -> String {
    format!("| {} |\n|{}\n", names.join(" | "), " --- |".repeat(names.len()))
}

/// A row of a Markdown table; its cells are escaped already.
pub fn markdown_row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Text in a cell of a Markdown table: on one line, and nothing in it ends the cell, starts a tag or changes the font.
pub fn escaped(text: &str) -> String {
    let mut cell = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\r' => cell.push(' '),
            '|' | '*' | '\\' => cell.extend(['\\', c]),
            '<' if rest.peek().is_some_and(|next| next.is_ascii_alphabetic() || "/!?".contains(*next)) => {
                cell += "&lt;"
            }
            _ => cell.push(c),
        }
    }
    cell
}

/// The machine of a run, with its floors.
pub fn machine(machine: &Machine) -> String {
    let (repetitions, ms) = machine.repetitions;
    let mut text = format!(
        "{}, {} CPUs, Linux {}. Medians of {repetitions} or more repetitions of {ms} ms, taken in turn, [smallest .. largest].\n",
        machine.processor, machine.cpus, machine.kernel
    );
    if let Some(floor) = machine.floor {
        text += &format!(
            "Floor: a cache line reaches the other CPU in {} ns; {:.0} % of {} samples were fast (at most {FAST_MAX_NS} ns).\n",
            spread(&floor),
            machine.floor_fast * 100.0,
            floor.count
        );
    }
    if let Some(exchange) = machine.exchange {
        text += &format!("By locked exchanges instead of stores: {} ns.\n", spread(&exchange));
    }
    if let Some(copy) = machine.copy {
        text += &format!("One core copies 64 KiB within its cache at {} GB/s.\n", spread(&copy));
    }
    text
}

fn cells(line: &Line) -> [String; 8] {
    [
        line.row.clone(),
        line.what.clone(),
        line.figure.as_ref().map_or(String::new(), quantity),
        line.reference.as_ref().map_or(String::new(), quantity),
        line.floor.as_ref().map_or(String::new(), spread),
        line.ratio.as_ref().map_or(String::new(), spread),
        target(line),
        verdict(line.verdict).to_owned(),
    ]
}

/// The target of a line.
pub fn target(line: &Line) -> String {
    match line.bound {
        Some(Bound::AtMost(b)) => format!("<= {}", target_value(line, b)),
        Some(Bound::AtLeast(b)) => format!(">= {}", target_value(line, b)),
        Some(Bound::Within(b)) => format!("1 +- {}", number(b)),
        None => String::new(),
    }
}

/// The value of a target: a ratio, or a figure in its unit where there is no ratio.
fn target_value(line: &Line, bound: f64) -> String {
    match (&line.ratio, &line.figure) {
        (None, Some(figure)) => {
            let (by, unit) = scale(figure.unit, bound);
            format!("{} {unit}", number(bound / by))
        }
        _ => number(bound),
    }
}

/// Whether a target was met, in words.
pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "MISSED",
        Verdict::Undecided => "undecided",
        Verdict::SlowFloor => "floor mode not fast",
        Verdict::NotMeasured => "not measured",
        Verdict::Shown => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Quantity, Unit};

    #[test]
    fn lines_have_figures_targets_and_notes() {
        let line = Line::new("a", "engine")
            .figure(Quantity::of("one way", &[100.0, 110.0, 120.0], Unit::Ns))
            .against(Quantity::of("floor", &[55.0], Unit::Ns), &[2.0])
            .bound(Bound::AtMost(2.0));
        let machine = Machine {
            processor: "P".into(),
            kernel: "6".into(),
            cpus: 2,
            floor: None,
            floor_by_distance: [None; 2],
            exchange: None,
            floor_fast: 0.0,
            copy: None,
            repetitions: (5, 40),
        };
        let missing = Line::not_measured("e", "sockets", "no library");
        let report = Report { machine, lines: vec![line, missing], curves: Vec::new() };
        let text = terminal(&report);
        assert!(text.contains("one way 110 [100 .. 120] ns  floor 55 ns"), "{text}");
        assert!(text.contains("<= 2"), "{text}");
        assert!(text.contains("not measured\n   no library"), "{text}");
        assert!(markdown(&report).contains("| e | sockets<br><sub>no library</sub> |"));
    }

    #[test]
    fn cells_are_escaped() {
        assert_eq!(escaped("a|b\nc *d* \\"), "a\\|b c \\*d\\* \\\\");
        assert_eq!(escaped("<= 2 <b> </b> 1 < 2"), "<= 2 &lt;b> &lt;/b> 1 < 2");
    }
}
