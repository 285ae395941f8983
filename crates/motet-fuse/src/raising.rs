//! Programs that run as their owner (set-user-id), and are changed by others through a descriptor that root has opened.
//!
//! The system takes the bits away when a process without CAP_FSETID changes the file, and the kernel leaves that to a mount with identities
//! (`FUSE_HANDLE_KILLPRIV_V2`). The server changes the file as the user who opened it: for root its system keeps the bits, so they are taken away here.

use crate::handles::Handle;
use crate::mounted::{MountedExport, Result};
use fuser::{FileHandle, INodeNo, Request};
use motet_files::protocol::Change;
use rustix::fs::{FileType, Mode};
use std::sync::Arc;

/// The bits of a mode by which a program runs as another user or group.
pub fn raising_bits(mode: u32) -> u32 {
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return 0;
    }
    // Without execution by the group, the bit stands for mandatory locks.
    let by_group = (Mode::SGID | Mode::XGRP).bits();
    (mode & Mode::SUID.bits()) | if mode & by_group == by_group { Mode::SGID.bits() } else { 0 }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_raise() {
        let regular = FileType::RegularFile.as_raw_mode();
        let cases = [(0o755, 0), (0o4755, 0o4000), (0o2755, 0o2000), (0o2745, 0), (0o6711, 0o6000), (0o1777, 0)];
        for (mode, bits) in cases {
            assert_eq!(raising_bits(regular | mode), bits, "{mode:o}");
        }
        assert_eq!(raising_bits(FileType::Directory.as_raw_mode() | 0o2775), 0);
    }
}
