//! Waits after the faults until no transfer runs or waits any more.
//!
//! A transfer that failed is retried after minutes, and a stuck rule after half an hour. To save
//! that time the round reports the one as failed and repairs the other, as a user would.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use super::step::SITES;
use super::world::World;
use super::{hours_ahead, now, short_pause};

/// How long it may take until no transfer is left. A server's own workers hold their files for a minute
/// after it was killed.
const PATIENCE: Duration = Duration::from_secs(240);

/// How often a rule is repaired by hand before it is taken for one that cannot be satisfied now.
const REPAIRS: usize = 4;

/// The seconds until a failed transfer is retried, read from its explanation.
fn seconds_left(why: &str) -> Option<u64> {
    let (_, rest) = why.rsplit_once("is tried again in ")?;
    rest.split(' ').next()?.parse().ok()
}

impl World {
    /// Waits until no transfer is left and everything that was deleted is gone.
    pub(crate) fn become_calm(&mut self) -> Result<()> {
        self.finish_uploads()?;
        self.settle()?;
        // Soft deletions end after an hour, claims after a minute. Then files may have to be
        // transferred again, and so on.
        for hours in [2, 4] {
            let later = hours_ahead(hours)?;
            for daemon in ["cleaner", "reaper", "reaper"] {
                self.patiently(&["judge", daemon, "--once", "--now", &later])?;
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Repeats a command until it works: a process that was frozen is slow at first.
    fn patiently(&mut self, words: &[&str]) -> Result<String> {
        let until = now() + Duration::from_secs(60);
        loop {
            match self.rules(words) {
                Ok(said) => return Ok(said),
                Err(error) if now() > until => bail!("`rules {}`: {error}", words.join(" ")),
                Err(_) => short_pause(),
            }
        }
    }

    fn patiently_ask(&mut self, words: &[&str]) -> Result<Value> {
        let mut all = words.to_vec();
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.patiently(&all)?)?)
    }

    /// Repeats uploads that were killed or refused.
    fn finish_uploads(&mut self) -> Result<()> {
        for file in 0..self.known.len() {
            let Some(site) = self.known[file].unfinished else { continue };
            let dataset = self.members.iter().position(|members| members.contains(&file));
            let words = self.upload_words(&[file], site, dataset.unwrap_or_default());
            self.patiently(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
            self.known[file].unfinished = None;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        let mut repaired = BTreeMap::new();
        let until = now() + PATIENCE;
        let mut quiet = 0;
        while quiet < 2 {
            self.tick()?;
            for daemon in ["evaluator", "finisher", "injector", "cleaner", "reaper"] {
                self.patiently(&["judge", daemon, "--once"])?;
            }
            let moving = self.hurry()?;
            let repairs = self.repair(&mut repaired)?;
            quiet = if moving || repairs { 0 } else { quiet + 1 };
            if now() > until {
                let shown = self.rules(&["transfers"]).unwrap_or_else(|error| error);
                self.wrong.push(format!("transfers or rules do not settle:\n{shown}"));
                return Ok(());
            }
            short_pause();
        }
        Ok(())
    }

    /// Reports transfers that wait for long as failed. Returns whether any transfer runs or waits.
    fn hurry(&mut self) -> Result<bool> {
        let transfers = self.patiently_ask(&["transfers"])?;
        let some = |key: &str| transfers[key].as_array().cloned().unwrap_or_default();
        for one in some("waiting") {
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            if seconds_left(&text("why")).is_some_and(|left| left > 4) {
                let file = format!("{}:{}", text("scope"), text("name"));
                let said = text("why");
                let words = ["transfer", "failed", &text("destination"), &file, "--error", &said];
                let _ = self.rules(&words);
            }
        }
        Ok(!some("moving").is_empty() || !some("waiting").is_empty())
    }

    /// Repairs stuck rules. Returns whether one of them may still be satisfied.
    fn repair(&mut self, repaired: &mut BTreeMap<String, usize>) -> Result<bool> {
        let mut hope = false;
        for rule in self.patiently_ask(&["list"])?.as_array().into_iter().flatten() {
            let id = rule["id"].as_str().unwrap_or_default().to_owned();
            match rule["state"].as_str().unwrap_or_default() {
                "STUCK" => {
                    let times = repaired.entry(id.clone()).or_default();
                    *times += 1;
                    if *times <= REPAIRS {
                        hope = true;
                        let _ = self.rules(&["repair", &id]);
                    }
                }
                "REPLICATING" | "INJECT" => hope = true,
                _ => {}
            }
        }
        Ok(hope)
    }

    /// One line on how large the round was.
    pub(crate) fn size(&self) -> String {
        format!(
            "{} on {} sites, {} server(s) with {} own workers, workers {:?}",
            self.plan.backend.name(),
            self.sites.min(SITES.len()),
            self.plan.servers,
            self.plan.own_workers,
            self.plan.workers
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_of_a_failed_transfer_is_read_from_its_explanation() {
        for (why, left) in [
            ("it failed (the folder is not there) and is tried again in 15 s", Some(15)),
            ("it failed (is tried again in 3 s) and is tried again in 60 s", Some(60)),
            ("SITE-A is closed for writing", None),
        ] {
            assert_eq!(seconds_left(why), left, "{why}");
        }
    }
}
