//! Programs that register themselves without waiting for an answer: one object on a connection, which may have ended before it is accepted.
//!
//! The kernel says which process has connected; the start time in the object shows that it still is the same one.

use crate::context::Context;
use crate::directory::DirectoryError;
use crate::programs;
use motet_session::api::Program;
use motet_session::notes::note;
use motet_session::registration::MAX_BYTES;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Registrations that are taken at a time; others wait in the kernel's queue.
const MAX_OPEN: usize = 64;
/// A registration has to be complete after this time.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// Pause after a failure to accept, such as for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes registrations for ever.
pub async fn take(listener: UnixListener, context: Context) {
    let free = Arc::new(Semaphore::new(MAX_OPEN));
    loop {
        let Ok(place) = free.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let context = context.clone();
        tokio::spawn(async move {
            if let Some(program) = read(stream).await
                && let Err(DirectoryError::Store(error)) =
                    programs::add(&context.directory, &context.host, program).await
            {
                note(format_args!("a program is not registered: {error}"));
            }
            drop(place);
        });
    }
}

/// The program that a process of the session's user has written, if it is that process.
async fn read(stream: UnixStream) -> Option<Program> {
    let credentials = stream.peer_cred().ok()?;
    if credentials.uid() != rustix::process::getuid().as_raw() {
        return None;
    }
    let mut text = Vec::new();
    timeout(READ_LIMIT, stream.take(MAX_BYTES as u64).read_to_end(&mut text)).await.ok()?.ok()?;
    let program: Program = serde_json::from_slice(&text).ok()?;
    let is_own = credentials.pid().and_then(|pid| u32::try_from(pid).ok()) == Some(program.process.pid);
    (is_own && program.group.is_none() && program.rank.is_none()).then_some(program)
}
