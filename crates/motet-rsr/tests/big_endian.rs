//! Data of a machine with the other byte order, and with a `long` of another size: from a program for s390x that qemu runs, and made by hand.
#![forbid(unsafe_code)]

#[path = "foreign/values.rs"]
mod values;

use motet_rsr::{Buffer, Format, Reader};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const TARGET: &str = "s390x-unknown-linux-gnu";
const LINKER: &str = "s390x-linux-gnu-gcc";

/// Compiles the program of `tests/foreign`; `None`, with a message, if this machine cannot.
fn foreign_program(folder: &Path) -> Option<std::path::PathBuf> {
    let is_there = |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there(LINKER) || !is_there("qemu-s390x-static") {
        eprintln!(
            "SKIPPED: no {LINKER} and qemu-s390x-static (packages gcc-s390x-linux-gnu, libc6-dev-s390x-cross, qemu-user-static)"
        );
        return None;
    }
    let program = folder.join("foreign");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/program.rs");
    let mut compile = Command::new("rustc");
    compile.args([
        "--edition",
        "2024",
        "--target",
        TARGET,
        "-C",
        &format!("linker={LINKER}"),
        "-C",
        "target-feature=+crt-static",
    ]);
    let compiled = compile.arg("-o").arg(&program).arg(source).output().unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    if said.contains("can't find crate for `core`") || said.contains("can't find crate for `std`") {
        eprintln!("SKIPPED: the standard library for {TARGET} is not installed (rustup target add {TARGET})");
        return None;
    }
    assert!(compiled.status.success(), "{said}");
    Some(program)
}

#[test]
fn buffers_go_to_a_big_endian_machine_and_back() {
    let folder = std::env::temp_dir().join(format!("motet-rsr-foreign-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    if let Some(program) = foreign_program(&folder) {
        let mut buffer = Buffer::new();
        fill!(buffer);
        let mut command = Command::new("qemu-s390x-static");
        let mut child = command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&[Format::HERE.tag()]).unwrap();
        input.write_all(&buffer.to_vec()).unwrap();
        drop(input);
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success());
        let format = Format::of_tag(ended.stdout[0]).unwrap();
        assert_eq!((format.big_endian, format.is_foreign()), (true, true));
        let mut reader = Reader::new(&ended.stdout[1..], format);
        check!(reader);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn numbers_of_a_big_endian_machine_with_a_short_long_are_converted() {
    let format = Format { big_endian: true, long: 4 };
    assert_eq!(Format::of_tag(format.tag()), Ok(format));
    assert!(Format::of_tag(4).is_err());
    let mut bytes = vec![0x12, 0x34];
    bytes.extend(1.5f64.to_be_bytes());
    bytes.extend((-5i32).to_be_bytes()); // a long
    bytes.extend(2u64.to_be_bytes());
    bytes.extend([0x00, 0x01, 0xff, 0xfe]); // two of i16
    let mut reader = Reader::new(&bytes, format);
    assert_eq!((reader.get::<u16>(), reader.get::<f64>(), reader.get_long()), (Ok(0x1234), Ok(1.5), Ok(-5)));
    assert_eq!(reader.get_array::<i16>(), Ok(vec![1, -2]));
    assert_eq!(reader.end(), Ok(()));
}
