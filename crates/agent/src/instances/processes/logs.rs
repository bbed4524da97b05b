//! The output of instances: a file that the process itself appends to, so that it goes on without
//! an agent, and the file before it.
//!
//! A file that has grown beyond its size is copied aside and emptied (copy and truncate). Output
//! written between the two is lost; a process that holds the file open never notices. On a full
//! disk the copy is given up, not the emptying.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use mainstay_clock::Clock;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::instances::Log;
use crate::private;

/// The size beyond which a log is put aside. There is one more of at most that size.
pub(super) const SIZE: u64 = 1 << 20;
/// The largest piece that is sent at once.
const PIECE: usize = 64 << 10;
/// How often a followed log is checked for new output.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a reader has to take the error that ends its log when the agent stops.
const FAREWELL: Duration = Duration::from_secs(1);

/// Opens the log for a process to append to.
pub(super) fn create(folder: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(private::FILE).open(folder.join("log"))
}

/// Puts the log aside if it is too large.
pub(super) fn rotate(folder: &Path) -> io::Result<bool> {
    let place = folder.join("log");
    let mut log = match OpenOptions::new().read(true).write(true).open(&place) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let size = log.metadata()?.len();
    if size <= SIZE {
        return Ok(false);
    }
    let copied = (|| {
        log.seek(SeekFrom::Start(size - SIZE))?;
        let mut aside = private::create(&folder.join("log.new"))?;
        io::copy(&mut Read::by_ref(&mut log).take(SIZE), &mut aside)?;
        fs::rename(folder.join("log.new"), folder.join("log.1"))
    })();
    if let Err(error) = copied {
        tracing::warn!(log = %place.display(), %error, "rotating a log failed; its old part is lost");
        let _ = fs::remove_file(folder.join("log.new"));
    }
    log.set_len(0)?;
    Ok(true)
}

/// The last `lines` of a text; all of it for 0.
fn tail(text: &[u8], lines: u64) -> &[u8] {
    if lines == 0 {
        return text;
    }
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let nth = usize::try_from(lines - 1).unwrap_or(usize::MAX);
    let from = breaks.map(|(at, _)| at + 1).nth(nth).unwrap_or(0);
    text.get(from..).unwrap_or_default()
}

/// The events that end the following of a log.
#[derive(Debug)]
pub(super) struct Follow {
    /// The instance is gone.
    pub(super) gone: CancellationToken,
    /// The agent ends.
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// Reads a log: its content, and if it is followed everything that is appended.
pub(super) fn read(
    folder: &Path,
    lines: u64,
    follow: Option<Follow>,
    clock: Arc<dyn Clock>,
) -> io::Result<Log> {
    let mut log = File::open(folder.join("log"))?;
    let mut text = match fs::read(folder.join("log.1")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    log.read_to_end(&mut text)?;
    let text: Vec<_> = tail(&text, lines).chunks(PIECE).map(|piece| Ok(piece.to_vec())).collect();
    let there = stream::iter(text);
    let Some(follow) = follow else { return Ok(there.boxed()) };
    let (sender, receiver) = mpsc::channel(4);
    let Follow { gone, stop, tasks } = follow;
    tasks.spawn(async move {
        tokio::select! {
            () = following(log, sender.clone(), gone, clock.clone()) => {}
            () = stop.cancelled() => {
                // Without an error the reader would take the log for complete.
                let stopped = io::Error::other("the agent of the node stopped");
                tokio::select! {
                    _ = sender.send(Err(stopped)) => {}
                    () = clock.sleep(FAREWELL) => {}
                }
            }
        }
    });
    let coming =
        stream::unfold(
            receiver,
            |mut receiver| async move { Some((receiver.recv().await?, receiver)) },
        );
    Ok(there.chain(coming).boxed())
}

/// Sends appended output; ends when the reader or the instance is gone.
async fn following(
    mut log: File,
    sender: mpsc::Sender<io::Result<Vec<u8>>>,
    gone: CancellationToken,
    clock: Arc<dyn Clock>,
) {
    loop {
        // Checked before reading, so that output written before the end is still sent.
        let last = gone.is_cancelled();
        loop {
            let piece = appended(&mut log);
            let failed = piece.is_err();
            if matches!(&piece, Ok(piece) if piece.is_empty()) {
                break;
            }
            if sender.send(piece).await.is_err() || failed {
                return;
            }
        }
        if last {
            return;
        }
        tokio::select! {
            () = clock.sleep(PAUSE) => {}
            () = gone.cancelled() => {}
            () = sender.closed() => return,
        }
    }
}

fn appended(log: &mut File) -> io::Result<Vec<u8>> {
    if log.metadata()?.len() < log.stream_position()? {
        // It was put aside.
        log.seek(SeekFrom::Start(0))?;
    }
    let mut piece = vec![0; PIECE];
    let bytes = log.read(&mut piece)?;
    piece.truncate(bytes);
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_lines() {
        for (text, lines, expected) in [
            ("a\nb\nc\n", 0, "a\nb\nc\n"),
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc\n", 9, "a\nb\nc\n"),
            ("a\nb", 1, "b"),
            ("", 3, ""),
            ("\n\n", 1, "\n"),
        ] {
            assert_eq!(tail(text.as_bytes(), lines), expected.as_bytes(), "{lines} of {text:?}");
        }
    }

    #[tokio::test]
    async fn a_followed_log_ends_with_an_error_only_if_the_agent_stops() {
        let folder = tempfile::tempdir().unwrap();
        create(folder.path()).unwrap().write_all(b"a\n").unwrap();
        for stops in [true, false] {
            let (gone, stop) = (CancellationToken::new(), CancellationToken::new());
            let tasks = TaskTracker::new();
            let follow = Follow { gone: gone.clone(), stop: stop.clone(), tasks };
            let clock = mainstay_clock::SystemClock::new();
            let mut log = read(folder.path(), 0, Some(follow), clock).unwrap();
            assert_eq!(log.next().await.unwrap().unwrap(), b"a\n");
            if stops {
                stop.cancel()
            } else {
                gone.cancel()
            }
            let rest: Vec<_> = log.collect().await;
            assert_eq!(
                rest.iter().map(Result::is_err).collect::<Vec<_>>(),
                vec![true; usize::from(stops)]
            );
        }
    }

    #[test]
    fn a_large_log_is_put_aside_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!rotate(folder.path()).unwrap(), "there is none");
        let mut log = create(folder.path()).unwrap();
        let line = [b'x'; 1023].iter().chain(b"\n").copied().collect::<Vec<_>>();
        for _ in 0..1500 {
            log.write_all(&line).unwrap();
        }
        assert!(rotate(folder.path()).unwrap());
        log.write_all(b"after\n").unwrap();
        assert!(!rotate(folder.path()).unwrap());
        let size = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
        assert_eq!((size("log"), size("log.1")), (6, SIZE));
    }
}
