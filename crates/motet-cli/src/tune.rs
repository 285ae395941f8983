//! `motet tune`: measures the sizes from which single copy pays, and keeps them in the profile of this machine.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use motet_bench::tune::{self, Measured};
use motet_config::Environment;
use motet_config::profile::{self, Machine, Profile, ProfileLookup};
use serde::Serialize;

use crate::exit_error::{FAILED, Failure, Outcome};
use crate::output;

/// Measure this machine, about two seconds, and keep the sizes in its profile
///
/// The profile has the size from which large payload is copied once instead of through a ring, and the size from which both
/// sides make that copy together. The first size differs between CPUs that share a cache and CPUs that do not, which may change
/// from one minute to the next on a virtual machine: the present case is measured, and the size of the other case is kept.
/// Every process under Motet reads the profile when it starts; settings override it. The profile of root is for all
/// users (/var/cache/motet/profile.toml), other users have their own (~/.cache/motet/profile.toml).
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// Do nothing if a valid profile has the size for the present case of the CPUs
    #[arg(long)]
    once: bool,

    /// Keep the sizes even if the measurements vary too much
    #[arg(short, long)]
    force: bool,

    /// Measure and print, but write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct TuneReport {
    profile: Option<PathBuf>,
    #[serde(flatten)]
    measured: Measured,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let environment = Environment::of_this_process();
    let before = environment.load().profile;
    if arguments.once
        && let ProfileLookup::Valid { path, profile } = &before
        && is_done(profile, tune::is_near)
    {
        output::text(&format!("{}: {}\n", path.display(), describe(profile)))?;
        return Ok(0);
    }
    let measured = tune::measure(&["bench"]).map_err(|e| Failure::new(FAILED, format!("cannot measure: {e:#}")))?;
    let before = if let ProfileLookup::Valid { profile, .. } = &before { Some(profile) } else { None };
    let profile = merge(before, &measured);
    let notes = measured.lines();
    let keep = !arguments.dry_run && (measured.steady || arguments.force);
    let place = if keep { environment.profiles().into_iter().next() } else { None };
    let written = place.as_ref().map(|path| profile::write(path, &profile.render(&notes)));
    let summary = describe(&profile);
    let report = TuneReport { profile: place.clone().filter(|_| matches!(written, Some(Ok(())))), measured };
    if json {
        output::json(&report)?;
    } else {
        let mut text = notes.iter().map(|line| format!("{line}\n")).collect::<String>();
        if !report.measured.permitted {
            text += "The kernel does not let a process copy from another here; large payload goes through the ring.\n";
        }
        text += &format!("The two CPUs {}", if report.measured.near { "share a cache" } else { "share no cache" });
        text += &format!(" (floor {:.0} ns); ", report.measured.floor);
        text += match (report.measured.permitted, before.and_then(|b| other(b, report.measured.near))) {
            (false, _) => "no size is kept.\n",
            (true, Some(_)) => "the size for the other case is kept.\n",
            (true, None) => "the other case has the default until it is measured.\n",
        };
        if report.measured.moved {
            text += "The CPUs changed between these cases during the measurement.\n";
        } else if !report.measured.steady {
            text += "The measurements vary: other programs were running.\n";
        }
        text += &format!("{summary}; measured in {:.1} s\n", report.measured.seconds);
        text.extend(report.profile.iter().map(|path| format!("kept in {}\n", path.display())));
        output::text(&text)?;
    }
    match (place, written) {
        (Some(path), Some(Err(e))) => Err(not_kept(&path, &e)),
        (None, _) if !keep && !arguments.dry_run => {
            let what = "the measurements vary too much, so the defaults hold; run it again when the machine is less busy, or add --force";
            Err(Failure::new(FAILED, what))
        }
        (None, _) if keep => Err(Failure::new(
            FAILED,
            "MOTET_PROFILE is /dev/null, so no profile is written and the defaults hold; unset it to keep one",
        )),
        _ => Ok(0),
    }
}

fn not_kept(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FAILED, format!("cannot write {}: {error}; the defaults hold", path.display()))
}

/// Whether a profile has the size for the present case of the CPUs. A profile without sizes was measured where single copy is forbidden.
fn is_done(profile: &Profile, is_near: impl FnOnce() -> Option<bool>) -> bool {
    match (profile.single_copy_min, profile.single_copy_min_far) {
        (Some(_), Some(_)) | (None, None) => true,
        (near, _) => is_near().is_none_or(|is_near| is_near == near.is_some()),
    }
}

/// The size of the case that was not measured.
fn other(profile: &Profile, near: bool) -> Option<u64> {
    if near { profile.single_copy_min_far } else { profile.single_copy_min }
}

/// The measured sizes, with the size of the other case from the profile `before`.
fn merge(before: Option<&Profile>, measured: &Measured) -> Profile {
    let other = before.filter(|_| measured.permitted).and_then(|b| other(b, measured.near));
    let (single_copy_min, single_copy_min_far) =
        if measured.near { (measured.single_copy_min, other) } else { (other, measured.single_copy_min) };
    Profile {
        machine: Machine::here(),
        measured: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        floor: Some(measured.floor.round() as u64),
        single_copy_min,
        single_copy_min_far,
        half_copy_min: measured.half_copy_min,
    }
}

/// The sizes of a profile as text.
pub fn describe(profile: &Profile) -> String {
    let size = |n: Option<u64>| match n {
        None => "the default size".into(),
        Some(n) if n >= 1 << 40 => "no size".into(),
        Some(n) => format!("{} KiB", n >> 10),
    };
    let floor = profile.floor.map_or(String::new(), |ns| format!(", floor {ns} ns"));
    format!(
        "single copy from {}, from {} between CPUs that share no cache, by both sides from {}{floor}",
        size(profile.single_copy_min),
        size(profile.single_copy_min_far),
        size(profile.half_copy_min)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(near: bool, permitted: bool) -> Measured {
        let min = permitted.then_some(1 << 20);
        Measured {
            floor: if near { 50.0 } else { 230.0 },
            near,
            moved: false,
            sizes: Vec::new(),
            permitted,
            steady: true,
            single_copy_min: min,
            half_copy_min: min,
            seconds: 1.0,
        }
    }

    fn sizes(profile: &Profile) -> (Option<u64>, Option<u64>) {
        (profile.single_copy_min, profile.single_copy_min_far)
    }

    #[test]
    fn only_the_measured_case_is_replaced() {
        let first = merge(None, &measured(true, true));
        assert_eq!(sizes(&first), (Some(1 << 20), None));
        let before = Profile { single_copy_min: Some(4 << 20), ..first };
        let both = merge(Some(&before), &measured(false, true));
        assert_eq!(sizes(&both), (Some(4 << 20), Some(1 << 20)));
        let before = Profile { single_copy_min_far: Some(256 << 10), ..both };
        assert_eq!(sizes(&merge(Some(&before), &measured(true, true))), (Some(1 << 20), Some(256 << 10)));
        assert_eq!(sizes(&merge(Some(&before), &measured(true, false))), (None, None));
    }

    #[test]
    fn tune_once_skips_cases_already_measured() {
        let near = merge(None, &measured(true, true));
        assert!(is_done(&near, || Some(true)) && !is_done(&near, || Some(false)));
        assert!(is_done(&near, || None));
        let far = merge(None, &measured(false, true));
        assert!(!is_done(&far, || Some(true)) && is_done(&far, || Some(false)));
        for profile in [merge(Some(&near), &measured(false, true)), merge(None, &measured(false, false))] {
            assert!(is_done(&profile, || panic!("nothing to find out")));
        }
    }
}
