//! The file that a request of the kernel concerns.
//!
//! The kernel means the file that it has looked up, and speaks of it by its number, also when a program uses a descriptor (`fchmod`, `fsetxattr`). So a request is
//! made on an open file of that number, or on the file at its path if that is still the same one. It is never made on another file that has the name by now.

use crate::mounted::{GENERATION, MountedExport, Name, Result};
use fuser::{Errno, INodeNo, ReplyEntry, Request};
use motet_files::client::{Client, File, Found};
use motet_files::protocol::{Attributes, Change, OpenFlags};
use std::io::ErrorKind;
use std::sync::Arc;

/// What is asked about a file, however it is found.
type Question<'a, T> = &'a mut dyn FnMut(&Client, Found<'_>) -> std::io::Result<T>;

/// In which order a file is looked for, and what follows.
#[derive(Debug, Clone, Copy)]
struct Search {
    /// An open file is asked first. Without it the file at the path, so that a program that opens a name gets the one that has it now.
    open: bool,
    /// The request may be the last one of a call.
    ends: bool,
}

impl MountedExport {
    /// Makes a request about a file: on an open one of this number, at its path, or on what the thread has just found. ESTALE: the kernel has to look its name
    /// up again.
    pub fn with_found<T>(
        &self,
        request: &Request,
        number: INodeNo,
        mut ask: impl FnMut(&Client, Found<'_>) -> std::io::Result<T>,
    ) -> Result<T> {
        self.search(request, number, Search { open: true, ends: true }, &mut ask)
    }

    fn search<T>(&self, request: &Request, number: INodeNo, search: Search, ask: Question<'_, T>) -> Result<T> {
        let again = self.again.found(request.pid(), search.ends);
        let client = self.client_of(request);
        if search.open
            && let Some(result) = self.ask_open(&client, number, ask)
        {
            return Ok(result?);
        }
        let has_path = self.path(number).is_ok();
        if let Some(result) = self.ask_by_path(&client, number, again.is_some(), ask) {
            return Ok(result?);
        }
        if let Some(file) = again.as_ref().and_then(|kept| kept.file(number.0)) {
            return Ok(ask(&client, Found::Open(&file))?);
        }
        let by_no_name = !has_path || again.is_some_and(|kept| kept.came_by_no_name(number.0));
        if !search.open
            && by_no_name
            && let Some(result) = self.ask_open(&client, number, ask)
        {
            return Ok(result?);
        }
        self.again.note(request.pid(), number.0);
        Err(Errno::ESTALE)
    }

    /// `None`: no program has it open, or the open file is lost.
    fn ask_open<T>(&self, client: &Client, number: INodeNo, ask: Question<'_, T>) -> Option<std::io::Result<T>> {
        let open = self.handles.of(number.0)?;
        let result = ask(client, Found::Open(&open.file));
        let is_lost = |error: &std::io::Error| error.kind() == ErrorKind::StaleNetworkFileHandle;
        if result.as_ref().is_err_and(is_lost) { None } else { Some(result) }
    }

    /// `None`: it has lost its name. One that has several may have been meant by the lost one, so only a call that is made again tries the others.
    fn ask_by_path<T>(
        &self,
        client: &Client,
        number: INodeNo,
        is_again: bool,
        ask: Question<'_, T>,
    ) -> Option<std::io::Result<T>> {
        let names = self.nodes().names(number.0);
        for name in &names {
            let Some((path, (device, inode))) = self.nodes().path_by(number.0, name.as_ref()) else { continue };
            let result = ask(client, Found::At { path: &path, device, inode });
            let is_lost = |error: &std::io::Error| {
                use ErrorKind::{NotADirectory, NotFound, StaleNetworkFileHandle};
                matches!(error.kind(), NotFound | NotADirectory | StaleNetworkFileHandle)
            };
            if !result.as_ref().is_err_and(is_lost) {
                return Some(result);
            }
            if names.len() > 1
                && let Some((directory, name)) = name
            {
                self.nodes_mut().lost(number.0, *directory, name);
            }
            if !is_again {
                break;
            }
        }
        None
    }

    /// Attributes of a file. The kernel asks for them within a call, too.
    pub fn attributes(&self, request: &Request, number: INodeNo) -> Result<Attributes> {
        self.search(request, number, Search { open: true, ends: false }, &mut |client, file| client.attributes_of(file))
    }

    /// The target of a symbolic link. The kernel asks for it within a call, too.
    pub fn link_target(&self, request: &Request, number: INodeNo) -> Result<Vec<u8>> {
        self.search(request, number, Search { open: true, ends: false }, &mut |client, file| client.read_link_of(file))
    }

    /// Changes attributes of a file, and returns the new ones.
    pub fn change(&self, request: &Request, number: INodeNo, change: &Change) -> Result<Attributes> {
        // An open file may be open for reading only, so its length is changed by its path.
        let search = Search { open: change.size.is_none(), ends: true };
        self.search(request, number, search, &mut |client, file| client.set_attributes_of(file, change))
    }

    /// Opens a file.
    pub fn open_found(&self, request: &Request, number: INodeNo, flags: OpenFlags) -> Result<(File, Attributes)> {
        let search = Search { open: false, ends: true };
        self.search(request, number, search, &mut |client, file| client.open_found(file, flags))
    }

    /// Looks a name up, and answers.
    pub fn answer_lookup(&self, request: &Request, name: Name<'_>, reply: ReplyEntry) {
        if !self.again.is_noted(request.pid()) {
            return self.answer_entry(name, |path| self.client_of(request).attributes(path), reply);
        }
        let asked = self.asked();
        let locate = |path: &[u8]| self.client_of(request).open_file(path, OpenFlags::LOCATE, 0);
        match self.path_in(name).and_then(|path| Ok(locate(&path)?)) {
            Ok((file, found)) => {
                let (_answering, validity) = self.answering(asked);
                let entry = self.enter(name, &found);
                self.again.keep(request.pid(), entry.ino.0, Arc::new(file));
                reply.entry(&validity, &entry, GENERATION);
            }
            Err(error) => reply.error(error),
        }
    }
}
