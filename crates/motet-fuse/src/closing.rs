//! Files that programs close.
//!
//! The kernel says that a descriptor is closed before close() returns, and releases the open file, with its last descriptor, after that. So what others need of a file
//! that may be about to be released is waited for: locks that belong to the open file, and the space of a file that has no name any more.

use crate::handles::Awaited;
use crate::mounted::{MountedExport, Result};
use crate::nodes::ContentVersion;
use fuser::{FileHandle, INodeNo, WriteFlags};
use motet_files::protocol::Space;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// How long the kernel may take between the last close of a file and its release.
const LIMIT: Duration = Duration::from_millis(500);
/// How long it is waited before the question is asked again.
const PAUSE: Duration = Duration::from_millis(20);

impl MountedExport {
    /// Calls `ask`, and again while its answer is not good and a file that has what it needs is being closed.
    pub fn after_closing<T>(&self, awaited: Awaited, mut ask: impl FnMut() -> T, is_good: impl Fn(&T) -> bool) -> T {
        let end = Instant::now() + LIMIT;
        loop {
            let (seen, is_closing) = (self.releases.so_far(), self.handles.is_closing(awaited, LIMIT));
            let answer = ask();
            if !is_closing || is_good(&answer) || Instant::now() > end {
                return answer;
            }
            self.releases.wait(seen, PAUSE);
        }
    }

    /// Writes to an open file; returns how many bytes. On a full disk the space of removed files that programs have closed is free.
    pub fn write_file(&self, handle: FileHandle, data: &[u8], offset: u64, flags: WriteFlags) -> Result<usize> {
        let handle = self.handle(handle)?;
        // Pages of the kernel's cache have their place, whatever the descriptor was opened for by which the kernel writes them.
        let is_page = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.stop_raising(&handle)?;
        }
        let write = || if is_page { handle.file.write_back(data, offset) } else { handle.file.write_at(data, offset) };
        let is_good = |written: &std::io::Result<usize>| {
            !written.as_ref().is_err_and(|error| error.kind() == ErrorKind::StorageFull)
        };
        let written = write();
        let again = !is_good(&written) && self.handles.is_closing(Awaited::Space, LIMIT);
        Ok(if again { self.after_closing(Awaited::Space, write, is_good) } else { written }?)
    }

    /// The space of the file system. That of removed files that programs have closed is free.
    pub fn space(&self) -> Result<Space> {
        Ok(self.after_closing(Awaited::Space, || self.client.statfs(), |_| false)?)
    }

    /// A descriptor of an open file is closed, not the last one perhaps: the process of this owner has no locks on the file any more (fcntl(2)). Other data than
    /// locks are at the server already.
    pub fn close_descriptor(&self, handle: FileHandle, owner: u64) -> Result<()> {
        let open = self.handle(handle)?;
        let released = open.file.release_locks(owner);
        self.handles.descriptor_closed(handle.0, self.nodes().path(open.number).is_none());
        self.releases.note();
        Ok(released?)
    }

    /// Closes a file.
    pub fn close(&self, number: INodeNo, handle: FileHandle) {
        let Ok(closed) = self.handle(handle) else { return };
        let releasing = closed.has_been_removed().then(|| self.handles.releasing());
        // First those locks that belong to the open file. Closing releases them, too; another program may wait for them meanwhile.
        for owner in closed.file.lock_owners() {
            let _ = closed.file.release_locks(owner);
        }
        drop(self.handles.remove(handle.0));
        if !closed.is_backed() {
            self.passthrough.closed(closed.number);
        }
        // Later opens keep what this one has cached, if the file has not changed since.
        if closed.number == number.0
            && let Ok(found) = closed.file.attributes()
        {
            self.nodes_mut().cache(number.0, ContentVersion::of(&found));
        }
        drop(closed);
        drop(releasing);
        self.releases.note();
    }
}
