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

/// A number of things: `1 node`, `2 nodes`.
pub fn count(n: usize, thing: &str) -> String {
    let ending = if n == 1 { "" } else { "s" };
    format!("{n} {thing}{ending}")
}

/// Bytes over TCP. If the kernel alone counts a part of them, what Motet has counted is the least, and a dash stands for nothing counted.
pub fn tcp_bytes(counted: u64, are_all_counted: bool) -> String {
    match counted {
        _ if are_all_counted => bytes(counted),
        0 => "-".into(),
        _ => format!(">={}", bytes(counted)),
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

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|n| count(n, "node")), ["0 nodes", "1 node", "2 nodes"]);
    }

    #[test]
    fn what_is_not_counted_is_not_shown_as_nothing() {
        let shown = [(0, true), (0, false), (1500, true), (1500, false)].map(|(counted, all)| tcp_bytes(counted, all));
        assert_eq!(shown, ["0 B", "-", "1.50 kB", ">=1.50 kB"]);
    }
}
