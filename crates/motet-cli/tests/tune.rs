//! `motet tune` and its profile: measured, kept, read; ignored if it is of another machine, writable by other users or malformed.

mod common;

use common::{Folder, finish, json, motet, refused};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Measurements take turns: each wants both CPUs.
static MEASURING: Mutex<()> = Mutex::new(());

fn with(profile: &Path, arguments: &[&str]) -> Command {
    let mut command = motet(arguments);
    command.env("MOTET_PROFILE", profile);
    command
}

/// Value and origin of the size from which single copy is tried: between CPUs that share a cache, or others.
fn setting(profile: &Path, near: bool) -> (String, String) {
    let (code, out, err) = finish(&mut with(profile, &["config", "--json"]));
    assert_eq!((code, err.as_str()), (0, ""), "a profile is never a problem");
    let settings = json(&out)["settings"].as_array().unwrap().clone();
    let name = if near { "single_copy_min" } else { "single_copy_min_far" };
    let row = settings.iter().find(|s| s["name"] == name).unwrap();
    (row["value"].as_str().unwrap().into(), row["from"].as_str().unwrap().into())
}

/// The line of `motet doctor` about the profile, whatever its exit code.
fn doctor(profile: &Path) -> String {
    let (_, out, _) = finish(&mut with(profile, &["doctor"]));
    out.lines().find(|l| l.contains(" profile ")).expect("a line about the profile").to_owned()
}

#[test]
fn measured_sizes_are_kept_and_used() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("SKIPPED: needs two CPUs");
        return;
    }
    let _turn = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("tune");
    let path = folder.path().join("motet/profile.toml");
    assert!(doctor(&path).starts_with("limited") && setting(&path, true) == ("0".into(), "default".into()));
    let (code, out, err) = finish(&mut with(&path, &["tune", "-n", "--json"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let report = json(&out);
    assert!(report["profile"].is_null() && !path.exists(), "a dry run writes nothing");
    assert!(report["floor"].as_f64().unwrap() > 1.0 && report["sizes"].as_array().unwrap().len() > 3);

    let (code, out, err) = finish(&mut with(&path, &["tune", "--force"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let near = out.contains("The two CPUs share a cache");
    assert!(near || out.contains("The two CPUs share no cache"), "{out}");
    assert!(out.contains("single copy from ") && out.contains(&format!("kept in {}", path.display())), "{out}");
    assert!(doctor(&path).starts_with("ok"));
    assert!(report["permitted"] != true || setting(&path, !near) == ("0".into(), "default".into()));
    let (value, from) = setting(&path, near);
    if report["permitted"] == true {
        assert!(value != "0" && from == format!("profile {}", path.display()), "{value} {from}");
    } else {
        assert_eq!((value.as_str(), from.as_str()), ("0", "default"), "nothing was measured");
    }
    // With both cases measured `--once` has nothing to do, however near the two CPUs are.
    if report["permitted"] == true {
        let mut text = std::fs::read_to_string(&path).unwrap();
        text += &format!("{} = 12288\n", if near { "single_copy_min_far" } else { "single_copy_min" });
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    let (code, out, _) = finish(&mut with(&path, &["tune", "--once"]));
    assert!(code == 0 && out.starts_with(&path.display().to_string()), "{out}");
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written, "once is once");

    // What the user sets wins.
    let (_, out, _) = finish(with(&path, &["config", "--json"]).env("MOTET_SINGLE_COPY_MIN", "3MiB"));
    assert!(out.contains("environment variable MOTET_SINGLE_COPY_MIN"), "{out}");
}

#[test]
fn profile_that_cannot_be_used_is_ignored() {
    let folder = Folder::new("ignored-profile");
    let foreign = "format = 2\nprocessor = \"another\"\ncpus = 1000\nkernel = \"1\"\nsingle_copy_min = 4096\n";
    for (name, text, mode, why) in [
        ("foreign", foreign, 0o600, "measured on another machine"),
        ("older", "format = 1\nsingle_copy_min = 4096\n", 0o600, "has format 1, this version of Motet reads format 2"),
        ("garbage", "\u{1}][", 0o600, "profile"),
        ("empty", "", 0o600, "has no format"),
        ("open", foreign, 0o666, "other users can write it"),
    ] {
        let path = folder.file(name, text, mode);
        assert_eq!(setting(&path, true), ("0".into(), "default".into()), "{name}");
        let line = doctor(&path);
        assert!(line.starts_with("limited") && line.contains(why), "{line}");
        let folder = Folder::new("ignored-libraries");
        let mut command = with(&path, &["run", "-v", "--", "true"]);
        let (code, _, err) = finish(command.env("MOTET_LIBDIR", folder.libraries()));
        assert!(code == 0 && err.contains("is not used: "), "{err}");
        let (_, _, err) = finish(with(&path, &["run", "--", "true"]).env("MOTET_LIBDIR", folder.path()));
        assert_eq!(err, "", "silent unless asked");
    }
}

#[test]
fn unwritable_profile_fails_in_one_line() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("SKIPPED: needs two CPUs");
        return;
    }
    let _turn = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let (code, out, err) = finish(&mut with(Path::new("/proc/motet/profile.toml"), &["tune", "-f"]));
    assert!(code == 1 && out.contains("single copy from "), "the measured sizes are shown: {out}");
    assert!(err.starts_with("motet: cannot write /proc/motet/profile.toml") && err.lines().count() == 1, "{err}");
    refused(&mut motet(["tune", "--nonsense"]), 2);
}
