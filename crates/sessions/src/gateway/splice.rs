//! Forwards one direction of a connection from socket to socket, inside the kernel if possible.
//!
//! A pipe is borrowed from the pool while there is data, and returned when it is empty again. A pipe
//! that still holds data when its connection ends is closed, never reused.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::metrics::Metrics;

/// The most bytes that one call moves; larger than any pipe, so that the pipe is the limit.
const STEP: usize = 1 << 20;
/// The size of the buffer if data is copied.
const BUFFER: usize = 32 << 10;

/// A pipe.
#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// A bounded pool of pipes, created on demand and reused.
#[derive(Debug)]
pub(super) struct Pipes {
    idle: Mutex<Vec<Pipe>>,
    lent: AtomicUsize,
    limit: usize,
}

/// A borrowed pipe; if it is empty when dropped, it returns to the pool.
struct BorrowedPipe<'a> {
    pipes: &'a Pipes,
    pipe: Option<Pipe>,
    holds: usize,
}

impl Pipes {
    pub(super) fn new(limit: usize) -> Self {
        Self { idle: Mutex::default(), lent: AtomicUsize::new(0), limit }
    }

    /// An empty pipe; `None` if all are in use or the system has none.
    fn lend(&self) -> Option<BorrowedPipe<'_>> {
        if !super::take(&self.lent, self.limit) {
            return None;
        }
        let idle = self.idle.lock().pop();
        let pipe = idle.or_else(|| {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
            Some(Pipe { read, write })
        });
        // Without a pipe, dropping this frees its place in the pool at once.
        let lent = BorrowedPipe { pipes: self, pipe, holds: 0 };
        lent.pipe.is_some().then_some(lent)
    }
}

impl Drop for BorrowedPipe<'_> {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take()
            && self.holds == 0
        {
            self.pipes.idle.lock().push(pipe);
        }
        self.pipes.lent.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why forwarding paused or ended.
#[derive(Debug, PartialEq, Eq)]
enum ForwardEnd {
    /// There is no data to read at the moment.
    WouldBlock,
    /// The sender has closed its side.
    EndOfStream,
    /// The kernel does not splice these sockets.
    Unsupported,
}

/// Forwards from `from` to `to` until the sender closes its side, then closes the receiver's side.
///
/// # Errors
/// One of the sockets failed or was closed.
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
        let end = match lent {
            Some(lent) => spliced(from, to, lent, metrics).await?,
            None => copied(from, to, metrics).await?,
        };
        match end {
            ForwardEnd::WouldBlock => {}
            ForwardEnd::Unsupported => splices = false,
            ForwardEnd::EndOfStream => {
                return match rustix::net::shutdown(to, Shutdown::Write) {
                    // The receiver is disconnected already.
                    Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
                    Err(error) => Err(error.into()),
                };
            }
        }
    }
}

/// Whether the error means that the kernel never splices such sockets.
fn refuses(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}

async fn spliced(
    from: &TcpStream,
    to: &TcpStream,
    mut lent: BorrowedPipe<'_>,
    metrics: &Metrics,
) -> io::Result<ForwardEnd> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    loop {
        let Some(pipe) = &lent.pipe else { return Ok(ForwardEnd::Unsupported) };
        // The pipe is empty here, so "would block" can only mean the socket.
        let taken = from
            .try_io(Interest::READABLE, || Ok(splice(from, None, &pipe.write, None, STEP, flags)?));
        match taken {
            Ok(0) => return Ok(ForwardEnd::EndOfStream),
            Ok(bytes) => lent.holds = bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(ForwardEnd::WouldBlock);
            }
            Err(error) if refuses(&error) => return Ok(ForwardEnd::Unsupported),
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
        // A stream that always has data must not starve other tasks.
        tokio::task::coop::consume_budget().await;
    }
}

async fn copied(from: &TcpStream, to: &TcpStream, metrics: &Metrics) -> io::Result<ForwardEnd> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let bytes = match from.try_read(&mut buffer) {
            Ok(0) => return Ok(ForwardEnd::EndOfStream),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(ForwardEnd::WouldBlock);
            }
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
    fn a_pipe_that_holds_data_is_never_reused() {
        let pipes = Pipes::new(2);
        let mut dirty = pipes.lend().unwrap();
        let clean = pipes.lend().unwrap();
        assert!(pipes.lend().is_none(), "no more than the limit");
        dirty.holds = 1;
        drop(dirty);
        assert!(pipes.idle.lock().is_empty());
        drop(clean);
        assert_eq!(pipes.idle.lock().len(), 1);
        assert!(pipes.lend().is_some(), "the place of the closed pipe is free");
    }

    #[test]
    fn only_unsupported_sockets_switch_to_copying() {
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
