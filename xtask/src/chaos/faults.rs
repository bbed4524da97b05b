//! Injects faults: processes that are killed or frozen, folders that vanish or cannot be written, storage
//! elements that are closed. Each ends by itself after a while.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use super::process::{is_mounted, send};
use super::step::{SITES, Who};
use super::world::{Undo, World};
use super::{now, short_pause};

impl World {
    /// Whether a fault of the kind is under way.
    fn lasts(&self, same: impl Fn(&Undo) -> bool) -> bool {
        self.undo.iter().any(|(_, undo)| same(undo))
    }

    fn until(&mut self, during: Duration, undo: Undo) {
        self.undo.push((now() + during, undo));
    }

    pub(crate) fn close(&mut self, site: usize, what: &str, during: Duration) {
        if site < self.sites && !self.lasts(|undo| *undo == Undo::Open(site)) {
            let flag = format!("{what}=false");
            let _ = self.rules(&["rse", "availability", SITES[site], &flag]);
            self.until(during, Undo::Open(site));
        }
    }

    pub(crate) fn is_disturbed(&self, who: Who) -> bool {
        self.lasts(|undo| matches!(undo, Undo::Start(one) | Undo::Thaw(one, _) if *one == who))
    }

    pub(crate) fn kill(&mut self, who: Who, during: Duration) {
        if !self.is_disturbed(who) {
            // PostgreSQL ends its own processes after a crash.
            let signal = if who == Who::Database { Signal::QUIT } else { Signal::KILL };
            self.end_who(who, signal);
            self.counts.kills += 1;
            self.until(during, Undo::Start(who));
        }
    }

    pub(crate) fn freeze(&mut self, who: Who, during: Duration) {
        if self.is_disturbed(who) {
            return;
        }
        let mut pids: Vec<u32> =
            self.process(who).and_then(|process| process.pid()).into_iter().collect();
        if let (Who::Database, Some(database)) = (who, &self.database) {
            let backends = database.backends();
            // The whole server, or one connection.
            match during.as_millis() % 2 {
                0 => pids.extend(backends),
                _ => pids = backends.into_iter().take(1).collect(),
            }
        }
        for pid in &pids {
            // A frozen process does not notice that its database is gone.
            self.keeper.has_process(*pid);
            send(*pid, Signal::STOP);
        }
        self.counts.freezes += 1;
        self.until(during, Undo::Thaw(who, pids));
    }

    pub(crate) fn kill_backend(&mut self, which: usize, crash: bool) {
        let backends =
            self.database.as_ref().map(|database| database.backends()).unwrap_or_default();
        if let Some(at) = which.checked_rem(backends.len()) {
            // One connection is lost, or all of them.
            send(backends[at], if crash { Signal::KILL } else { Signal::TERM });
            self.counts.kills += 1;
        }
    }

    fn away(&self, site: usize) -> PathBuf {
        self.mount_point(site).join("away")
    }

    fn is_folder_disturbed(&self, site: usize) -> bool {
        self.lasts(
            |undo| matches!(undo, Undo::BringBack(one) | Undo::MakeWritable(one) if *one == site),
        )
    }

    pub(crate) fn move_away(&mut self, site: usize, during: Duration) {
        if site < self.sites
            && !self.is_folder_disturbed(site)
            && fs::rename(self.site(site), self.away(site)).is_ok()
        {
            self.counts.folder_faults += 1;
            self.until(during, Undo::BringBack(site));
        }
    }

    pub(crate) fn read_only(&mut self, site: usize, during: Duration) {
        if site < self.sites
            && !self.is_folder_disturbed(site)
            && set_writable(&self.mount_point(site), false)
        {
            self.counts.folder_faults += 1;
            self.until(during, Undo::MakeWritable(site));
        }
    }

