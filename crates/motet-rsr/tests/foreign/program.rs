//! A program for a machine of another byte order: writes a buffer to standard output, and reads one from standard input. It is compiled with the files
//! of buffers alone, without the rest of the crate (`tests/big_endian.rs`).
#![allow(dead_code)]

#[path = "../../src/buffer.rs"]
mod buffer;
#[path = "../../src/format.rs"]
mod format;
#[path = "values.rs"]
mod values;

use buffer::{Buffer, Reader};
use format::Format;
use std::io::{Read, Write};

fn main() {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).unwrap();
    let format = Format::of_tag(bytes[0]).unwrap();
    assert!(format.is_foreign());
    let mut reader = Reader::new(&bytes[1..], format);
    check!(reader);
    let mut buffer = Buffer::new();
    fill!(buffer);
    let mut out = std::io::stdout().lock();
    out.write_all(&[Format::HERE.tag()]).unwrap();
    out.write_all(&buffer.to_vec()).unwrap();
}
