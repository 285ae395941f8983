//! What a client of an NBD server sends: a handshake, then headers of requests.

use motet_nbd::blocks::{Blocks, Extent, Zeroing};
use motet_nbd::negotiation::{Export, negotiate};
use motet_nbd::wire::{MAX_PAYLOAD_BYTES, REQUEST_HEADER_BYTES, Request};
use std::io::{Read, Result, Write};
use std::sync::Arc;

/// Bytes of the disk.
const SIZE: u64 = 1 << 30;
/// The longest reply to one option, but for its end: more than the names and the contexts that exist.
const MAX_REPLY_BYTES: usize = 512;

/// A disk of which only the size is asked.
struct Disk;

impl Blocks for Disk {
    fn size(&self) -> Result<u64> {
        Ok(SIZE)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
        unreachable!("the handshake reads nothing")
    }
    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        unreachable!("the handshake writes nothing")
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn zero(&self, _: u64, _: u64, _: Zeroing) -> Result<()> {
        unreachable!("the handshake writes nothing")
    }
    fn trim(&self, _: u64, _: u64) -> Result<()> {
        unreachable!("the handshake writes nothing")
    }
    fn status(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>> {
        unreachable!("the handshake asks for no extents")
    }
}

/// A client that sends the input.
struct Stream<'a> {
    input: &'a [u8],
    answered: usize,
    writes: usize,
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.answered += bytes.len();
        self.writes += 1;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The handshake, and the headers of requests.
pub fn run(input: &[u8]) {
    let export = Export { name: "disk".to_owned(), blocks: Arc::new(Disk) };
    let mut stream = Stream { input, answered: 0, writes: 0 };
    let agreed = negotiate(&mut stream, &export);
    assert!(stream.answered <= stream.writes * MAX_REPLY_BYTES, "short questions have short answers");
    let Ok(Some(agreed)) = agreed else { return };
    assert_eq!(agreed.limits.size, SIZE);
    assert!(!agreed.limits.has_status || agreed.structured);
    while let Some((header, rest)) = stream.input.split_first_chunk::<REQUEST_HEADER_BYTES>() {
        stream.input = rest;
        let Some(request) = Request::parse(header) else { return };
        if request.check(&agreed.limits).is_ok() {
            let end = request.offset.checked_add(u64::from(request.length));
            assert!(end.is_some_and(|end| end <= SIZE), "within the disk: {request:?}");
        }
        let Some(payload) = request.payload() else { return };
        assert!(payload <= MAX_PAYLOAD_BYTES as usize);
        stream.input = stream.input.get(payload..).unwrap_or(&[]);
    }
}

/// Handshakes of old and new clients, with requests behind them.
pub fn seeds() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap_or(0).to_be_bytes();
        [b"IHAVEOPT", &number.to_be_bytes()[..], &length, data].concat()
    };
    let request = |kind: u16, offset: u64, length: u32| {
        let numbers = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0], &kind.to_be_bytes(), &[7; 8]].concat();
        [&numbers[..], &offset.to_be_bytes(), &length.to_be_bytes()].concat()
    };
    let requests: Vec<u8> = (0..9).flat_map(|kind| request(kind, 4096, if kind == 1 { 0 } else { 512 })).collect();
    let query = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    vec![
        [&[0; 4][..], &option(1, b"disk"), &requests].concat(),
        [&[0, 0, 0, 3][..], &option(8, b""), &option(10, query), &option(7, b"\0\0\0\x04disk\0\0"), &requests].concat(),
        [&[0, 0, 0, 3][..], &option(3, b""), &option(6, b"\0\0\0\0\0\x02\0\x01\0\x03"), &option(2, b"")].concat(),
        [&[0, 0, 0, 1][..], &option(9, b"\0\0\0\0\0\0\0\0"), &option(5, b""), &option(7, b"\0\0\0\0\0\0")].concat(),
    ]
}
