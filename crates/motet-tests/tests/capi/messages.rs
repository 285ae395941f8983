//! Messages through `motet.h`: every call, from C, with valid and invalid arguments.

use motet_tests::native::Native;

#[test]
fn every_call_matches_its_documentation() {
    if let Some(program) = Native::compile("cc", "tests/messages/calls.c") {
        assert_eq!(program.run(&[]), "every call did what it says\n");
    }
}

#[test]
fn invalid_calls_and_link_ends_are_reported() {
    if let Some(program) = Native::compile("cc", "tests/messages/invalid_calls.c") {
        assert_eq!(program.run(&[]), "every end was reported\n");
    }
}

#[test]
fn region_calls_match_their_documentation() {
    if let Some(program) = Native::compile("cc", "tests/messages/regions.c") {
        assert_eq!(program.run(&[]), "regions are what they say\n");
    }
}

#[test]
fn file_region_calls_match_their_documentation() {
    if let Some(program) = Native::compile("cc", "tests/messages/files.c") {
        assert_eq!(program.run(&[]), "files are regions\n");
    }
}

#[test]
fn loaned_messages_are_released() {
    if let Some(program) = Native::compile("cc", "tests/messages/loans.c") {
        assert_eq!(program.run(&[]), "loans come back\n");
    }
}

#[test]
fn port_calls_match_the_node_calls() {
    if let Some(program) = Native::compile("cc", "tests/messages/port.c") {
        assert_eq!(program.run(&[]), "ports carry\n");
    }
}

/// Instructions per message at both ends, the program's own included (25 to 100), in a release build. Each budget is 5 % above the count.
#[test]
fn messages_stay_within_instruction_budgets() {
    const COUNT: u64 = 2560;
    const BUDGETS: [(&str, &str, &[&str], u64, u64); 7] = [
        ("blocking", "8", &[], 2, 1080),
        ("blocking", "64", &[], 2, 1440),
        ("blocking", "1024", &[], 2, 1680),
        ("headers", "8", &["port"], 2, 1210),
        ("early", "8", &["port"], 2, 2560),
        ("window", "8", &["port"], 1, 980),
        ("poll", "8", &["port"], 1, 180),
    ];
    let Some(program) = Native::compile("cc", "tests/bench/posted.c") else { return };
    let mut beyond = Vec::new();
    for (what, size, more, each, budget) in BUDGETS {
        let count = COUNT.to_string();
        let arguments = [&[what, size, &count], more].concat();
        let Some(over) = program.beyond_budget("measured", &arguments, each * COUNT, budget) else { return };
        beyond.extend(over);
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

#[test]
fn nodes_and_regions_fail_without_random_numbers() {
    if let Some(program) = Native::compile("cc", "tests/messages/random.c") {
        assert_eq!(program.run(&[]), "nothing goes without random numbers\n");
    }
}

/// `MOTET_FUZZ_ROUNDS=n` makes n calls with each seed.
#[test]
fn invalid_handles_do_no_harm() {
    let Some(program) = Native::compile("cc", "tests/messages/handles.c") else { return };
    let calls = std::env::var("MOTET_FUZZ_ROUNDS").unwrap_or_else(|_| "20000".to_owned());
    for seed in 1..=8 {
        let printed = program.run(&[&seed.to_string(), &calls]);
        assert!(printed.starts_with(&format!("{calls} calls: ")), "{printed}");
    }
}
