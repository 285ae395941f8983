//! `motet tune`: measures from which sizes on single copy pays here, and keeps that in the profile of this machine.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use motet_bench::tune::{self, Measured};
use motet_config::Surroundings;
use motet_config::profile::{self, Found, Machine, Profile};
use serde::Serialize;

use crate::failure::{FAILED, Failure, Outcome};
use crate::output;

/// Measure this machine, about two seconds, and keep the sizes in its profile
///
/// The profile says from which size on large payload is copied once instead of through a ring, and from which size on both
/// sides make that copy together. Every process under Motet reads it when it starts; settings win over it. Root's is for all
/// users (/var/cache/motet/profile.toml), anybody else's is their own (~/.cache/motet/profile.toml).
#[derive(Debug, Args)]
#[command(after_help = crate::failure::AFTER_HELP)]
pub struct Arguments {
    /// Do nothing when there is a valid profile already
    #[arg(long)]
    once: bool,

    /// Keep the sizes even when the figures vary too much to be trusted
    #[arg(short, long)]
    force: bool,

    /// Measure and print, but write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Report {
    profile: Option<PathBuf>,
    #[serde(flatten)]
    measured: Measured,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let surroundings = Surroundings::of_this_process();
    if arguments.once
        && let Found::Valid { path, profile } = surroundings.load().profile
    {
        output::text(&format!("{}: {}\n", path.display(), describe(&profile)))?;
        return Ok(0);
    }
    let measured = tune::measure(&["bench"]).map_err(|e| Failure::new(FAILED, format!("cannot measure: {e:#}")))?;
    let profile = Profile {
        machine: Machine::here(),
        measured: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        floor: Some(measured.floor.round() as u64),
        single_copy_min: measured.single_copy_min,
        half_copy_min: measured.half_copy_min,
    };
    let notes = measured.lines();
    let keep = !arguments.dry_run && (measured.steady || arguments.force);
    let place = if keep { surroundings.profiles().into_iter().next() } else { None };
    let written = place.as_ref().map(|path| profile::write(path, &profile.render(&notes)));
    let summary = describe(&profile);
    let report = Report { profile: place.clone().filter(|_| matches!(written, Some(Ok(())))), measured };
    if json {
        output::json(&report)?;
    } else {
        let mut text = notes.iter().map(|line| format!("{line}\n")).collect::<String>();
        if !report.measured.permitted {
            text +=
                "The kernel does not let one process copy from another here; large payload goes through the ring.\n";
        }
        if !report.measured.steady {
            text += "The figures vary: other programs ran beside.\n";
        }
        text += &format!("{summary}; measured in {:.1} s\n", report.measured.seconds);
        text.extend(report.profile.iter().map(|path| format!("kept in {}\n", path.display())));
        output::text(&text)?;
    }
    match (place, written) {
        (Some(path), Some(Err(e))) => Err(not_kept(&path, &e)),
        (None, _) if !keep && !arguments.dry_run => {
            let what = "the figures vary too much to be kept, the defaults hold; try again when less runs here, or add --force";
            Err(Failure::new(FAILED, what))
        }
        (None, _) if keep => {
            Err(Failure::new(FAILED, "the profile has no place: MOTET_PROFILE is /dev/null; the defaults hold"))
        }
        _ => Ok(0),
    }
}

fn not_kept(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FAILED, format!("cannot write {}: {error}; the defaults hold", path.display()))
}

/// What a profile says, in words.
pub fn describe(profile: &Profile) -> String {
    let size = |n: Option<u64>| match n {
        None => "the default size".into(),
        Some(n) if n >= 1 << 40 => "no size".into(),
        Some(n) => format!("{} KiB", n >> 10),
    };
    let floor = profile.floor.map_or(String::new(), |ns| format!(", floor {ns} ns"));
    format!(
        "single copy from {}, by both sides from {}{floor}",
        size(profile.single_copy_min),
        size(profile.half_copy_min)
    )
}
