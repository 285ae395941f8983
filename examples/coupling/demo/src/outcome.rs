//! What the two codes report about a run: their JSON lines, and checks of them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The total line of one code. Times in seconds, energies in joules per metre of depth.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CodeTotal {
    /// `fluid` or `solid`.
    pub code: String,
    /// Number of ranks.
    pub ranks: u32,
    /// From the first exchange to the last, the slowest rank's.
    pub wall_seconds: f64,
    /// User and system time of all ranks.
    pub cpu_seconds: f64,
    /// Gas: inside remote calls, the slowest rank's. Wall: calls held until a step was complete.
    pub coupling_seconds: f64,
    /// Time of the wall's own steps, as the wall measured it; for the gas a part of `coupling_seconds`.
    pub solve_seconds: f64,
    /// Remote calls of all ranks.
    pub calls: f64,
    /// Boundary values sent and received, in bytes, without protocol headers.
    pub bytes: f64,
    /// Change of the energy content.
    pub energy_change: f64,
    /// Energy that came through the outer boundaries.
    pub energy_in: f64,
    /// Energy that went from the gas into the wall.
    pub energy_interface: f64,
    /// Sum of the magnitudes of all energies moved: the scale of rounding.
    pub energy_turnover: f64,
    /// Hash of the final temperatures, in the order of the columns.
    pub field_checksum: String,
    /// Hash of all exchanged values.
    pub interface_checksum: String,
}

/// Both codes' totals.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The gas.
    pub fluid: CodeTotal,
    /// The wall.
    pub solid: CodeTotal,
    /// From starting the first program to the end of the last, in seconds.
    pub run_seconds: f64,
}

impl CodeTotal {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("no result: {}", path.display()))?;
        let line = text.lines().find(|line| line.contains(r#""kind": "total""#)).context("no total in the result")?;
        serde_json::from_str(line).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Energy that this code has lost or made, relative to what it moved: rounding only, if the scheme conserves.
    pub fn balance_error(&self) -> f64 {
        let interface = if self.code == "fluid" { -self.energy_interface } else { self.energy_interface };
        (self.energy_change - self.energy_in - interface).abs() / self.energy_turnover.max(f64::MIN_POSITIVE)
    }
}

impl Outcome {
    /// Reads both result files of a run's directory.
    pub fn read(directory: &Path, run_seconds: f64) -> Result<Self> {
        Ok(Self {
            fluid: CodeTotal::read(&directory.join("fluid.jsonl"))?,
            solid: CodeTotal::read(&directory.join("solid.jsonl"))?,
            run_seconds,
        })
    }

    /// Relative difference between the energy that left the gas and the energy that entered the wall.
    pub fn interface_error(&self) -> f64 {
        let (left, entered) = (self.fluid.energy_interface, self.solid.energy_interface);
        (left - entered).abs() / left.abs().max(f64::MIN_POSITIVE)
    }

    /// Everything that must be the same bits in two runs that ought to agree.
    pub fn checksums(&self) -> [&str; 4] {
        [
            &self.fluid.field_checksum,
            &self.solid.field_checksum,
            &self.fluid.interface_checksum,
            &self.solid.interface_checksum,
        ]
    }

    /// User and system time of all ranks of both codes, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.fluid.cpu_seconds + self.solid.cpu_seconds
    }
}
