//! A disk that is a file of an export.

use crate::blocks::{Blocks, Extent, Transfer, Zeroing};
use motet_files::client::{Client, File};
use motet_files::protocol::{MAX_DATA_BYTES, OpenFlags};
use rustix::fs::{FallocateFlags, FileType};
use rustix::io::Errno;
use std::io::Result;

/// Zeroes, for file systems that cannot make them.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A disk that is a file of an export. Dropping it ends the connection to the server of the export.
#[derive(Debug)]
pub struct ExportedFile {
    client: Client,
    file: File,
    read_only: bool,
}

impl ExportedFile {
    /// Opens a regular file. How long a request waits for a server that is away is the client's limit.
    pub fn open(client: Client, path: &[u8], read_only: bool) -> Result<Self> {
        Self::open_with(client, path, read_only, OpenFlags::empty())
    }

    /// Opens a regular file whose content goes past the page cache of the server.
    pub fn open_past_cache(client: Client, path: &[u8], read_only: bool) -> Result<Self> {
        Self::open_with(client, path, read_only, OpenFlags::DIRECT)
    }

    fn open_with(client: Client, path: &[u8], read_only: bool, more: OpenFlags) -> Result<Self> {
        let read_only = read_only || client.is_read_only();
        let mut flags = OpenFlags::READ | more;
        flags.set(OpenFlags::WRITE, !read_only);
        let (file, attributes) = client.open_file(path, flags, 0)?;
        let opened = Self { client, file, read_only };
        match FileType::from_raw_mode(attributes.mode) {
            FileType::RegularFile => Ok(opened),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::NOTBLK.into()),
        }
    }

    fn write_zeroes(&self, mut offset: u64, mut length: u64) -> Result<()> {
        while length > 0 {
            let part = usize::try_from(length).map_or(ZEROES.len(), |length| length.min(ZEROES.len()));
            self.write_at(&ZEROES[..part], offset)?;
            offset += part as u64;
            length -= part as u64;
        }
        Ok(())
    }

    fn allocate(&self, flags: FallocateFlags, offset: u64, length: u64) -> Result<()> {
        self.file.fallocate((flags | FallocateFlags::KEEP_SIZE).bits(), offset, length)
    }

    /// The next data or hole from `offset` on; `None`: there is none.
    fn seek(&self, offset: u64, data: bool) -> Result<Option<u64>> {
        match self.file.seek(offset, data) {
            Ok(found) => Ok(Some(found)),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_unsupported(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::OPNOTSUPP)
}

impl Blocks for ExportedFile {
    fn size(&self) -> Result<u64> {
        Ok(self.file.attributes()?.size)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.file.read_at(buffer, offset)? == buffer.len() { Ok(()) } else { Err(Errno::IO.into()) }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            // A write that stops before its end fails when the rest is written.
            match self.file.write_at(&data[done..], offset + done as u64)? {
                0 => return Err(Errno::NOSPC.into()),
                written => done += written,
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync(true)
    }

    fn zero(&self, offset: u64, length: u64, how: Zeroing) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        let made = if how.may_be_hole {
            self.allocate(FallocateFlags::PUNCH_HOLE, offset, length)
        } else {
            self.allocate(FallocateFlags::ZERO_RANGE, offset, length)
        };
        match made {
            Err(error) if is_unsupported(&error) && !how.fast_only => self.write_zeroes(offset, length),
            made => made,
        }
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        match self.allocate(FallocateFlags::PUNCH_HOLE, offset, length) {
            // It is only a hint.
            Err(error) if is_unsupported(&error) => Ok(()),
            trimmed => trimmed,
        }
    }

    fn status(&self, offset: u64, length: u64, most: usize) -> Result<Vec<Extent>> {
        let end = offset.saturating_add(length);
        let mut extents = Vec::new();
        let mut at = offset;
        while at < end && extents.len() < most {
            let data = self.seek(at, true)?.map_or(end, |data| data.clamp(at, end));
            let (to, is_hole) =
                if data > at { (data, true) } else { (self.seek(at, false)?.map_or(end, |hole| hole.min(end)), false) };
            // The file may change between two questions.
            let to = if to > at { to } else { end };
            extents.push(Extent { length: to - at, is_hole });
            at = to;
        }
        Ok(extents)
    }

    fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<Result<()>> {
        let results = self.file.transfer(transfers);
        let finish = |(transfer, result): (&Transfer<'_>, Result<usize>)| match (transfer, result?) {
            (Transfer::Read(_, into), read) if read < into.len() => Err(Errno::IO.into()),
            (Transfer::Write(offset, data), written) if written < data.len() => {
                self.write_at(&data[written..], offset + written as u64)
            }
            _ => Ok(()),
        };
        transfers.iter().zip(results).map(finish).collect()
    }

    fn shut_down(&self) {
        self.client.close();
    }
}

impl Drop for ExportedFile {
    fn drop(&mut self) {
        // The server closes the file with the session. To close it by a request would wait for a server that is away.
        self.client.close();
    }
}

const _: () = assert!(ZEROES.len() <= MAX_DATA_BYTES);
