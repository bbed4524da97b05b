//! Carries out the steps of users through the command line. Faults are in `faults`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::step::{CONTAINER, DATASETS, Deletion, EXPRESSIONS, NewFile, NewRule, Step};
use super::verify::{Replica, lines_in_state, replicas};
use super::world::{SCOPE, World};

impl World {
    /// Carries out one step. A command that is refused is not an error.
    pub(crate) fn act(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::AddRule(rule) => self.add_rule(rule),
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
            Step::Upload { files, killed } => self.upload(files, *killed)?,
            Step::Close { site, what, during } => self.close(*site, what, *during),
            Step::Download { file } => self.download(*file)?,
            Step::Check => self.check(),
            Step::Rush { add, delete, attach } => self.rush(add, delete, attach)?,
            Step::Reap => {
                let _ = self.rules(&["judge", "reaper", "--once"]);
            }
            Step::Kill { who, during } => self.kill(*who, *during),
            Step::Freeze { who, during } => self.freeze(*who, *during),
            Step::KillBackend { which, crash } => self.kill_backend(*which, *crash),
            Step::Away { site, during } => self.move_away(*site, *during),
            Step::ReadOnly { site, during } => self.read_only(*site, *during),
        }
        Ok(())
    }

    /// A rule of this round with the name it is for: often the last one, whose copies are in transfer.
    fn pick_rule(&self, number: usize) -> Option<(String, String)> {
        if number.is_multiple_of(2) {
            return self.rules.last().cloned();
        }
        let at = number.checked_rem(self.rules.len())?;
        self.rules.get(at).cloned()
    }

    fn add_rule(&mut self, rule: &NewRule) {
        let (words, what) = self.rule_words(rule);
        if let Ok(rule) = self.rules(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
            self.rules.push((rule.trim().to_owned(), what));
        }
    }

    /// The arguments that add a rule, and the name it is for.
    fn rule_words(&mut self, rule: &NewRule) -> (Vec<String>, String) {
        let (expression, _) = EXPRESSIONS[rule.expression];
        let what = match DATASETS.get(rule.did) {
            Some(dataset) => (*dataset).to_owned(),
            None if rule.did == DATASETS.len() => CONTAINER.to_owned(),
            None => self.known[rule.file % self.known.len()].name.clone(),
        };
        let (did, copies) = (format!("{SCOPE}:{what}"), rule.copies.to_string());
        let words =
            ["add", &did, "--copies", &copies, "-e", expression, "--grouping", rule.grouping];
        let mut words = words.map(str::to_owned).to_vec();
        if let Some(lifetime) = rule.lifetime {
            self.let_go(&self.below(&what));
            words.extend(["--lifetime".to_owned(), lifetime.to_string()]);
        }
        (words, what)
    }

    /// Starts several commands at once and waits for them; the list shows which rules they made.
    fn rush(&mut self, add: &[NewRule], delete: &[usize], attach: &[(usize, usize)]) -> Result<()> {
        let mut all: Vec<Vec<String>> = add.iter().map(|rule| self.rule_words(rule).0).collect();
        for rule in delete {
            let picked = self.pick_rule(*rule).filter(|(_, of)| of != DATASETS[0]);
            let Some((rule, of)) = picked else { continue };
            self.let_go(&self.below(&of));
            all.push(["delete", &rule, "--purge"].map(str::to_owned).to_vec());
        }
        for (dataset, file) in attach {
            let file = file % self.known.len();
            self.members[*dataset].insert(file);
            let (parent, child) =
                (format!("{SCOPE}:{}", DATASETS[*dataset]), self.known[file].did());
            all.push(["did", "attach", &parent, &child].map(str::to_owned).to_vec());
        }
        let mut running = Vec::new();
        for words in &all {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            running.push(self.command(&words)?.spawn().context("cannot run mainstay")?);
        }
        for (mut child, words) in running.into_iter().zip(all) {
            let status = self.wait_for(&mut child)?;
            self.note(&format!("{} -> {status:?}", words.join(" ")));
            self.counts.refused += usize::from(!status.is_some_and(|status| status.success()));
        }
        if let Ok(Value::Array(rules)) = self.ask(&["list"]) {
            let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
            let listed = rules.iter().map(|rule| (text(rule, "id"), text(rule, "name")));
            let new: Vec<_> = listed.filter(|rule| !self.rules.contains(rule)).collect();
            self.rules.extend(new);
        }
        Ok(())
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
            // Files of the first dataset are held by a rule that no step deletes.
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

    /// Whether one copy of a file may be spoilt: the file may be lost, or the rule that keeps it
    /// holds two available copies. A rule may be OK though it has not seen its newest files yet.
    fn may_be_spoilt(&mut self, file: usize) -> bool {
        if !self.members[0].contains(&file) {
            return true;
        }
        let Ok(Value::Array(rules)) = self.ask(&["list", "--name", DATASETS[0]]) else {
            return false;
        };
        let well = |rule: &&Value| rule["state"] == "OK" && rule["child_rule_id"].is_null();
        let ids = rules.iter().filter(well).filter_map(|rule| rule["id"].as_str());
        ids.map(str::to_owned).collect::<Vec<_>>().iter().any(|id| {
            let explained = self.rules(&["explain", id, &self.known[file].did()]);
            lines_in_state(&explained.unwrap_or_default(), "OK").count() >= 2
        })
    }

    fn declare_bad(&mut self, file: usize, copy: usize) {
        let file = file % self.known.len();
        if !self.may_be_spoilt(file) {
            return;
        }
        let Some(copy) = self.pick_copy(file, copy) else { return };
        self.let_go(&[file]);
        let _ = self.rules(&["replica", "bad", &copy.rse, &self.known[file].did()]);
    }

    /// Spoils one of two copies, and soon after declares it bad.
    fn corrupt(&mut self, file: usize, copy: usize, cut: bool) -> Result<()> {
        let kept: Vec<usize> = self.members[0].iter().copied().collect();
        let Some(at) = file.checked_rem(kept.len()) else { return Ok(()) };
        let file = kept[at];
        if self.known[file].bytes == 0 || !self.may_be_spoilt(file) {
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
            // The declaration failed: restore the content, if it is still that file.
            open.write_all_at(&right, 0)?;
        }
        Ok(())
    }

    fn tombstone(&mut self, file: usize, copy: usize) {
        let file = file % self.known.len();
        if !self.may_be_spoilt(file) {
            return;
        }
        let Some(copy) = self.pick_copy(file, copy) else { return };
        self.let_go(&[file]);
        let _ = self.rules(&["replica", "tombstone", &copy.rse, &self.known[file].did()]);
    }

    /// Downloads a file: the content is as it was written, or the download fails.
    fn download(&mut self, file: usize) -> Result<()> {
        let file = file % self.known.len();
        let (did, into) = (self.known[file].did(), self.folder.join("fetched"));
        let place = into.join(SCOPE).join(&self.known[file].name);
        if self.rules(&["download", &did, "--into", &into.display().to_string()]).is_ok()
            && fs::read(&place)? != self.known[file].content()
        {
            self.wrong.push(format!("{did} was downloaded with wrong content"));
        }
        Ok(())
    }

    /// Runs `rules check`, which must pass at every moment.
    pub(crate) fn check(&mut self) {
        let Err(said) = self.rules(&["check", "-o", "json"]) else { return };
        let list = fs::read_to_string(self.folder.join("stdout")).unwrap_or_default();
        if list.contains("violations") {
            self.wrong.push(format!("`rules check` is not clean: {list}{said}"));
        }
    }

    fn upload(&mut self, files: &[NewFile], killed: Option<Duration>) -> Result<()> {
        let Some(NewFile { site, dataset, .. }) = files.first().cloned() else { return Ok(()) };
        let numbers: Vec<usize> =
            files.iter().map(|file| self.write_file(file)).collect::<Result<_>>()?;
        let words = self.upload_words(&numbers, site, dataset);
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
        for number in numbers {
            self.known[number].unfinished = (!done).then_some(site);
        }
        Ok(())
    }
}
