//! Programs that run as their owner (set-user-id), and are changed by others through a descriptor that root has opened.
//!
//! The system takes the bits away when a process without CAP_FSETID changes the file, and the kernel leaves that to a mount with identities
//! (`FUSE_HANDLE_KILLPRIV_V2`). The server changes the file as the user who opened it: for root its system keeps the bits, so they are taken away here.

use crate::convert::raising_bits;
use crate::handles::Handle;
use crate::mounted::{MountedExport, Result};
use fuser::{FileHandle, INodeNo, Request};
use motet_files::protocol::Change;
use std::sync::Arc;

impl MountedExport {
    /// An open file that a program is about to change.
    pub fn handle_to_change(&self, request: &Request, handle: FileHandle) -> Result<Arc<Handle>> {
        let handle = self.handle(handle)?;
        if request.uid() != 0 {
            self.stop_raising(&handle)?;
        }
        Ok(handle)
    }

    /// Takes the bits away before a program without the privilege changes an open file.
    pub fn stop_raising(&self, handle: &Handle) -> Result<()> {
        if !handle.by_root {
            return Ok(());
        }
        let mode = handle.file.attributes()?.mode;
        let bits = raising_bits(mode);
        if bits != 0 {
            let mode = Some(mode & 0o7777 & !bits);
            handle.file.set_attributes(&Change { mode, ..Change::default() })?;
            self.forget_attributes(INodeNo(handle.number));
        }
        Ok(())
    }
}
