//! Case files for this runner: TOML that is passed on, with keys that a validation changes.
//!
//! It does not check a case: the two codes do that, and name the faulty key.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

/// How many ranks each code gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks of the gas code.
    pub fluid: u32,
    /// Ranks of the wall code.
    pub solid: u32,
}

/// A case file in memory.
#[derive(Clone, Debug)]
pub struct Case {
    table: Table,
    directory: PathBuf,
}

impl Case {
    /// Reads a case file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read the case file {}", path.display()))?;
        let table = text.parse::<Table>().with_context(|| format!("{} is not TOML", path.display()))?;
        let directory = path.parent().unwrap_or(Path::new(".")).canonicalize()?;
        Ok(Self { table, directory })
    }

    /// The value at a dotted key, e.g. `fluid.rows`.
    fn value(&self, key: &str) -> Option<&Value> {
        let mut parts = key.split('.');
        let first = self.table.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }

    /// A number, whole or not.
    pub fn number(&self, key: &str) -> Result<f64> {
        match self.value(key) {
            Some(Value::Float(number)) => Ok(*number),
            Some(Value::Integer(number)) => Ok(*number as f64),
            _ => bail!("the case has no number {key}"),
        }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.value(key).and_then(Value::as_str).with_context(|| format!("the case has no text {key}"))
    }

    /// The case's name.
    pub fn name(&self) -> Result<&str> {
        self.text("name")
    }

    /// Changes or adds a value at a key of the form `table.key`.
    pub fn set(&mut self, table: &str, key: &str, value: impl Into<Value>) {
        let entry = self.table.entry(table).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(inner) = entry {
            inner.insert(key.into(), value.into());
        }
    }

    /// This case on other ranks, under another name.
    pub fn on(mut self, layout: Layout, name: &str, title: &str) -> Self {
        for (key, value) in [("name", name), ("title", title)] {
            self.table.insert(key.into(), value.into());
        }
        self.set("layout", "fluid", i64::from(layout.fluid));
        self.set("layout", "solid", i64::from(layout.solid));
        self
    }

    /// The layout of the case; 1 x 1 if it has none.
    pub fn layout(&self) -> Layout {
        let ranks = |key| self.number(key).map_or(1, |n| n as u32).max(1);
        Layout { fluid: ranks("layout.fluid"), solid: ranks("layout.solid") }
    }

    /// Time limit of a whole run, in seconds.
    pub fn timeout(&self) -> f64 {
        self.number("run.timeout").unwrap_or(300.0)
    }

    /// The path of a code's material table (`fluid` or `solid`).
    pub fn material(&self, code: &str) -> Result<PathBuf> {
        Ok(self.directory.join(self.text(&format!("{code}.material"))?))
    }

    /// Writes the case where two codes can read it from any directory.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut copy = self.clone();
        for code in ["fluid", "solid"] {
            let material = self.material(code)?;
            copy.set(code, "material", material.to_string_lossy().into_owned());
        }
        std::fs::write(path, toml::to_string(&copy.table)?).with_context(|| format!("cannot write {}", path.display()))
    }
}
