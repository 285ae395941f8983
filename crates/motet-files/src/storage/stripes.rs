//! Files whose content is striped over several exports. A file of this export has its layout in an extended attribute, its first unit, and its whole length.

use super::descriptors::proc_path;
use crate::Result;
use crate::protocol::{Layout, MAX_LAYOUT_BYTES, MAX_STRIPES, append};
use rustix::fs::{FileType, XattrFlags, fgetxattr, fsetxattr, fstat, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::io::{Error, ErrorKind};
use std::os::fd::BorrowedFd;

/// The extended attribute with the layout. Clients neither see nor change it.
pub const LAYOUT_XATTR: &[u8] = b"user.motet.layout";
/// The extended attribute by which an export is tested.
const TEST_XATTR: &[u8] = b"user.motet.test";

/// How new files of an export are striped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Striping {
    /// Bytes of a unit.
    pub unit: u32,
    /// The other exports, as `NAME` or `HOST:NAME`.
    pub others: Vec<String>,
}

impl Striping {
    /// Whether files beneath `directory` can be striped this way.
    pub fn check(&self, directory: BorrowedFd<'_>) -> Result<()> {
        let refused = |why: String| Err(Error::new(ErrorKind::InvalidInput, why));
        let layout = self.layout([0; 16]);
        if layout.unit < Layout::MIN_UNIT_BYTES {
            return refused(format!("a stripe unit has at least {} bytes", Layout::MIN_UNIT_BYTES));
        }
        let mut bytes = Vec::new();
        append(&layout, &mut bytes);
        if !layout.is_usable() || bytes.len() > MAX_LAYOUT_BYTES {
            return refused(format!("files are striped over 2 to {MAX_STRIPES} exports, NAME or HOST:NAME"));
        }
        let path = proc_path(directory);
        match setxattr(&path, TEST_XATTR, b"", XattrFlags::empty()) {
            Ok(()) => Ok(removexattr(&path, TEST_XATTR)?),
            Err(Errno::OPNOTSUPP) => refused("the file system has no extended attributes of users".to_owned()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a new file its layout.
    pub fn give(&self, file: BorrowedFd<'_>) -> Result<Layout> {
        let mut id = [0; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
        let layout = self.layout(id);
        let mut bytes = Vec::new();
        append(&layout, &mut bytes);
        fsetxattr(file, LAYOUT_XATTR, &bytes, XattrFlags::CREATE)?;
        Ok(layout)
    }

    fn layout(&self, id: [u8; 16]) -> Layout {
        Layout { id, unit: self.unit, others: self.others.clone() }
    }
}

/// The layout of an open file, if it is striped. An error: it has one that cannot be read, so its content cannot be known.
pub fn layout(file: BorrowedFd<'_>) -> Result<Option<Layout>> {
    layout_by(|value| fgetxattr(file, LAYOUT_XATTR, value))
}

/// The layout of a file that is open with O_PATH.
pub fn layout_of_located(file: BorrowedFd<'_>) -> Result<Option<Layout>> {
    if FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    layout_by(|value| getxattr(proc_path(file), LAYOUT_XATTR, value))
}

fn layout_by(read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Option<Layout>> {
    let mut value = [0; MAX_LAYOUT_BYTES];
    match read(&mut value) {
        Ok(length) => Layout::parse(&value[..length]).map(Some).ok_or_else(|| Errno::IO.into()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // A longer one is none of ours.
        Err(Errno::RANGE) => Err(Errno::IO.into()),
        Err(error) => Err(error.into()),
    }
}
