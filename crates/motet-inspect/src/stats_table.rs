//! Reads tables of statistics ([`motet_wire::stats_table`]), which any process may have written and may be changing.
//!
//! Nothing is mapped. Each part is copied with `pread` and parsed by the offsets of the format's own structures, so a file with impossible
//! contents is refused at worst. What a table says is shown, and never followed.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use motet_wire::stats_table::{StatsFormat, StatsTable, TableHead};

/// Most rows that a table may have room for: the limit of MOTET_STREAMS.
const MAX_ROWS: usize = 1 << 20;
/// Rows that one `pread` copies.
const ROWS_PER_READ: usize = 256;

/// Opens the regular file behind a descriptor of another process. Never blocks.
pub fn open(link: &Path) -> io::Result<File> {
    const NONBLOCK: i32 = 0o4000;
    const NOCTTY: i32 = 0o400;
    let file = File::options().read(true).custom_flags(NONBLOCK | NOCTTY).open(link)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Reads a table: its head, and what `parse` makes of the head and of each row (with its index) in use. An error says what is wrong with the file.
pub fn read<F: StatsFormat, R>(
    file: &File,
    parse: impl Fn(Bytes<'_>, usize, Bytes<'_>) -> Option<R>,
) -> Result<(Vec<u8>, Vec<R>), String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let mut head_bytes = vec![0; size_of::<F::Head>()];
    file.read_exact_at(&mut head_bytes, 0).map_err(|_| "it is shorter than its head".to_owned())?;
    let head = Bytes(&head_bytes);
    if head.u64(offset_of!(TableHead, magic)) != F::MAGIC {
        return Err("it does not start with Motet's magic number".to_owned());
    }
    let (version, expected) = (head.u32(offset_of!(TableHead, version)), F::VERSION);
    if version != expected {
        return Err(format!(
            "it was written by another version of Motet (layout {version}, this program reads {expected})"
        ));
    }
    let [row, capacity, used] =
        [offset_of!(TableHead, row), offset_of!(TableHead, capacity), offset_of!(TableHead, used)]
            .map(|at| head.u32(at) as usize);
    let expected = StatsTable::<F>::ROW;
    if row != expected {
        return Err(format!(
            "it was written by another build of Motet (records of {row} bytes, this program reads {expected})"
        ));
    }
    if capacity > MAX_ROWS || used > capacity || StatsTable::<F>::bytes(capacity) as u64 != size {
        return Err("its head does not fit the size of the file".to_owned());
    }
    let mut rows = Vec::new();
    let mut buffer = vec![0; ROWS_PER_READ.min(used) * row];
    for first in (0..used).step_by(ROWS_PER_READ) {
        let part = &mut buffer[..ROWS_PER_READ.min(used - first) * row];
        let at = StatsTable::<F>::bytes(first) as u64;
        file.read_exact_at(part, at).map_err(|_| "it is shorter than its head says".to_owned())?;
        rows.extend((first..).zip(part.chunks_exact(row)).filter_map(|(index, row)| parse(head, index, Bytes(row))));
    }
    Ok((head_bytes, rows))
}

/// A private copy of bytes; integers beyond its end read as 0.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// The bytes from an offset on.
    pub fn from(&self, at: usize) -> Bytes<'_> {
        Bytes(self.0.get(at..).unwrap_or_default())
    }
    /// The 32-bit integer at an offset.
    pub fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }
    /// The 64-bit integer at an offset.
    pub fn u64(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use motet_wire::message::stats::NodeFormat;
    use motet_wire::stream::stats::StreamFormat;
    use rustix::fs::{MemfdFlags, memfd_create};

    /// A memfd of `size` bytes that begins with `contents`.
    pub fn file(contents: &[u8], size: u64) -> File {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(contents, 0).unwrap();
        file.set_len(size).unwrap();
        file
    }

    /// The head of a table.
    pub fn head<F: StatsFormat>(version: u32, row: u32, capacity: u32, used: u32) -> Vec<u8> {
        let mut head = F::MAGIC.to_ne_bytes().to_vec();
        for word in [version, row, capacity, used, 7, 0] {
            head.extend(word.to_ne_bytes());
        }
        head.resize(size_of::<F::Head>(), 0);
        head
    }

    fn rows<F: StatsFormat>(contents: &[u8], size: usize) -> Result<usize, String> {
        read::<F, _>(&file(contents, size as u64), |_, index, _| Some(index)).map(|(_, rows)| rows.len())
    }

    fn impossible_heads_are_refused_of<F: StatsFormat>() {
        let (row, bytes) = (StatsTable::<F>::ROW as u32, StatsTable::<F>::bytes);
        let head_of = |row, capacity, used| head::<F>(F::VERSION, row, capacity, used);
        assert!(rows::<F>(b"", 0).is_err() && rows::<F>(&head_of(row, 4, 0)[..12], 12).is_err());
        assert!(rows::<F>(&[0xff; 8192], 8192).unwrap_err().contains("magic"));
        for (head, size) in [
            (head_of(row, 4, 0), bytes(3)),
            (head_of(row, 4, 5), bytes(4)),
            (head_of(row * 2, 4, 4), bytes(4)),
            (head_of(row, u32::MAX, u32::MAX), 1 << 20),
        ] {
            assert!(rows::<F>(&head, size).is_err());
        }
        assert_eq!(rows::<F>(&head_of(row, 300, 299), bytes(300)), Ok(299));
    }

    #[test]
    fn impossible_heads_are_refused() {
        impossible_heads_are_refused_of::<StreamFormat>();
        impossible_heads_are_refused_of::<NodeFormat>();
    }

    #[test]
    fn another_layout_is_reported() {
        let row = StatsTable::<StreamFormat>::ROW as u32;
        for version in [99, 1] {
            let head = head::<StreamFormat>(version, row, 0, 0);
            assert!(
                rows::<StreamFormat>(&head, StreamFormat::HEAD).unwrap_err().contains(&format!("layout {version},"))
            );
        }
        // A build with larger rows under the same version, in a file of the right size.
        let grown = head::<StreamFormat>(StreamFormat::VERSION, row + 128, 3, 3);
        let size = StreamFormat::HEAD + 3 * (row as usize + 128);
        assert!(rows::<StreamFormat>(&grown, size).unwrap_err().contains(&format!("records of {} bytes", row + 128)));
    }
}
