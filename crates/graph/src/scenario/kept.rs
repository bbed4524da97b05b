//! The simulated south in a file, so that it survives the process: one JSON line for each change.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::south::Held;

/// A change of the south: a value, or none where it was deleted.
#[derive(Serialize, Deserialize)]
struct Line<K, H> {
    key: K,
    held: H,
}

/// The open file.
#[derive(Debug)]
pub(super) struct KeptSouth(File);

impl KeptSouth {
    /// Reads the file, or begins it with `initial`, and rewrites it with one line per value.
    pub(super) fn open(
        path: &Path,
        initial: BTreeMap<String, Held>,
    ) -> io::Result<(Self, BTreeMap<String, Held>)> {
        let values = match File::open(path) {
            Ok(file) => read(file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => initial,
            Err(error) => return Err(error),
        };
        let fresh = path.with_extension("new");
        let mut kept = Self(File::create(&fresh)?);
        for (key, held) in &values {
            kept.write(key, Some(held))?;
        }
        kept.0.sync_all()?;
        std::fs::rename(&fresh, path)?;
        Ok((kept, values))
    }

    /// Appends a change. It survives a kill of the process, not a loss of power.
    pub(super) fn write(&mut self, key: &str, held: Option<&Held>) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Line { key, held })?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

fn read(file: File) -> io::Result<BTreeMap<String, Held>> {
    let mut values = BTreeMap::new();
    let mut reader = BufReader::new(file);
    let mut line = String::new();
    loop {
        line.clear();
        // A line without an end was cut off by a kill: its operation had no effect.
        if reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(values);
        }
        let Line { key, held } = serde_json::from_str::<Line<String, Option<Held>>>(&line)?;
        match held {
            Some(held) => values.insert(key, held),
            None => values.remove(&key),
        };
    }
}
