//! The bytes of a connection: a stream that notes in its [`Pulse`] when bytes arrive and leave, and
//! the loop that drives a connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Pulse;
use crate::frames::Frames;
use crate::heads::Heads;

/// A stream that notes in a pulse when bytes arrive and leave.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    pulse: Arc<Pulse>,
    follower: Follower,
}

/// Finds the heads of requests in the bytes of a connection.
#[derive(Debug)]
enum Follower {
    Http1(Heads),
    Http2(Frames),
}

impl<S> Wire<S> {
    /// A stream of one request after the other, or of several at once if `multiplexed`.
    pub(crate) fn new(stream: S, pulse: Arc<Pulse>, multiplexed: bool) -> Self {
        let follower = match multiplexed {
            true => Follower::Http2(Frames::new()),
            false => Follower::Http1(Heads::new()),
        };
        Self { stream, pulse, follower }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let arrived = &mut buffer.filled_mut()[before..];
        if !arrived.is_empty() {
            let Self { pulse, follower, .. } = &mut *self;
            match follower {
                Follower::Http1(heads) => {
                    heads.pass(arrived);
                    pulse.heard(heads.is_open());
                }
                Follower::Http2(frames) => pulse.heard_frames(frames.pass(arrived)),
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pulse.wrote_some(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.pulse.wrote(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.pulse.wrote(ended.is_ready());
        ended
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.pulse.wrote_some(written.is_ready());
        written
    }
}

/// Drives a connection until it ends, and passes on the orders its pulse gets.
pub(crate) async fn drive<C: Driven>(connection: C, pulse: &Pulse) {
    let mut connection = pin!(connection);
    let mut orders = pin!(pulse.ordered());
    let finish = poll_fn(|context| {
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        orders.as_mut().poll(context)
    })
    .await;
    if !finish {
        return;
    }
    connection.as_mut().finish();
    let mut closed = pin!(pulse.closed());
    poll_fn(|context| {
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        closed.as_mut().poll(context)
    })
    .await;
}

/// A connection of either version of HTTP.
pub(crate) trait Driven: Future {
    /// Takes on nothing more, and ends after what is under way.
    fn finish(self: Pin<&mut Self>);
}
