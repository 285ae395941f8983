//! Manual pages and completions.

mod common;

use std::process::Command;

use common::{Folder, finish, motet, refused};

#[test]
fn manual_has_every_setting_and_every_subcommand() {
    let folder = Folder::new("man");
    let (code, out, err) = finish(motet(["generate", "man"]).arg(folder.path()));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let main = std::fs::read_to_string(folder.path().join("motet.1")).unwrap();
    for setting in motet_config::SETTINGS {
        assert!(main.contains(setting.env), "{}", setting.env);
    }
    for name in [
        "run", "ps", "top", "why", "up", "groups", "load", "start", "stop", "unload", "modules", "node", "nbd", "down",
        "bench", "tune", "doctor", "config",
    ] {
        assert!(main.contains(&format!("motet\\-{name}(1)")), "{name}");
        let page = std::fs::read_to_string(folder.path().join(format!("motet-{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH motet-{name} 1")) && page.contains("EXIT STATUS"), "{name}");
    }
    let bench = std::fs::read_to_string(folder.path().join("motet-bench.1")).unwrap();
    assert!(folder.path().join("motet-bench-messages.1").exists());
    let tool = std::fs::read_to_string(folder.path().join("motet-bench-corba.1")).unwrap();
    assert!(bench.contains("motet\\-bench\\-corba(1)"), "{bench}");
    assert!(tool.contains(".TH motet-bench-corba 1") && tool.contains("EXIT STATUS"), "{tool}");
    assert!(!main.contains("generate") && !main.contains("probe") && !main.contains("gatekeeper(1)"));
}

#[test]
fn completions_are_made_for_three_shells() {
    let folder = Folder::new("completions");
    assert_eq!(finish(motet(["generate", "completions"]).arg(folder.path())).0, 0);
    for name in ["motet.bash", "_motet", "motet.fish"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("doctor") && !text.contains("probe"), "{name}");
    }
    let checked = Command::new("bash").arg("-n").arg(folder.path().join("motet.bash")).status();
    assert!(checked.expect("bash is installed").success());
}

#[test]
fn folder_that_cannot_be_made_fails_in_one_line() {
    refused(&mut motet(["generate", "man", "/proc/no/such"]), 1);
}
