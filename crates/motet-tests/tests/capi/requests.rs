//! motet_rsr.h: remote service requests.

use motet_tests::native::Native;

#[test]
fn request_calls_match_their_documentation() {
    let Some(program) = Native::compile("cc", "tests/rsr/calls.c") else { return };
    assert_eq!(program.run(&[]), "all calls did what they should\n");
}

/// Instructions of one empty request through `motet_rsr.h` at both ends, and of the reply to an empty call at its sender, in a release build. Each
/// budget is 5 % above the count.
#[test]
fn requests_stay_within_instruction_budgets() {
    const COUNT: u64 = 1024;
    const BUDGETS: [(&str, &str, u64, u64); 2] =
        [("request", "measured", 2, 2720), ("reply", "measured_reply", 1, 420)];
    let Some(program) = Native::compile("cc", "tests/rsr/instructions.c") else { return };
    let mut beyond = Vec::new();
    for (what, function, each, budget) in BUDGETS {
        let arguments = [what, &COUNT.to_string()];
        let Some(over) = program.beyond_budget(function, &arguments, each * COUNT, budget) else { return };
        beyond.extend(over);
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}
