//! One direction of a connection: bytes from a socket to a socket, inside the kernel if it can.
//!
//! A pipe is taken from the pool when there are bytes and given back when it is empty again. One
//! that still holds bytes when its connection ends is never given to another connection.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::metrics::Metrics;

/// The most that one call moves. A pipe holds what it holds: this only must not be the limit.
const STEP: usize = 1 << 20;
/// What is copied at once where bytes are copied.
const BUFFER: usize = 32 << 10;

/// A pipe.
#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// A bounded number of pipes, made as needed and kept.
#[derive(Debug)]
pub(super) struct Pipes {
    idle: Mutex<Vec<Pipe>>,
    lent: AtomicUsize,
    limit: usize,
}

/// A pipe that is lent; dropped empty, it goes back.
struct Lent<'a> {
    pipes: &'a Pipes,
    pipe: Option<Pipe>,
    holds: usize,
}

impl Pipes {
    pub(super) fn new(limit: usize) -> Self {
        Self { idle: Mutex::default(), lent: AtomicUsize::new(0), limit }
    }

    /// An empty pipe, or nothing if all are lent or the machine has none.
    fn lend(&self) -> Option<Lent<'_>> {
        if !super::take(&self.lent, self.limit) {
            return None;
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let pipe = idle.or_else(|| {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
            Some(Pipe { read, write })
        });
        // Without a pipe this gives the place back at once.
        let lent = Lent { pipes: self, pipe, holds: 0 };
        lent.pipe.is_some().then_some(lent)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take()
            && self.holds == 0
        {
            self.pipes.idle.lock().unwrap_or_else(PoisonError::into_inner).push(pipe);
        }
        self.pipes.lent.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How a stretch of forwarding ended.
#[derive(Debug, PartialEq, Eq)]
enum Stretch {
    /// There is nothing to read for now.
    Dry,
    /// The sender has said all.
    Over,
    /// The kernel does not splice these sockets.
    Refused,
}

/// Forwards from `from` to `to` until the sender has said all, and then says so to the receiver.
///
/// # Errors
/// Either end is gone.
pub(super) async fn forward(
    from: &TcpStream,
    to: &TcpStream,
    pipes: &Pipes,
    metrics: &Metrics,
) -> io::Result<()> {
    let mut splices = true;
    loop {
        from.readable().await?;
        let lent = if splices { pipes.lend() } else { None };
        let stretch = match lent {
            Some(lent) => spliced(from, to, lent, metrics).await?,
            None => copied(from, to, metrics).await?,
        };
        match stretch {
            Stretch::Dry => {}
            Stretch::Refused => splices = false,
            Stretch::Over => {
                return match rustix::net::shutdown(to, Shutdown::Write) {
                    // It is gone already, and needs not be told.
                    Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
                    Err(error) => Err(error.into()),
                };
            }
        }
    }
}

/// Whether the kernel says that it does not splice such sockets at all.
fn refuses(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}

async fn spliced(
    from: &TcpStream,
    to: &TcpStream,
    mut lent: Lent<'_>,
    metrics: &Metrics,
) -> io::Result<Stretch> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    loop {
        let Some(pipe) = &lent.pipe else { return Ok(Stretch::Refused) };
        // The pipe is empty here, so "would block" can only mean the socket.
        let taken = from
            .try_io(Interest::READABLE, || Ok(splice(from, None, &pipe.write, None, STEP, flags)?));
        match taken {
            Ok(0) => return Ok(Stretch::Over),
            Ok(bytes) => lent.holds = bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Stretch::Dry),
            Err(error) if refuses(&error) => return Ok(Stretch::Refused),
            Err(error) => return Err(error),
        }
        while lent.holds > 0 {
            let given = to.try_io(Interest::WRITABLE, || {
                Ok(splice(&pipe.read, None, to, None, lent.holds, flags)?)
            });
            match given {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    lent.holds -= bytes.min(lent.holds);
                    metrics.spliced.inc_by(bytes as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
        // A stream that never runs dry must not keep others from their turn.
        tokio::task::coop::consume_budget().await;
    }
}

async fn copied(from: &TcpStream, to: &TcpStream, metrics: &Metrics) -> io::Result<Stretch> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let bytes = match from.try_read(&mut buffer) {
            Ok(0) => return Ok(Stretch::Over),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Stretch::Dry),
            Err(error) => return Err(error),
        };
        let mut rest = buffer.get(..bytes).unwrap_or_default();
        while !rest.is_empty() {
            match to.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    rest = rest.get(bytes..).unwrap_or_default();
                    metrics.copied.inc_by(bytes as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
        tokio::task::coop::consume_budget().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_holds_bytes_is_never_lent_again() {
        let pipes = Pipes::new(2);
        let mut dirty = pipes.lend().unwrap();
        let clean = pipes.lend().unwrap();
        assert!(pipes.lend().is_none(), "no more than the limit");
        dirty.holds = 1;
        drop(dirty);
        assert!(pipes.idle.lock().unwrap().is_empty());
        drop(clean);
        assert_eq!(pipes.idle.lock().unwrap().len(), 1);
        assert!(pipes.lend().is_some(), "the place of the dirty one is free");
    }

    #[test]
    fn only_what_says_never_makes_a_stream_be_copied() {
        use rustix::io::Errno;
        for (errno, expected) in [
            (Errno::INVAL, true),
            (Errno::NOSYS, true),
            (Errno::OPNOTSUPP, true),
            (Errno::AGAIN, false),
            (Errno::PIPE, false),
            (Errno::CONNRESET, false),
        ] {
            assert_eq!(refuses(&errno.into()), expected, "{errno}");
        }
        assert!(!refuses(&io::ErrorKind::WriteZero.into()));
    }
}
