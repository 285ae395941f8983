//! Messages through `motet.h`: every call, from C, used well and badly.

use motet_tests::native::Native;

#[test]
fn every_call_does_what_it_says() {
    if let Some(program) = Native::compile("cc", "tests/messages/calls.c") {
        assert_eq!(program.run(&[]), "every call did what it says\n");
    }
}

#[test]
fn every_end_is_told() {
    if let Some(program) = Native::compile("cc", "tests/messages/ends.c") {
        assert_eq!(program.run(&[]), "every end was told\n");
    }
}

#[test]
fn regions_are_what_they_say() {
    if let Some(program) = Native::compile("cc", "tests/messages/regions.c") {
        assert_eq!(program.run(&[]), "regions are what they say\n");
    }
}

#[test]
fn files_are_regions() {
    if let Some(program) = Native::compile("cc", "tests/messages/files.c") {
        assert_eq!(program.run(&[]), "files are regions\n");
    }
}

#[test]
fn loans_come_back() {
    if let Some(program) = Native::compile("cc", "tests/messages/loans.c") {
        assert_eq!(program.run(&[]), "loans come back\n");
    }
}

#[test]
fn ports_carry_what_the_calls_they_stand_for_do() {
    if let Some(program) = Native::compile("cc", "tests/messages/port.c") {
        assert_eq!(program.run(&[]), "ports carry\n");
    }
}

#[test]
fn nothing_goes_without_random_numbers() {
    if let Some(program) = Native::compile("cc", "tests/messages/random.c") {
        assert_eq!(program.run(&[]), "nothing goes without random numbers\n");
    }
}

/// `MOTET_FUZZ_ROUNDS=n` makes n calls with each seed.
#[test]
fn made_up_handles_do_no_harm() {
    let Some(program) = Native::compile("cc", "tests/messages/handles.c") else { return };
    let calls = std::env::var("MOTET_FUZZ_ROUNDS").unwrap_or_else(|_| "20000".to_owned());
    for seed in 1..=8 {
        let printed = program.run(&[&seed.to_string(), &calls]);
        assert!(printed.starts_with(&format!("{calls} calls: ")), "{printed}");
    }
}
