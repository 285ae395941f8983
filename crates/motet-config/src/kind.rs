//! Kinds of values: how each is written, and the error for text that does not fit.

use std::path::PathBuf;

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// true or false, also written 1, 0, yes, no, on, off.
    Bool,
    /// A whole number.
    Number {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
        /// What is counted, for help texts.
        unit: &'static str,
    },
    /// A size, in bytes or with a suffix (K, M, G, also KiB, MiB, GiB: powers of 1024).
    Bytes {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
        /// Only powers of two.
        power_of_two: bool,
    },
    /// A time in nanoseconds, or with a suffix (ns, us, ms, s).
    Nanoseconds {
        /// Longest.
        max: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Words separated by commas.
    List,
    /// A file.
    Path,
}

/// A value that fits its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A value of [`ValueKind::Bool`].
    Flag(bool),
    /// A value of [`ValueKind::Number`], [`ValueKind::Bytes`] (in bytes) or [`ValueKind::Nanoseconds`].
    Number(u64),
    /// The index of a word of [`ValueKind::Choice`].
    Choice(usize),
    /// The words of [`ValueKind::List`].
    Words(Vec<String>),
    /// The path of [`ValueKind::Path`]; `None` when empty.
    Path(Option<PathBuf>),
}

impl Value {
    // The table pairs each kind with its reader, and a test applies every row.
    pub(crate) fn flag(self) -> bool {
        matches!(self, Self::Flag(true))
    }
    pub(crate) fn number(self) -> u64 {
        if let Self::Number(n) = self { n } else { 0 }
    }
    pub(crate) fn choice(self) -> usize {
        if let Self::Choice(n) = self { n } else { 0 }
    }
    pub(crate) fn words(self) -> Vec<String> {
        if let Self::Words(words) = self { words } else { Vec::new() }
    }
    pub(crate) fn path(self) -> Option<PathBuf> {
        if let Self::Path(path) = self { path } else { None }
    }
}

/// What is wrong with a value, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    pub what: String,
    pub fix: String,
}

const SIZE_UNITS: &[(&str, u64)] =
    &[("k", 1 << 10), ("kib", 1 << 10), ("m", 1 << 20), ("mib", 1 << 20), ("g", 1 << 30), ("gib", 1 << 30), ("b", 1)];
const TIME_UNITS: &[(&str, u64)] = &[("ns", 1), ("us", 1000), ("µs", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];

impl ValueKind {
    /// Reads a value as a user writes it.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, Mismatch> {
        let text = text.trim();
        match *self {
            Self::Bool => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Ok(Value::Flag(true)),
                "0" | "false" | "no" | "off" => Ok(Value::Flag(false)),
                _ => Err(Mismatch { what: "is neither true nor false".into(), fix: self.expected() }),
            },
            Self::Number { min, max, .. } => self.quantity(text, &[], min, max),
            Self::Bytes { min, max, power_of_two } => match self.quantity(text, SIZE_UNITS, min, max)? {
                Value::Number(n) if power_of_two && !n.is_power_of_two() => {
                    let above = n.next_power_of_two();
                    let fix = format!("use {} or {}", size(above / 2), size(above));
                    Err(Mismatch { what: "is not a power of two".into(), fix })
                }
                value => Ok(value),
            },
            Self::Nanoseconds { max } => self.quantity(text, TIME_UNITS, 0, max),
            Self::Choice(words) => match words.iter().position(|w| w.eq_ignore_ascii_case(text)) {
                Some(n) => Ok(Value::Choice(n)),
                None => Err(Mismatch { what: "is not known".into(), fix: self.expected() }),
            },
            Self::List => {
                Ok(Value::Words(text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(String::from).collect()))
            }
            Self::Path => Ok(Value::Path((!text.is_empty()).then(|| PathBuf::from(text)))),
        }
    }

    /// A number with one of `suffixes`, within bounds.
    fn quantity(&self, text: &str, suffixes: &[(&str, u64)], min: u64, max: u64) -> Result<Value, Mismatch> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let suffix = text[digits..].trim().to_lowercase();
        let factor = if suffix.is_empty() { Some(1) } else { suffixes.iter().find(|s| s.0 == suffix).map(|s| s.1) };
        if digits == 0 || factor.is_none() {
            return Err(Mismatch { what: format!("is not {}", self.noun()), fix: self.expected() });
        }
        // Too many digits for u64 is out of range like any other.
        let n = text[..digits].parse::<u64>().ok().zip(factor).and_then(|(n, f)| n.checked_mul(f));
        match n {
            Some(n) if (min..=max).contains(&n) => Ok(Value::Number(n)),
            _ => Err(Mismatch { what: "is out of range".into(), fix: self.expected() }),
        }
    }

    fn noun(&self) -> &'static str {
        match self {
            Self::Bytes { .. } => "a size",
            Self::Nanoseconds { .. } => "a time",
            _ => "a whole number",
        }
    }

    /// What to write, as an instruction.
    pub(crate) fn expected(&self) -> String {
        format!("use {}", self.describe())
    }

    /// What a value looks like, for help and manual.
    pub fn describe(&self) -> String {
        match *self {
            Self::Bool => "true or false".into(),
            Self::Number { min, max, unit } => format!("{min} to {max} {unit}"),
            Self::Bytes { min, max, power_of_two } => {
                let kind = if power_of_two { "a power of two" } else { "a size" };
                format!("{kind} from {} to {}", size(min), size(max))
            }
            Self::Nanoseconds { max } => {
                format!("a time up to {} s: 500ns, 30us, 1ms; plain numbers are ns", max / 1_000_000_000)
            }
            Self::Choice(words) => match words {
                [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                _ => words.concat(),
            },
            Self::List => "words separated by commas".into(),
            Self::Path => "a file name".into(),
        }
    }
}

