//! Exact steady solutions of two slabs in contact, gas at rest above, wall below, computed independently of the codes.
//!
//! With Kirchhoff's transform Theta(T) = integral of k over T, the heat flux through a slab of thickness d between
//! temperatures a and b is (Theta(a) - Theta(b)) / d, and Theta is linear in y.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::case::Case;

/// Conductivity by temperature: a table with straight lines between its points, or one value.
#[derive(Clone, Debug)]
pub struct Conductivity {
    temperature: Vec<f64>,
    value: Vec<f64>,
}

#[derive(Deserialize)]
struct Table {
    temperature: Vec<f64>,
    conductivity: Vec<f64>,
}

impl Conductivity {
    fn constant(value: f64) -> Self {
        Self { temperature: vec![0.0, 1e4], value: vec![value, value] }
    }

    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let table: Table = toml::from_str(&text)?;
        ensure!(table.temperature.len() == table.conductivity.len() && table.temperature.len() > 1, "a broken table");
        Ok(Self { temperature: table.temperature, value: table.conductivity })
    }

    /// W/(m K) at a temperature in K.
    fn at(&self, kelvin: f64) -> f64 {
        let upper = self.temperature.partition_point(|t| *t < kelvin).clamp(1, self.temperature.len() - 1);
        let (t0, t1) = (self.temperature[upper - 1], self.temperature[upper]);
        let (k0, k1) = (self.value[upper - 1], self.value[upper]);
        k0 + (k1 - k0) * (kelvin - t0) / (t1 - t0)
    }

    /// Kirchhoff's transform, W/m, counted from the table's first temperature.
    fn theta(&self, kelvin: f64) -> f64 {
        let mut sum = 0.0;
        for (pair, value) in self.temperature.windows(2).zip(self.value.windows(2)) {
            if kelvin <= pair[1] {
                return sum + 0.5 * (value[0] + self.at(kelvin)) * (kelvin - pair[0]);
            }
            sum += 0.5 * (value[0] + value[1]) * (pair[1] - pair[0]);
        }
        sum
    }
}

/// The steady state of two slabs with fixed temperatures outside.
pub struct TwoSlabs {
    gas: Conductivity,
    wall: Conductivity,
    height: f64,
    thickness: f64,
    top: f64,
    bottom: f64,
    /// Temperature of the common boundary, K.
    pub interface: f64,
}

impl TwoSlabs {
    /// The solution for a case without flow and with fixed temperatures at top and bottom.
    pub fn of(case: &Case) -> Result<Self> {
        let gas = match case.number("fluid.conductivity") {
            Ok(value) => value,
            Err(_) => Conductivity::read(&case.material("fluid")?)?.at(case.number("fluid.reference_temperature")?),
        };
        let wall = match case.number("solid.conductivity") {
            Ok(value) => Conductivity::constant(value),
            Err(_) => Conductivity::read(&case.material("solid")?)?,
        };
        let mut slabs = Self {
            gas: Conductivity::constant(gas),
            wall,
            height: case.number("fluid.height")?,
            thickness: case.number("solid.thickness")?,
            top: case.number("fluid.top_temperature")?,
            bottom: case.number("solid.bottom_temperature")?,
            interface: 0.0,
        };
        slabs.interface = bisect(slabs.bottom.min(slabs.top), slabs.bottom.max(slabs.top), |kelvin| {
            let from_gas = (slabs.gas.theta(slabs.top) - slabs.gas.theta(kelvin)) / slabs.height;
            let into_wall = (slabs.wall.theta(kelvin) - slabs.wall.theta(slabs.bottom)) / slabs.thickness;
            into_wall - from_gas
        });
        Ok(slabs)
    }

    /// K at height y (m), 0 at the common boundary.
    pub fn temperature(&self, y: f64) -> f64 {
        let (slab, low, high, fraction) = if y < 0.0 {
            (&self.wall, self.bottom, self.interface, 1.0 + y / self.thickness)
        } else {
            (&self.gas, self.interface, self.top, y / self.height)
        };
        let wanted = slab.theta(low) + fraction * (slab.theta(high) - slab.theta(low));
        bisect(low.min(high), low.max(high), |kelvin| slab.theta(kelvin) - wanted)
    }

    /// Difference between the outer temperatures, K.
    pub fn span(&self) -> f64 {
        (self.top - self.bottom).abs()
    }
}

/// The root of a rising function, to the last bit that bisection can tell.
fn bisect(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return middle;
        }
        if f(middle) < 0.0 { low = middle } else { high = middle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn theta_is_the_integral_of_a_piecewise_linear_conductivity() {
        let k = Conductivity { temperature: vec![100.0, 200.0, 400.0], value: vec![10.0, 20.0, 40.0] };
        assert_eq!(k.theta(200.0), 1500.0);
        assert_eq!(k.theta(400.0), 1500.0 + 6000.0);
        assert_eq!(k.theta(300.0), 1500.0 + 2500.0);
    }

    #[test]
    fn bisection_finds_a_root_to_the_last_bit() {
        assert!((bisect(0.0, 2.0, |x| x * x - 2.0) - 2f64.sqrt()).abs() <= f64::EPSILON);
    }
}
