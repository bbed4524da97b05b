//! Fills a catalog before a server on it is measured over HTTP.

use std::path::Path;

use mainstay_catalog::Catalog;
use mainstay_transfers::copy::Adding;
use mainstay_transfers::protocol::Protocol;
use serde_json::json;

use super::{ACCOUNT, Bench, Options, SCOPE};
use crate::api::{Did, NewFile};
use crate::error::{Class, Result, refuse};
use crate::rse::{self, RseSettings};
use crate::{account, protocol, replica};

/// The account that owns everything, without limits.
pub const OWNER: &str = ACCOUNT;

/// Creates a dataset of `number` files on an RSE with a protocol, so that they have physical names.
pub fn listed(catalog: &Catalog, number: u64) -> Result<Did> {
    let options = Options::default();
    let mut tell = |_: &super::Measured| {};
    let mut bench = Bench::new(catalog, &options, &mut tell);
    bench.furnish()?;
    let body = json!({"hostname": "site-03.example.org", "port": 443, "prefix": "/data"});
    reach(catalog, "SITE-03", "davs", &body)?;
    let dataset = bench.dataset(number, "SITE-03")?;
    // Otherwise the evaluator would work on it during the measurement.
    bench.judge(mainstay_catalog::Daemon::Evaluator)?;
    if catalog.backend() == "postgres" {
        catalog.write_blocking(|tx| tx.execute("ANALYZE", &[]))?;
    }
    Ok(Did::new(SCOPE, dataset))
}

fn reach(catalog: &Catalog, rse: &str, scheme: &str, body: &serde_json::Value) -> Result<()> {
    let body = body.as_object().cloned().unwrap_or_default();
    let new = Protocol::read(scheme, &body)?;
    catalog.write_blocking(|tx| protocol::add(tx, rse, &new))
}

/// Creates a dataset of real files of equal size in the folder `from`, which is the RSE FROM-DISK;
/// `to` is the RSE TO-DISK. No two files have the same content.
pub fn laid_out(
    catalog: &Catalog,
    from: &Path,
    to: &Path,
    number: u64,
    bytes: usize,
) -> Result<Did> {
    let options = Options::default();
    let mut tell = |_: &super::Measured| {};
    let mut bench = Bench::new(catalog, &options, &mut tell);
    bench.furnish()?;
    for (at, (name, folder)) in [("FROM-DISK", from), ("TO-DISK", to)].into_iter().enumerate() {
        let (now, uuid) = (bench.now(), format!("{:032x}", 9_000 + at));
        catalog.write_blocking(|tx| {
            rse::add(tx, name, &RseSettings::default(), &uuid, now)?;
            account::set_local_limit(tx, ACCOUNT, name, Some(1 << 60))
        })?;
        reach(catalog, name, "file", &json!({"prefix": folder.display().to_string()}))?;
    }
    let dataset = bench.name("moved");
    bench.collection(&dataset)?;
    let failed =
        |error: std::io::Error| refuse(Class::InvalidPath, format!("{}: {error}", from.display()));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut content = vec![0_u8; bytes];
    for first in (0..number).step_by(5_000) {
        let some = 5_000.min(number - first);
        let mut files = Vec::new();
        for at in first..first + some {
            for eight in content.chunks_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                eight.copy_from_slice(&state.to_le_bytes()[..eight.len()]);
            }
            let did = Bench::file(&dataset, at);
            let place = from.join(mainstay_transfers::protocol::hashed_path(&did));
            if let Some(folder) = place.parent() {
                std::fs::create_dir_all(folder).map_err(failed)?;
            }
            std::fs::write(&place, &content).map_err(failed)?;
            let mut adding = Adding::new(false);
            adding.add(&content);
            let adler32 = Some(adding.sums().adler32);
            let bytes = bytes as i64;
            files.push(NewFile { did, bytes, adler32, md5: None, path: None, state: None });
        }
        let now = bench.now();
        catalog
            .write_blocking(|tx| replica::add_replicas(tx, "FROM-DISK", &files, ACCOUNT, now))?;
        bench.attach(&dataset, first, some)?;
    }
    Ok(Did::new(SCOPE, dataset))
}
