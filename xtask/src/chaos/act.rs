//! Doing the steps: what users ask for, through the command line, and faults, which end by
//! themselves after a while.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::plan::{CONTAINER, DATASETS, Deletion, EXPRESSIONS, NewFile, SITES, Step, TINY, Who};
use super::process::{is_mounted, send};
use super::verify::{Replica, replicas};
use super::world::{SCOPE, Undo, World};
use super::{now, short_pause};

impl World {
    /// Does one step; what is refused is no fault.
    pub(crate) fn act(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::AddRule { did, file, expression, copies, grouping } => {
                self.add_rule(*did, *file, *expression, *copies, grouping);
            }
            Step::DeleteRule { rule, how } => self.delete_rule(*rule, *how),
            Step::MoveRule { rule, expression } => self.move_rule(*rule, *expression),
            Step::ReduceRule { rule } => {
                if let Some((rule, of)) = self.pick_rule(*rule)
                    && of != DATASETS[0]
                {
                    let _ = self.rules(&["reduce", &rule, "1"]);
                }
            }
            Step::RepairRule { rule } => {
                if let Some((rule, _)) = self.pick_rule(*rule) {
                    let _ = self.rules(&["repair", &rule]);
                }
            }
            Step::Attach { dataset, file } => self.attach(*dataset, *file),
            Step::Detach { dataset, file } => self.detach(*dataset, *file),
            Step::Nest { dataset, into } => self.nest(*dataset, *into),
            Step::DeclareBad { file, copy } => self.declare_bad(*file, *copy),
            Step::Corrupt { file, copy, cut } => self.corrupt(*file, *copy, *cut)?,
            Step::Tombstone { file, copy } => self.tombstone(*file, *copy),
            Step::Upload { file, killed } => self.upload(file, *killed)?,
            Step::Close { site, what, during } => self.close(*site, what, *during),
            Step::Reap => {
                let _ = self.rules(&["judge", "reaper", "--once"]);
            }
            Step::Kill { who, during } => self.kill(*who, *during),
            Step::Freeze { who, during } => self.freeze(*who, *during),
            Step::KillBackend { which } => self.kill_backend(*which),
            Step::Away { site, during } => self.move_away(*site, *during),
            Step::ReadOnly { site, during } => self.read_only(*site, *during),
        }
        Ok(())
    }

    /// A rule that we made, and what for.
    fn pick_rule(&self, number: usize) -> Option<(String, String)> {
        let at = number.checked_rem(self.rules.len())?;
        self.rules.get(at).cloned()
    }

    fn add_rule(
        &mut self,
        did: usize,
        file: usize,
        expression: usize,
        copies: usize,
        grouping: &str,
    ) {
        let (expression, _) = EXPRESSIONS[expression];
        let what = match DATASETS.get(did) {
            Some(dataset) => (*dataset).to_owned(),
            None if did == DATASETS.len() => CONTAINER.to_owned(),
            None => self.known[file % self.known.len()].name.clone(),
        };
        let (did, copies) = (format!("{SCOPE}:{what}"), copies.to_string());
        let words = ["add", &did, "--copies", &copies, "-e", expression, "--grouping", grouping];
        if let Ok(rule) = self.rules(&words) {
            self.rules.push((rule.trim().to_owned(), what));
        }
    }

    /// The files that are, or once were, below a name.
    pub(crate) fn below(&self, name: &str) -> Vec<usize> {
        if name == CONTAINER {
            return self.members[1..].iter().flatten().copied().collect();
        }
        match DATASETS.iter().position(|dataset| *dataset == name) {
            Some(dataset) => self.members[dataset].iter().copied().collect(),
            None => self.known.iter().position(|known| known.name == name).into_iter().collect(),
        }
    }

    fn let_go(&mut self, files: &[usize]) {
        for file in files {
            // What is kept is wanted by a rule that nobody deletes.
            self.known[*file].may_go |= !self.members[0].contains(file);
        }
    }

    fn delete_rule(&mut self, rule: usize, how: Deletion) {
        let Some((rule, of)) = self.pick_rule(rule).filter(|(_, of)| of != DATASETS[0]) else {
            return;
        };
        self.let_go(&self.below(&of));
        let mut words = vec!["delete", &rule];
        match how {
            Deletion::AtOnce => {}
            Deletion::Soft => words.push("--soft"),
            Deletion::Purge => words.push("--purge"),
        }
        let _ = self.rules(&words);
    }

    fn move_rule(&mut self, rule: usize, expression: usize) {
        let Some((rule, of)) = self.pick_rule(rule) else { return };
        if let Ok(new) = self.rules(&["move", &rule, EXPRESSIONS[expression].0]) {
            self.rules.push((new.trim().to_owned(), of));
        }
    }

    fn attach(&mut self, dataset: usize, file: usize) {
        let file = file % self.known.len();
        self.members[dataset].insert(file);
        let (parent, child) = (format!("{SCOPE}:{}", DATASETS[dataset]), self.known[file].did());
        let _ = self.rules(&["did", "attach", &parent, &child]);
    }

    fn detach(&mut self, dataset: usize, file: usize) {
        let members: Vec<usize> = self.members[dataset].iter().copied().collect();
        let Some(at) = file.checked_rem(members.len()) else { return };
        self.let_go(&[members[at]]);
        let parent = format!("{SCOPE}:{}", DATASETS[dataset]);
        let child = self.known[members[at]].did();
        let _ = self.rules(&["did", "detach", &parent, &child]);
    }

    fn nest(&mut self, dataset: usize, into: bool) {
        let (parent, child) =
            (format!("{SCOPE}:{CONTAINER}"), format!("{SCOPE}:{}", DATASETS[dataset]));
        if !into {
            self.let_go(&self.below(DATASETS[dataset]));
        }
        let what = if into { "attach" } else { "detach" };
        let _ = self.rules(&["did", what, &parent, &child]);
    }

    /// A copy of a file that is there, by number.
    fn pick_copy(&mut self, file: usize, copy: usize) -> Option<Replica> {
        let did = self.known[file].did();
        let listed = self.ask(&["replica", "list", &did]).ok()?;
        let some: Vec<Replica> =
            replicas(&listed).into_iter().filter(Replica::is_available).collect();
        let at = copy.checked_rem(some.len())?;
        some.get(at).cloned()
    }

    /// Whether the files that must not be lost have two copies each at this moment.
    fn kept_is_whole(&mut self) -> bool {
        let Ok(Value::Array(rules)) = self.ask(&["list", "--name", DATASETS[0]]) else {
            return false;
        };
        rules.iter().any(|rule| rule["state"] == "OK" && rule["child_rule_id"].is_null())
    }

    fn declare_bad(&mut self, file: usize, copy: usize) {
        let file = file % self.known.len();
        if self.members[0].contains(&file) && !self.kept_is_whole() {
            return;
        }
        let Some(copy) = self.pick_copy(file, copy) else { return };
        self.let_go(&[file]);
        let _ = self.rules(&["replica", "bad", &copy.rse, &self.known[file].did()]);
    }

    /// Spoils one of two copies, and says so soon after.
    fn corrupt(&mut self, file: usize, copy: usize, cut: bool) -> Result<()> {
        let kept: Vec<usize> = self.members[0].iter().copied().collect();
        let Some(at) = file.checked_rem(kept.len()) else { return Ok(()) };
        let file = kept[at];
        if self.known[file].bytes == 0 || !self.kept_is_whole() {
            return Ok(());
        }
        let Some(copy) = self.pick_copy(file, copy) else { return Ok(()) };
        let Ok(open) = fs::File::options().write(true).open(&copy.path) else { return Ok(()) };
        let (right, length) = (self.known[file].content(), self.known[file].bytes / 2);
        match cut {
            true => open.set_len(length as u64)?,
            false => open.write_all_at(&[!right[length]], length as u64)?,
        }
        std::thread::sleep(Duration::from_millis(at as u64 * 10));
        let did = self.known[file].did();
        if self.rules(&["replica", "bad", &copy.rse, &did]).is_err() {
            // Nobody heard: it is as it was, if it is still that file.
            open.write_all_at(&right, 0)?;
        }
        Ok(())
    }

    fn tombstone(&mut self, file: usize, copy: usize) {
        let file = file % self.known.len();
        let Some(copy) = self.pick_copy(file, copy) else { return };
        self.let_go(&[file]);
        let _ = self.rules(&["replica", "tombstone", &copy.rse, &self.known[file].did()]);
    }

    fn upload(&mut self, file: &NewFile, killed: Option<Duration>) -> Result<()> {
        let number = self.write_file(file)?;
        let words = self.upload_words(number, file.site, file.dataset);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = match killed {
            None => self.rules(&words).is_ok(),
            Some(after) => {
                let mut child = self.command(&words)?.spawn().context("cannot run mainstay")?;
                std::thread::sleep(after);
                child.kill()?;
                self.counts.kills += 1;
                child.wait()?.success()
            }
        };
        if !done {
            self.known[number].unfinished = Some(file.site);
        }
        Ok(())
    }

    /// Whether something of the kind lasts already.
    fn lasts(&self, same: impl Fn(&Undo) -> bool) -> bool {
        self.undo.iter().any(|(_, undo)| same(undo))
    }

    fn until(&mut self, during: Duration, undo: Undo) {
        self.undo.push((now() + during, undo));
    }

    fn close(&mut self, site: usize, what: &str, during: Duration) {
        if site < self.sites && !self.lasts(|undo| *undo == Undo::Open(site)) {
            let flag = format!("{what}=false");
            let _ = self.rules(&["rse", "availability", SITES[site], &flag]);
            self.until(during, Undo::Open(site));
        }
    }

    fn is_disturbed(&self, who: Who) -> bool {
        self.lasts(|undo| matches!(undo, Undo::Start(one) | Undo::Thaw(one, _) if *one == who))
    }

    fn kill(&mut self, who: Who, during: Duration) {
        if !self.is_disturbed(who) {
            // PostgreSQL's own way of falling down.
            let signal = if who == Who::Database { Signal::QUIT } else { Signal::KILL };
            self.end_who(who, signal);
            self.counts.kills += 1;
            self.until(during, Undo::Start(who));
        }
    }

    fn freeze(&mut self, who: Who, during: Duration) {
        if self.is_disturbed(who) {
            return;
        }
        let mut pids: Vec<u32> =
            self.process(who).and_then(|process| process.pid()).into_iter().collect();
        if let (Who::Database, Some(database)) = (who, &self.database) {
            let backends = database.backends();
            // All of it, or one connection.
            match during.as_millis() % 2 {
                0 => pids.extend(backends),
                _ => pids = backends.into_iter().take(1).collect(),
            }
        }
        for pid in &pids {
            send(*pid, Signal::STOP);
        }
        self.counts.freezes += 1;
        self.until(during, Undo::Thaw(who, pids));
    }

    fn kill_backend(&mut self, which: usize) {
        let backends =
            self.database.as_ref().map(|database| database.backends()).unwrap_or_default();
        if let Some(at) = which.checked_rem(backends.len()) {
            send(backends[at], Signal::KILL);
            self.counts.kills += 1;
        }
    }

    fn away(&self, site: usize) -> PathBuf {
        self.mount_point(site).join("away")
    }

    fn move_away(&mut self, site: usize, during: Duration) {
        let disturbed = |undo: &Undo| matches!(undo, Undo::BringBack(one) | Undo::MakeWritable(one) if *one == site);
        if site < self.sites
            && !self.lasts(disturbed)
            && fs::rename(self.site(site), self.away(site)).is_ok()
        {
            self.counts.folder_faults += 1;
            self.until(during, Undo::BringBack(site));
        }
    }

    fn read_only(&mut self, site: usize, during: Duration) {
        let disturbed = |undo: &Undo| matches!(undo, Undo::BringBack(one) | Undo::MakeWritable(one) if *one == site);
        if site < self.sites
            && !self.lasts(disturbed)
            && set_writable(&self.mount_point(site), false)
        {
            self.counts.folder_faults += 1;
            self.until(during, Undo::MakeWritable(site));
        }
    }

    /// Ends the faults that have lasted long enough, and sees whether anybody ended by itself.
    pub(crate) fn tick(&mut self) -> Result<()> {
        let (due, left) =
            std::mem::take(&mut self.undo).into_iter().partition(|(at, _)| *at <= now());
        self.undo = left;
        for (_, undo) in due {
            self.note(&format!("over: {undo:?}"));
            self.end_fault(undo)?;
        }
        let all = (0..self.servers.len()).map(Who::Server);
        for who in all.chain((0..self.workers.len()).map(Who::Worker)).collect::<Vec<_>>() {
            self.see_to(who);
        }
        Ok(())
    }

    /// A server cannot start without its database, nor a worker without its server: they are
    /// started again until they can. Nobody ends for any other reason.
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
            Undo::Thaw(_, pids) => {
                for pid in pids {
                    send(pid, Signal::CONT);
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
        let until = now() + Duration::from_secs(60);
        while !self.undo.is_empty() && now() < until {
            for (at, _) in &mut self.undo {
                *at = (*at).min(now());
            }
            // The database first, and who needs it after that.
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

/// Opens or closes a site's folder for writing; says whether that was done.
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
    command.arg(at).stderr(std::process::Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The tiny site is left out of what must become right.
pub(crate) fn may_be_full(expression: &str) -> bool {
    expression.contains('*') || expression.contains(SITES[TINY])
}
