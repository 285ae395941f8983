//! Every function of libc that takes a path, and what it says about paths that no program should pass.

use crate::{PREFIX, finish, mapped, real, same};
use motet_tests::{Built, folder};

#[test]
fn every_call_of_libc_is_mapped() {
    let program = Built::program("path_calls", &folder("files-programs"), &[]);
    let printed = same("calls", &[program.to_str().expect("UTF-8")]);
    assert!(printed.contains("fts_close(walk): done") && printed.contains("Bad address"), "{printed}");
}

/// The entries of MOTET_FILES that make no sense are left out, and the others work.
#[test]
fn nonsense_in_the_variable_is_left_out() {
    let (_real, real) = real("nonsense");
    std::fs::write(real.join("file"), "x\n").expect("a file");
    let good = format!("{PREFIX}={}", real.display());
    let long = "/a".repeat(4000);
    let beneath = format!("{0}={0}/real", real.parent().expect("a parent").display());
    let wrong = [
        "",
        ":",
        "=",
        "/=",
        "x=y",
        "/",
        "/x",
        "/x=",
        "/x=y",
        "/../x=/tmp",
        "/=/tmp",
        "/x=/tmp=rw",
        "/x=/tmp\\",
        "\\",
        "::::",
        &format!("/x={long}"),
        &format!("{long}=/tmp"),
        &beneath,
    ];
    for entry in wrong {
        for mappings in [format!("{entry}:{good}"), format!("{good}:{entry}")] {
            // An entry that ends with a backslash takes the colon that follows.
            let wanted = if mappings.contains("\\:") { Some(1) } else { Some(0) };
            let (status, ..) = finish(mapped(&["cat", &format!("{PREFIX}/file")], &mappings));
            assert_eq!(status, wanted, "{mappings}");
        }
        let (status, ..) = finish(mapped(&["ls", "/"], entry));
        assert_eq!(status, Some(0), "{entry}");
    }
}

#[test]
fn special_bytes_of_names_are_escaped() {
    let (_real, real) = real("escaped");
    std::fs::create_dir(real.join(r"a:b=c\d")).expect("a folder");
    std::fs::write(real.join(r"a:b=c\d/file"), "x\n").expect("a file");
    let mappings = format!(r"{PREFIX}\:1={}/a\:b\=c\\d", real.display());
    let (status, printed, errors) = finish(mapped(&["cat", &format!("{PREFIX}:1/file")], &mappings));
    assert_eq!((status, printed.as_str()), (Some(0), "x\n"), "{errors}");
}
