//! Output: tables, quantities, JSON. Text from other processes is sanitized for a terminal.

use std::io::Write;

use crate::exit_error::{FAILED, Failure, Outcome};

pub use motet_inspect::quantity::{bytes, count, tcp_bytes};

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub fn text(text: &str) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(FAILED, format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes a value as JSON.
pub fn json(value: &impl serde::Serialize) -> Outcome<()> {
    let printed =
        serde_json::to_string_pretty(value).map_err(|e| Failure::new(FAILED, format!("cannot make JSON: {e}")))?;
    text(&(printed + "\n"))
}

/// Text with `?` for control characters, cut to `most` characters.
pub fn sanitize(text: &str, most: usize) -> String {
    let clean = text.chars().map(|c| if c.is_control() || is_bidirectional(c) { '?' } else { c });
    let mut short: String = clean.clone().take(most).collect();
    if clean.count() > most {
        short.pop();
        short.push('…');
    }
    short
}

/// Whether a character reorders text on a terminal.
fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// A table of aligned columns.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// The table with further columns of numbers in front. Call it before the first row.
    pub fn with_leading_columns(mut self, names: &[&'static str]) -> Self {
        self.columns.splice(0..0, names.iter().map(|name| (*name, Align::Right)));
        self
    }

    /// Adds a row, with one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The headings and rows as lines without trailing spaces.
    pub fn render(&self) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.chain([self.columns[at].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.columns).map(|((cell, width), (_, align))| {
                let pad = " ".repeat(width - cell.chars().count());
                if *align == Align::Left { format!("{cell}{pad}") } else { format!("{pad}{cell}") }
            });
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_control_the_terminal() {
        assert_eq!(sanitize("a\x1b[2Jb\n\u{202e}", 80), "a?[2Jb??");
        assert_eq!(sanitize("abcdef", 4), "abc…");
        assert_eq!(sanitize("abcd", 4), "abcd");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("A", Align::Right), ("NAME", Align::Left)]);
        table.row(vec!["100".into(), "x".into()]);
        table.row(vec!["2".into(), "é".into()]);
        assert_eq!(table.render(), "  A  NAME\n100  x\n  2  é\n");
    }
}