/// A size with the largest suffix that divides it.
pub(crate) fn size(n: u64) -> String {
    match n {
        0 => "0".into(),
        n if n % (1 << 30) == 0 => format!("{}GiB", n >> 30),
        n if n % (1 << 20) == 0 => format!("{}MiB", n >> 20),
        n if n % (1 << 10) == 0 => format!("{}KiB", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: ValueKind = ValueKind::Bytes { min: 4096, max: 1 << 24, power_of_two: true };

    #[test]
    fn sizes_take_suffixes() {
        for text in ["65536", "64K", "64k", "64KiB", "64 KiB", " 65536 "] {
            assert_eq!(RING.parse(text), Ok(Value::Number(65536)), "{text}");
        }
        assert_eq!(RING.parse("16M"), Ok(Value::Number(1 << 24)));
    }

    #[test]
    fn wrong_size_error_says_what_to_write() {
        assert_eq!(RING.parse("70000").unwrap_err().fix, "use 64KiB or 128KiB");
        for text in ["32M", "1", "18446744073709551616", "99999999999999G"] {
            assert_eq!(RING.parse(text).unwrap_err().what, "is out of range", "{text}");
        }
        for text in ["", "-1", "K", "64X", "64KB"] {
            assert_eq!(RING.parse(text).unwrap_err().what, "is not a size", "{text}");
        }
    }

    #[test]
    fn times_are_nanoseconds() {
        let spin = ValueKind::Nanoseconds { max: 1_000_000_000 };
        for (text, ns) in
            [("0", 0), ("30000", 30000), ("30us", 30000), ("30 µs", 30000), ("1ms", 1_000_000), ("1s", 1_000_000_000)]
        {
            assert_eq!(spin.parse(text), Ok(Value::Number(ns)), "{text}");
        }
        assert!(spin.parse("2s").is_err() && spin.parse("30m").is_err());
    }

    #[test]
    fn choices_lists_and_paths_are_parsed() {
        assert_eq!(ValueKind::Choice(&["auto", "off"]).parse("OFF"), Ok(Value::Choice(1)));
        assert_eq!(ValueKind::Choice(&["a", "b", "c"]).describe(), "a, b or c");
        assert_eq!(ValueKind::Choice(&["auto", "off"]).describe(), "auto or off");
        assert_eq!(ValueKind::List.parse("shm, tcp,"), Ok(Value::Words(vec!["shm".into(), "tcp".into()])));
        assert_eq!(ValueKind::Path.parse(""), Ok(Value::Path(None)));
    }
}
