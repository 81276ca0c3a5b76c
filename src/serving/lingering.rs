//! The end of a connection whose client may still be sending.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// How long, and how many bytes, what still comes is read after the last answer.
const LINGER: Duration = Duration::from_secs(2);
const MAX_BYTES: usize = 16 << 20;
/// Bytes of one read.
const PIECE: usize = 16 << 10;

/// A stream that, once shut down, reads and forgets what its client still sends.
///
/// A socket that is closed over unread bytes is reset, and a reset takes away answers that are on their way: the client of a
/// refused HTTP/1.1 upload would see a broken pipe in place of the refusal.
#[derive(Debug)]
pub(super) struct Lingering<I> {
    io: I,
    /// Until when, once it is shut down.
    until: Option<Pin<Box<Sleep>>>,
    n_bytes: usize,
}

impl<I> Lingering<I> {
    pub(super) fn new(io: I) -> Self {
        Self {
            io,
            until: None,
            n_bytes: 0,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Lingering<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, until, n_bytes } = &mut *self;
        let mut io = Pin::new(io);
        let over = match until {
            Some(over) => over,
            None => {
                ready!(io.as_mut().poll_shutdown(context))?;
                until.insert(Box::pin(sleep(LINGER)))
            }
        };
        let mut piece = [0; PIECE];
        while *n_bytes < MAX_BYTES && over.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut piece);
            match ready!(io.as_mut().poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *n_bytes += buffer.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
