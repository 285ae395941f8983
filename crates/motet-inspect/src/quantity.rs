//! Numbers for users.

/// Bytes with three digits: `17 B`, `1.25 MB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match value {
        _ if unit == 0 => format!("{n} B"),
        v if v >= 99.95 => format!("{v:.0} {}", UNITS[unit]),
        v if v >= 9.995 => format!("{v:.1} {}", UNITS[unit]),
        v => format!("{v:.2} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_three_digits() {
        let shown = [0, 999, 1000, 9_999, 99_960, 1_250_000, 999_600_000, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "10.0 kB", "100 kB", "1.25 MB", "1.00 GB", "18.4 EB"]);
    }
}
