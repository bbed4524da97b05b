//! What the kernel tells by itself: uevents of disks, and changes of the mount table.
//!
//! What was heard is kept until somebody takes it, so nothing is lost between two looks; what the
//! kernel could not deliver becomes "look at everything".

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with,
};
use tokio::sync::Notify;

use crate::host::Wake;

/// What was heard and not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    pending: Mutex<BTreeSet<Wake>>,
    rung: Notify,
}

impl Bell {
    /// Notes a change. Noting it again changes nothing.
    pub(crate) fn ring(&self, wake: Wake) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(wake);
        self.rung.notify_one();
    }

    /// Takes everything that was heard, or waits for the first.
    pub(crate) async fn heard(&self) -> Vec<Wake> {
        loop {
            let pending =
                std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            if !pending.is_empty() {
                return pending.into_iter().collect();
            }
            self.rung.notified().await;
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
            // One that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

impl Listener {
    /// Begins to listen.
    pub(crate) fn start(proc: &Path, bell: Arc<Bell>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::KOBJECT_UEVENT);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, 1))?;
        let table = File::open(proc.join("self/mountinfo"))?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::Builder::new()
            .name("uevents".to_owned())
            .spawn(move || listen(&socket, &table, &stopped, &bell))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// Hears uevents and changes of the mount table until the other end of `stopped` is closed.
fn listen(socket: &OwnedFd, table: &File, stopped: &UnixStream, bell: &Bell) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut heard = [
            PollFd::new(socket, PollFlags::IN),
            PollFd::new(table, PollFlags::PRI),
            PollFd::new(stopped, PollFlags::IN),
        ];
        match poll(&mut heard, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "the kernel is not heard any more");
                return;
            }
        }
        let [events, mounts, stop] = heard.map(|fd| fd.revents());
        if !stop.is_empty() {
            return;
        }
        if mounts.intersects(PollFlags::PRI | PollFlags::ERR) {
            bell.ring(Wake::Mounts);
        }
        if !events.is_empty() {
            drain(socket, &mut buffer, bell);
        }
    }
}

/// Takes every uevent there is.
fn drain(socket: &OwnedFd, buffer: &mut [u8], bell: &Bell) {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::empty()) {
            Ok((length, _)) => {
                if let Some(wake) = uevent(&buffer[..length.min(buffer.len())]) {
                    bell.ring(wake);
                }
            }
            Err(rustix::io::Errno::AGAIN) => return,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "uevents were lost; looking at everything");
                bell.ring(Wake::Everything);
                return;
            }
        }
    }
}

/// What a uevent is about; `None` if not a disk.
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
    async fn rings_while_nobody_listens_are_one_answer_and_none_is_lost() {
        let bell = Bell::default();
        for _ in 0..3 {
            bell.ring(Wake::Mounts);
        }
        bell.ring(Wake::Disk("a".to_owned()));
        assert_eq!(bell.heard().await, [Wake::Disk("a".to_owned()), Wake::Mounts]);
        bell.ring(Wake::Everything);
        assert_eq!(bell.heard().await, [Wake::Everything]);
    }
}
