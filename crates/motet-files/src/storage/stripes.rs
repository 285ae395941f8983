//! Files whose content is striped over several exports. A file of this export has its layout in an extended attribute, its first unit, and its whole length.
//!
//! A layout names the file's parts, so who can give a file a layout can read, write and remove the parts of another file. A server that may (CAP_SYS_ADMIN)
//! has layouts in an attribute that users of its host neither see nor set. Any other server has them in an attribute of users, and accepts them only in
//! files of its own user; it stripes no files of other users.

use super::descriptors::proc_path;
use crate::Result;
use crate::protocol::{Layout, MAX_LAYOUT_BYTES, MAX_STRIPES, append};
use rustix::fs::{
    FileType, MemfdFlags, XattrFlags, fgetxattr, fsetxattr, fstat, getxattr, memfd_create, removexattr, setxattr,
};
use rustix::io::Errno;
use rustix::process::getuid;
use std::io::{Error, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

/// The attribute with the layout where the server may set it.
const TRUSTED: XattrNames = XattrNames { layout: b"trusted.motet.layout", test: b"trusted.motet.test" };
/// The attribute with the layout of other servers.
const OF_USERS: XattrNames = XattrNames { layout: LAYOUT_OF_USERS, test: b"user.motet.test" };
/// The attribute with the layout that users of the host can set. Clients neither see nor change it.
pub const LAYOUT_OF_USERS: &[u8] = b"user.motet.layout";

/// The names of the extended attributes of a server.
#[derive(Debug, PartialEq, Eq)]
struct XattrNames {
    /// The one with the layout.
    layout: &'static [u8],
    /// The one by which an export is tested.
    test: &'static [u8],
}

impl XattrNames {
    /// Those of this process.
    fn own() -> &'static Self {
        static OWN: OnceLock<&XattrNames> = OnceLock::new();
        OWN.get_or_init(|| {
            let file = memfd_create("motet test", MemfdFlags::CLOEXEC);
            let set = file.and_then(|file| fsetxattr(file, TRUSTED.test, b"", XattrFlags::empty()));
            if set.is_ok() { &TRUSTED } else { &OF_USERS }
        })
    }
}

/// How new files of an export are striped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Striping {
    /// Bytes of a unit.
    pub unit: u32,
    /// The other exports, as `NAME` or `HOST:NAME`.
    pub others: Vec<String>,
}

impl Striping {
    /// Whether files beneath `directory` can be striped this way. `of_others`: also those of other users.
    pub fn check(&self, directory: BorrowedFd<'_>, of_others: bool) -> Result<()> {
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
        let own = XattrNames::own();
        if of_others && *own == OF_USERS {
            return refused("striping the files of several users needs CAP_SYS_ADMIN".to_owned());
        }
        let path = proc_path(directory);
        match setxattr(&path, own.test, b"", XattrFlags::empty()) {
            Ok(()) => Ok(removexattr(&path, own.test)?),
            Err(Errno::OPNOTSUPP) => {
                let kind = String::from_utf8_lossy(own.test.split(|&byte| byte == b'.').next().unwrap_or_default());
                refused(format!("the file system has no extended attributes {kind}.*"))
            }
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
        fsetxattr(file, XattrNames::own().layout, &bytes, XattrFlags::CREATE)?;
        Ok(layout)
    }

    fn layout(&self, id: [u8; 16]) -> Layout {
        Layout { id, unit: self.unit, others: self.others.clone() }
    }
}

/// The layout of an open file, if it is striped. An error: it has one that cannot be used, so its content cannot be known.
pub fn layout(file: BorrowedFd<'_>) -> Result<Option<Layout>> {
    layout_by(file, |name, value| fgetxattr(file, name, value))
}

/// The layout of a file that is open with O_PATH.
pub fn layout_of_located(file: BorrowedFd<'_>) -> Result<Option<Layout>> {
    if FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    layout_by(file, |name, value| getxattr(proc_path(file), name, value))
}

fn layout_by(
    file: BorrowedFd<'_>,
    read: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> Result<Option<Layout>> {
    let mut value = [0; MAX_LAYOUT_BYTES];
    let mut read = |name| match read(name, &mut value) {
        Ok(length) => Layout::parse(&value[..length]).map(Some).ok_or(Errno::IO),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // A longer one is not of Motet.
        Err(Errno::RANGE) => Err(Errno::IO),
        Err(error) => Err(error),
    };
    if *XattrNames::own() == TRUSTED
        && let Some(layout) = read(TRUSTED.layout)?
    {
        return Ok(Some(layout));
    }
    match read(OF_USERS.layout)? {
        // Anyone who may write the file can have set it.
        Some(_) if *XattrNames::own() == TRUSTED || fstat(file)?.st_uid != getuid().as_raw() => Err(Errno::IO.into()),
        found => Ok(found),
    }
}
