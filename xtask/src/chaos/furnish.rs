//! Sets up a round: storage elements in folders, datasets, files, and the rule that keeps some of
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::Result;

use super::process::{is_mounted, is_root};
use super::step::{CONTAINER, DATASETS, NewFile, SITES, TINY};
use super::world::{Known, SCOPE, World};

impl World {
    /// Mounts a disk for each site if we are root; the last one is tiny.
    pub(crate) fn mount(&mut self) -> Result<()> {
        for (number, name) in SITES.iter().enumerate() {
            let place = self.mount_point(number);
            fs::create_dir_all(&place)?;
            if !is_root() {
                continue;
            }
            let size = if number == TINY { "size=2m" } else { "size=512m" };
            let mut command = Command::new("mount");
            command.args(["-t", "tmpfs", "-o", size, name]).arg(&place);
            if command.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
                self.keeper.has_mount(&place);
            }
        }
        if !is_mounted(&self.mount_point(TINY)) {
            eprintln!("chaos: !!! NOT TESTED: a full storage element, which needs root !!!");
            self.sites = TINY;
        }
        Ok(())
    }

    /// Registers storage elements, datasets, the first files, and the rule that keeps some of them.
    pub(crate) fn furnish(&mut self) -> Result<()> {
        for (number, name) in SITES.into_iter().enumerate().take(self.sites) {
            let place = self.site(number);
            self.must(&["rse", "add", name])?;
            self.must(&["rse", "protocol", name, &format!("file://{}", place.display())])?;
            self.must(&["quota", "set", "root", name, "-1"])?;
            if number != TINY {
                self.must(&["rse", "set", name, "tier=1"])?;
            }
            if number > 0 {
                self.must(&["rse", "distance", SITES[0], name, &number.to_string()])?;
            }
        }
        // Some sites delete replicas without locks at once.
        for name in &SITES[1..4] {
            self.must(&["rse", "set", name, "greedyDeletion=true"])?;
        }
        self.must(&["rse", "transfers", SITES[2], "2"])?;
        self.must(&["account", "scope", "root", SCOPE])?;
        for name in DATASETS {
            self.must(&["did", "add", &format!("{SCOPE}:{name}")])?;
        }
        let container = format!("{SCOPE}:{CONTAINER}");
        self.must(&["did", "add", &container, "--container"])?;
        self.must(&["did", "attach", &container, "s:d0", "s:d1"])?;
        self.upload_first()?;
        let kept = format!("{SCOPE}:{}", DATASETS[0]);
        let rule = self.must(&["add", &kept, "--copies", "2", "-e", "tier=1"])?;
        self.rules.push((rule.trim().to_owned(), DATASETS[0].to_owned()));
        Ok(())
    }

    /// Uploads the first files, those for one site and dataset together.
    fn upload_first(&mut self) -> Result<()> {
        let mut together: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for file in self.plan.files.clone() {
            let number = self.write_file(&file)?;
            together.entry((file.site, file.dataset)).or_default().push(number);
        }
        for ((site, dataset), files) in together {
            let words = self.upload_words(&files, site, dataset);
            self.must(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Writes a new file into the folder that uploads read.
    pub(crate) fn write_file(&mut self, file: &NewFile) -> Result<usize> {
        let number = self.known.len();
        let seed = self.plan.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        let name = format!("f{number}");
        let known = Known { name, bytes: file.bytes, seed, unfinished: None, may_go: false };
        fs::create_dir_all(self.folder.join("own"))?;
        fs::write(self.folder.join("own").join(&known.name), known.content())?;
        self.counts.files += 1;
        self.counts.bytes += file.bytes;
        self.known.push(known);
        self.members[file.dataset].insert(number);
        Ok(number)
    }

    pub(crate) fn upload_words(&self, files: &[usize], site: usize, dataset: usize) -> Vec<String> {
        let mut words = ["upload", SITES[site], "--scope", SCOPE].map(str::to_owned).to_vec();
        words.extend(["--dataset".to_owned(), format!("{SCOPE}:{}", DATASETS[dataset])]);
        let place = |file: &usize| self.folder.join("own").join(&self.known[*file].name);
        words.extend(files.iter().map(|file| place(file).display().to_string()));
        words
    }
}
