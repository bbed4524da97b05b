//! Listens for kernel events: uevents of disks, and changes of the mount table.
//!
//! Events are kept until they are taken, so none is lost between two scans. If polling fails, the
//! sockets are opened again with back-off, and everything is scanned once they are: events may have
//! been missed meanwhile.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mainstay_clock::Backoff;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with,
};
use tokio::sync::Notify;

use crate::Wake;

/// How long to wait before the sockets are opened again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));

/// Events that were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct PendingEvents {
    pending: Mutex<BTreeSet<Wake>>,
    added: Notify,
}

impl PendingEvents {
    /// Adds an event. Adding it again changes nothing.
    pub(crate) fn add(&self, wake: Wake) {
        self.pending.lock().insert(wake);
        self.added.notify_one();
    }

    /// Takes every pending event; waits for one if there is none.
    pub(crate) async fn take(&self) -> Vec<Wake> {
        loop {
            let pending = std::mem::take(&mut *self.pending.lock());
            if !pending.is_empty() {
                return pending.into_iter().collect();
            }
            self.added.notified().await;
        }
    }
}

/// The thread that listens; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the sockets cannot be opened now. Later failures are retried.
    pub(crate) fn start(proc: &Path, events: Arc<PendingEvents>) -> io::Result<Self> {
        let first = Kernel::open(proc)?;
        let (stop, stopped) = UnixStream::pair()?;
        let listening = Listening { proc: proc.to_owned(), stopped, first: Some(first) };
        let thread = std::thread::Builder::new()
            .name("uevents".to_owned())
            .spawn(move || keep_listening(listening, &events))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// Why listening ended.
#[derive(Debug)]
enum End {
    /// The [`Listener`] was dropped.
    Stopped,
    /// The sockets failed.
    Failed {
        /// Events came before that: the failure is not one more in a row.
        worked: bool,
        error: io::Error,
    },
}

/// Where events come from.
trait Source {
    /// Opens the sockets and listens until they fail or the listener is dropped. Rings for a full
    /// scan first if `missed`: events may have been lost before.
    fn listen(&mut self, missed: bool, events: &PendingEvents) -> End;

    /// Waits; returns whether the listener was dropped meanwhile.
    fn pause(&mut self, wait: Duration) -> bool;
}

/// Listens, and starts again with back-off whenever that fails, until the listener is dropped.
fn keep_listening(mut source: impl Source, events: &PendingEvents) {
    let mut retries = RETRY.retries();
    let mut missed = false;
    while let End::Failed { worked, error } = source.listen(missed, events) {
        if worked {
            retries.reset();
        }
        let retry_in = retries.failed();
        tracing::error!(%error, ?retry_in, "uevent polling failed; hot-plug events stopped");
        missed = true;
        if source.pause(retry_in) {
            return;
        }
    }
}

/// The kernel's events.
struct Listening {
    proc: PathBuf,
    stopped: UnixStream,
    /// The sockets that were opened at the start.
    first: Option<Kernel>,
}

impl Source for Listening {
    fn listen(&mut self, missed: bool, events: &PendingEvents) -> End {
        let opened = self.first.take().map_or_else(|| Kernel::open(&self.proc), Ok);
        let kernel = match opened {
            Ok(kernel) => kernel,
            Err(error) => return End::Failed { worked: false, error },
        };
        if missed {
            tracing::info!("listening for uevents again; rescanning every disk");
            events.add(Wake::Everything);
        }
        kernel.listen(&self.stopped, events)
    }

    fn pause(&mut self, wait: Duration) -> bool {
        let mut stop = [PollFd::new(&self.stopped, PollFlags::IN)];
        let wait = Timespec::try_from(wait).ok();
        // An interrupted wait is only shorter.
        matches!(poll(&mut stop, wait.as_ref()), Ok(ready) if ready > 0)
    }
}

/// The two files in which the kernel shows events.
struct Kernel {
    uevents: OwnedFd,
    mounts: File,
}

impl Kernel {
    fn open(proc: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::KOBJECT_UEVENT);
        let uevents = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        bind(&uevents, &SocketAddrNetlink::new(0, 1))?;
        let mounts = File::open(proc.join("self/mountinfo"))?;
        Ok(Self { uevents, mounts })
    }

    /// Rings for every event until polling fails or the other end of `stopped` is closed.
    fn listen(&self, stopped: &UnixStream, events: &PendingEvents) -> End {
        let mut buffer = vec![0; 64 << 10];
        let mut worked = false;
        loop {
            let mut ready = [
                PollFd::new(&self.uevents, PollFlags::IN),
                PollFd::new(&self.mounts, PollFlags::PRI),
                PollFd::new(stopped, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return End::Failed { worked, error: error.into() },
            }
            let [uevents, mounts, stop] = ready.map(|fd| fd.revents());
            if !stop.is_empty() {
                return End::Stopped;
            }
            if mounts.intersects(PollFlags::PRI | PollFlags::ERR) {
                events.add(Wake::Mounts);
            }
            if !uevents.is_empty()
                && let Err(error) = self.drain(&mut buffer, events)
            {
                return End::Failed { worked, error: error.into() };
            }
            worked = true;
        }
    }

    /// Takes every uevent there is.
    fn drain(&self, buffer: &mut [u8], events: &PendingEvents) -> Result<(), Errno> {
        loop {
            match recv(&self.uevents, &mut *buffer, RecvFlags::empty()) {
                Ok((length, _)) => {
                    if let Some(wake) = uevent(&buffer[..length.min(buffer.len())]) {
                        events.add(wake);
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => {
                    tracing::warn!("uevents were lost; rescanning every disk");
                    events.add(Wake::Everything);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The event of a uevent message; `None` if it is not about a disk.
fn uevent(message: &[u8]) -> Option<Wake> {
    let mut subsystem = "";
    let (mut path, mut kind) = ("", "");
    for part in message.split(|byte| *byte == 0) {
        let Some((key, value)) = std::str::from_utf8(part).ok()?.split_once('=') else { continue };
        match key {
            "SUBSYSTEM" => subsystem = value,
            "DEVPATH" => path = value,
            "DEVTYPE" => kind = value,
            _ => {}
        }
    }
    if subsystem != "block" {
        return None;
    }
    let mut names = path.rsplit('/');
    let name = names.next()?;
    let disk = if kind == "partition" { names.next()? } else { name };
    Some(Wake::Disk(disk.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_partitions_are_about_their_disk() {
        let message = |kind: &str, path: &str| {
            format!(
                "change@{path}\0ACTION=change\0DEVPATH={path}\0SUBSYSTEM=block\0DEVTYPE={kind}\0"
            )
        };
        let disk = Some(Wake::Disk("sda".to_owned()));
        assert_eq!(uevent(message("disk", "/devices/x/block/sda").as_bytes()), disk);
        assert_eq!(uevent(message("partition", "/devices/x/block/sda/sda1").as_bytes()), disk);
        assert_eq!(uevent(b"add@/devices/x\0SUBSYSTEM=net\0DEVPATH=/devices/x\0"), None);
        assert_eq!(uevent(b"\xff\xfe"), None);
    }

    #[tokio::test]
    async fn events_are_kept_until_they_are_taken_and_each_is_reported_once() {
        let events = PendingEvents::default();
        for _ in 0..3 {
            events.add(Wake::Mounts);
        }
        events.add(Wake::Disk("a".to_owned()));
        assert_eq!(events.take().await, [Wake::Disk("a".to_owned()), Wake::Mounts]);
        events.add(Wake::Everything);
        assert_eq!(events.take().await, [Wake::Everything]);
    }

    /// A kernel whose polls end as scripted.
    struct Script {
        ends: Vec<End>,
        waits: Vec<Duration>,
        missed: Vec<bool>,
    }

    impl Source for &mut Script {
        fn listen(&mut self, missed: bool, _: &PendingEvents) -> End {
            self.missed.push(missed);
            self.ends.remove(0)
        }

        fn pause(&mut self, wait: Duration) -> bool {
            self.waits.push(wait);
            false
        }
    }

    #[test]
    fn listening_starts_again_with_back_off_after_a_poll_error() {
        let failed = |worked| End::Failed { worked, error: Errno::NOMEM.into() };
        let ends = vec![failed(true), failed(false), failed(false), failed(true), End::Stopped];
        let mut script = Script { ends, waits: Vec::new(), missed: Vec::new() };
        keep_listening(&mut script, &PendingEvents::default());
        let wait = Duration::from_millis;
        assert_eq!(script.waits, [wait(100), wait(200), wait(400), wait(100)]);
        assert_eq!(script.missed, [false, true, true, true, true]);
    }

    #[tokio::test]
    async fn a_new_start_rescans_everything_and_a_dropped_listener_ends() {
        let events = Arc::new(PendingEvents::default());
        let (stop, stopped) = UnixStream::pair().unwrap();
        let mut listening = Listening { proc: "/proc".into(), stopped, first: None };
        assert!(!listening.pause(Duration::ZERO));
        drop(stop);
        assert!(listening.pause(Duration::from_secs(3600)), "a dropped listener is not waited for");
        assert!(matches!(listening.listen(true, &events), End::Stopped));
        assert_eq!(events.take().await, [Wake::Everything]);
        listening.proc = "/nowhere".into();
        assert!(matches!(listening.listen(true, &events), End::Failed { worked: false, .. }));
    }
}
