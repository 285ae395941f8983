//! The master is killed while the study runs, and workers are: nothing is lost.
#![forbid(unsafe_code)]

use std::process::Command;

#[test]
fn nothing_is_lost_when_masters_are_killed() {
    for (kills, workers) in [("1", "2"), ("4", "3")] {
        let words = ["run", "--points", "200", "--workers", workers, "--kills", kills];
        let ran = Command::new(env!("CARGO_BIN_EXE_farm")).args(words).output().unwrap();
        let said = [String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr)].concat();
        assert!(ran.status.success(), "{said}");
        assert!(said.contains("200 points in"), "{said}");
        assert_eq!(said.matches("the successor leads").count().to_string(), kills, "{said}");
    }
}

#[test]
fn a_study_without_accidents_ends() {
    let ran =
        Command::new(env!("CARGO_BIN_EXE_farm")).args(["run", "--points", "50", "--kills", "0"]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
