//! A connection of another user or host, which ends when it is idle for too long.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A connection on which nothing is read or written for this time is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// The connection.
#[derive(Debug)]
pub struct Limited<S> {
    stream: S,
    limit: Duration,
    idle: Pin<Box<Sleep>>,
}

impl<S> Limited<S> {
    /// The limit for a connection.
    pub fn new(stream: S) -> Self {
        Self::within(stream, IDLE_LIMIT)
    }

    /// One of this length.
    pub fn within(stream: S, limit: Duration) -> Self {
        Self { stream, limit, idle: Box::pin(sleep(limit)) }
    }

    /// Begins the limit again: until now nothing was to be read or written.
    pub fn touch(&mut self) {
        self.idle.as_mut().reset(Instant::now() + self.limit);
    }

    /// Passes a result on; one that is not ready yet fails after the idle limit.
    fn limited<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.touch();
            return result;
        }
        self.idle.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.limited(cx, read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limited(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
