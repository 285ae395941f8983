//! Numbers, sizes and quantities as text: what tables, pages and pictures share.

use crate::report::{Quantity, Unit};
use crate::stats::Spread;

/// A quantity with its name, in a readable unit.
pub fn quantity(quantity: &Quantity) -> String {
    let (by, unit) = scale(quantity.unit, quantity.spread.median);
    format!("{} {} {unit}", quantity.name, spread(&quantity.spread.over(by)))
}

/// A readable unit for a value: what to divide by, and its name.
pub fn scale(unit: Unit, value: f64) -> (f64, &'static str) {
    match unit {
        Unit::Ns if value >= 1e6 => (1e6, "ms"),
        Unit::Ns if value >= 1e3 => (1e3, "us"),
        Unit::Ns => (1.0, "ns"),
        Unit::GBs => (1.0, "GB/s"),
        Unit::PerSecond if value >= 1e6 => (1e6, "M/s"),
        Unit::PerSecond if value >= 1e3 => (1e3, "k/s"),
        Unit::PerSecond => (1.0, "/s"),
        Unit::Bytes if value >= 1024.0 => (1024.0, "KiB"),
        Unit::Bytes => (1.0, "B"),
        Unit::Ms => (1.0, "ms"),
        Unit::Seconds => (1.0, "s"),
        Unit::Instructions => (1.0, "instructions"),
    }
}

/// A median, with the smallest and the largest value.
pub fn spread(s: &Spread) -> String {
    if s.count == 1 {
        return number(s.median);
    }
    format!("{} [{} .. {}]", number(s.median), number(s.min), number(s.max))
}

/// A number with three significant digits.
pub fn number(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.995 || v == 0.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') && value.fract() == 0.0 { format!("{value:.0}") } else { text }
}

/// A size with its binary unit.
pub fn bytes(size: usize) -> String {
    match size {
        s if s >= 1 << 20 && s % (1 << 20) == 0 => format!("{} MiB", s >> 20),
        s if s >= 1024 && s % 1024 == 0 => format!("{} KiB", s >> 10),
        s => format!("{s} B"),
    }
}

/// [`number`] without zeros at its end, for the marks of an axis.
pub fn short_number(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches('0').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_are_readable() {
        assert_eq!([0.0, 0.7, 1.0, 5.5, 52.34, 12345.6].map(number), ["0", "0.700", "1", "5.50", "52.3", "12346"]);
        assert_eq!([64, 65536, 64 << 20].map(bytes), ["64 B", "64 KiB", "64 MiB"]);
    }
}
