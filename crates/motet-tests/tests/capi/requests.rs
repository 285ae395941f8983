//! motet_rsr.h: remote service requests.

use motet_tests::native::Native;

#[test]
fn request_calls_match_their_documentation() {
    let Some(program) = Native::compile("cc", "tests/rsr/calls.c") else { return };
    assert_eq!(program.run(&[]), "all calls did what they should\n");
}
