//! The arithmetic of the papers: the output of a caller, the rate of a call, and the model that bounds it.
//!
//! Times are in ns, rates in bytes per ns, that is GB/s.

use anyhow::{Result, bail};

/// The times of one operation, as `tests/bench/corba.cc` prints them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallTiming {
    /// Median over blocks of calls, ns.
    pub median: f64,
    /// 99th percentile of single calls, ns.
    pub p99: f64,
}

/// Parses a line `MEDIAN P99 MEAN COUNT`. A caller that does not have the operation prints `-`, which gives NaN.
pub fn parse(line: &str) -> Result<CallTiming> {
    if line.trim() == "-" {
        return Ok(CallTiming { median: f64::NAN, p99: f64::NAN });
    }
    let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    match numbers.as_deref() {
        Ok(&[median, p99, mean, count]) if count >= 1.0 && [median, p99, mean].iter().all(|&ns| ns > 0.0) => {
            Ok(CallTiming { median, p99 })
        }
        _ => bail!("the caller printed `{}`", line.trim()),
    }
}

/// D = S / (T - RTT): the rate at which `bytes` (both directions together) travel in a call that takes `call`, where an empty one
/// takes `null`. (HP-CORBA 3.1 has 2S, for calls that carry S there and back; it prints the fraction inverted.) NaN where the
/// call takes no longer than the empty one.
pub fn rate(bytes: usize, call: f64, null: f64) -> f64 {
    if call > null { bytes as f64 / (call - null) } else { f64::NAN }
}

/// 1/D = 1/D_encode + 1/D_net + 1/D_decode: the rate of an ORB that does one step after the other (HP-CORBA, section 3).
pub fn model(encode: f64, net: f64, decode: f64) -> f64 {
    1.0 / (1.0 / encode + 1.0 / net + 1.0 / decode)
}

/// The percentage by which `measured` is above `expected`.
pub fn deviation(measured: f64, expected: f64) -> f64 {
    (measured / expected - 1.0) * 100.0
}

/// Applies `f` to the values of each repetition.
pub fn each<const N: usize>(series: [&[f64]; N], f: impl Fn([f64; N]) -> f64) -> Vec<f64> {
    let count = series.iter().map(|values| values.len()).min().unwrap_or(0);
    (0..count).map(|i| f(series.map(|values| values[i]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_caller_is_parsed() {
        let reported = parse("460.1 812.0 470.5 40312\n").unwrap();
        assert_eq!(reported, CallTiming { median: 460.1, p99: 812.0 });
        assert!(parse("-\n").unwrap().median.is_nan());
        for wrong in ["", "460.1 470.5 40312", "1 2 3 x", "1 2 3 4 5", "1 2 3 0", "0 2 3 4", "nan 2 3 4"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rate_excludes_the_empty_call() {
        // 1 MiB there and back in 210 us, of which an empty call takes 10: 2 MiB in 200 us.
        assert!((rate(2 << 20, 210e3, 10e3) - 10.48576).abs() < 1e-9);
        assert!(rate(4, 9.0, 10.0).is_nan() && rate(4, 10.0, 10.0).is_nan());
    }

    #[test]
    fn model_adds_times() {
        // The papers' MICO on Myrinet-2000 got about 30 of 240 MB/s: marshalling at 70 MB/s on each side explains it.
        assert!((model(70.0, 240.0, 70.0) - 30.545).abs() < 1e-2);
        // One step alone is that step; a step that costs nothing does not count.
        assert_eq!(model(f64::INFINITY, 5.0, f64::INFINITY), 5.0);
        assert!((deviation(9.4, 9.6) - -2.083).abs() < 1e-2 && (deviation(27.7, 31.4) - -11.783).abs() < 1e-2);
    }

    #[test]
    fn repetitions_stay_together() {
        assert_eq!(each([&[10.0, 20.0, 30.0], &[1.0, 2.0]], |[a, b]| a / b), [10.0, 10.0]);
    }
}