    /// Ends the faults that are due, and restarts processes that ended by themselves.
    pub(crate) fn tick(&mut self) -> Result<()> {
        self.end_due_faults(|_| true)?;
        let all = (0..self.servers.len()).map(Who::Server);
        for who in all.chain((0..self.workers.len()).map(Who::Worker)).collect::<Vec<_>>() {
            self.see_to(who);
        }
        Ok(())
    }

    /// Ends the faults of a kind that are due.
    pub(crate) fn end_due_faults(&mut self, kind: fn(&Undo) -> bool) -> Result<()> {
        let is_due = |(at, undo): &(Instant, Undo)| *at <= now() && kind(undo);
        let (due, left) = std::mem::take(&mut self.undo).into_iter().partition(is_due);
        self.undo = left;
        for (_, undo) in due {
            self.note(&format!("over: {undo:?}"));
            self.end_fault(undo)?;
        }
        Ok(())
    }

    /// A server cannot start without its database, nor a worker without its server: they are
    /// started again until they can. Any other end of a process is an error of the round.
    fn see_to(&mut self, who: Who) {
        let ended = match who {
            Who::Server(number) => self.servers[number].ended(&mut self.keeper),
            Who::Worker(number) => self.workers[number].ended(&mut self.keeper),
            Who::Database => None,
        };
        let Some(why) = ended else { return };
        self.note(&format!("{who:?} ended: {why}"));
        let served = matches!(who, Who::Server(_)) && self.database.is_none();
        if served || why.contains("panicked") {
            self.wrong.push(format!("{who:?} ended by itself: {why}"));
        }
        self.until(Duration::from_millis(500), Undo::Start(who));
    }

    fn end_fault(&mut self, undo: Undo) -> Result<()> {
        match undo {
            Undo::Start(who) => {
                self.counts.restarts += 1;
                self.start_who(who)?;
            }
            Undo::Thaw(who, pids) => {
                let own = self.process(who).and_then(|process| process.pid());
                for pid in pids {
                    send(pid, Signal::CONT);
                    if own != Some(pid) {
                        self.keeper.process_ended(pid);
                    }
                }
            }
            Undo::BringBack(site) => fs::rename(self.away(site), self.site(site))?,
            Undo::MakeWritable(site) => {
                set_writable(&self.mount_point(site), true);
            }
            Undo::Open(site) => {
                let words =
                    ["rse", "availability", SITES[site], "read=true", "write=true", "delete=true"];
                if self.rules(&words).is_err() {
                    self.until(Duration::from_millis(500), Undo::Open(site));
                }
            }
        }
        Ok(())
    }

    /// Ends all faults.
    pub(crate) fn end_faults(&mut self) -> Result<()> {
        let until = now() + Duration::from_secs(120);
        while !self.undo.is_empty() && now() < until {
            for (at, undo) in &mut self.undo {
                // A server that is frozen for long stays frozen.
                if !matches!(undo, Undo::Thaw(Who::Server(_), _)) {
                    *at = (*at).min(now());
                }
            }
            // The database comes first, then the processes that need it.
            self.undo.sort_by_key(|(_, undo)| match undo {
                Undo::Start(who) | Undo::Thaw(who, _) => (0, Some(std::cmp::Reverse(*who))),
                Undo::Open(_) => (2, None),
                _ => (1, None),
            });
            self.tick()?;
            short_pause();
        }
        if let Some(database) = &self.database {
            database.wait(Duration::from_secs(30))?;
        }
        for number in 0..self.servers.len() {
            self.wait_for_server(number)?;
        }
        Ok(())
    }
}

/// Makes a site's folder writable or read-only; returns whether that worked.
fn set_writable(at: &Path, writable: bool) -> bool {
    let mut command = match is_mounted(at) {
        true => {
            let mut command = Command::new("mount");
            command.args(["-o", if writable { "remount,rw" } else { "remount,ro" }]);
            command
        }
        false => {
            let mut command = Command::new("chmod");
            command.args(["-R", if writable { "u+w" } else { "a-w" }]);
            command
        }
    };
    command.arg(at).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
