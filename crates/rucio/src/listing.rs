//! Handles `/replicas/list`: lists the replicas of files with their physical names.
//!
//! Rows are grouped by file as the database yields them, and each file is written at once, so
//! that a list of millions takes no more memory than one of ten.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::{Row, Tx, values};
use mainstay_rules::api::{Did, DidType, Micros, ReplicaState, SECOND};
use mainstay_rules::error::Result;
use mainstay_rules::expression::Rse;
use mainstay_rules::rule::update::read_time;
use mainstay_rules::{did, protocol};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use serde_json::Value;

use super::rules::dids;
use super::{Call, Reply, field, flag, number, text, texts, wrong};

/// The parameters of a listing.
struct ReplicaQuery {
    dids: Vec<Did>,
    all_states: bool,
    /// Whether unavailable and copying replicas are listed too.
    unavailable: bool,
    ignore_availability: bool,
    schemes: Option<Vec<String>>,
    expression: Option<String>,
    domains: &'static [&'static str],
    updated_after: Option<Micros>,
    parents: bool,
    /// How many physical names of a file are listed, chosen at random.
    at_most: Option<usize>,
    seed: u64,
    metalink: bool,
}

/// One physical name.
#[derive(Serialize)]
struct Physical<'a> {
    rse_id: &'a str,
    rse: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    volatile: bool,
    domain: &'a str,
    priority: usize,
    client_extract: bool,
}

/// One file as clients read it.
#[derive(Serialize)]
struct File<'a> {
    scope: String,
    name: String,
    bytes: Option<i64>,
    md5: Option<String>,
    adler32: Option<String>,
    pfns: BTreeMap<String, Physical<'a>>,
    rses: BTreeMap<&'a str, Vec<String>>,
    states: BTreeMap<&'a str, ReplicaState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parents: Option<&'a [String]>,
}

/// A listed RSE with the prefixes of its physical names.
struct Site<'a> {
    rse: &'a Rse,
    bases: Vec<(String, &'static str)>,
}

pub(super) fn list(call: &Call) -> Result<Reply> {
    let body = &call.body;
    // These fields are checked for their type and otherwise ignored.
    field(body, "client_location", "an object", Value::as_object)?;
    text(body, "sort")?;
    number(body, "signature_lifetime")?;
    flag(body, "resolve_archives")?;
    let at_most = field(body, "nrandom", "a number that is not negative", |value| {
        value.as_u64().and_then(|number| usize::try_from(number).ok())
    })?;
    let wanted = ReplicaQuery {
        dids: dids(body.get("dids"))?,
        all_states: flag(body, "all_states")?.unwrap_or(false),
        unavailable: flag(body, "unavailable")?.unwrap_or(false),
        ignore_availability: flag(body, "ignore_availability")?.unwrap_or(true),
        schemes: texts(body, "schemes")?,
        expression: text(body, "rse_expression")?
            .filter(|text| !text.is_empty())
            .map(str::to_owned),
        domains: match text(body, "domain")? {
            None | Some("wan") => &["wan"],
            Some("lan") => &["lan"],
            Some("all") => &["wan", "lan"],
            Some(_) => return Err(wrong("The field domain should be wan, lan or all")),
        },
        updated_after: field(body, "updated_after", "a time", moment)?,
        parents: flag(body, "resolve_parents")?.unwrap_or(false),
        at_most: at_most.filter(|number| *number > 0),
        seed: call.service.around.seed(),
        metalink: call.metalink,
    };
    let metalink = wanted.metalink;
    let lines = Box::new(move |tx: &mut Tx<'_>, line: &mut dyn FnMut(String) -> Result<()>| {
        if wanted.metalink {
            line(METALINK.to_owned())?;
        }
        wanted.write(tx, line)?;
        if wanted.metalink { line("</metalink>".to_owned()) } else { Ok(()) }
    });
    Ok(if metalink { Reply::Metalink(lines) } else { Reply::Lines(lines) })
}

/// A time as clients write it: a text, or seconds since 1970.
fn moment(value: &Value) -> Option<Micros> {
    match value {
        Value::String(text) => read_time(text),
        value => value.as_f64().map(|seconds| (seconds * SECOND as f64) as Micros),
    }
}

const METALINK: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">";

/// The SQL for the replicas of one file, of a dataset's files, or of all files below a container.
fn replicas_sql(kind: DidType) -> String {
    let (with, from) = match kind {
        DidType::File => ("", "(SELECT id FROM dids WHERE id = ?1) f"),
        DidType::Dataset => ("", "(SELECT child AS id FROM contents WHERE parent = ?1) f"),
        DidType::Container => (
            "WITH RECURSIVE down(id, did_type) AS (SELECT id, did_type FROM dids WHERE id = ?1
             UNION SELECT c.child, c.child_type FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'C'),
             files(id) AS (SELECT DISTINCT c.child FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'D') ",
            "files f",
        ),
    };
    format!(
        "{with}SELECT d.id, d.scope, d.name, d.bytes, d.md5, d.adler32, p.rse_id, p.state, p.path
         FROM {from} JOIN dids d ON d.id = f.id LEFT JOIN replicas p ON p.did_id = f.id
         AND (?2 = 1 OR p.state = 'A' OR (?4 = 1 AND p.state IN ('U', 'C'))) AND p.updated_at >= ?3 ORDER BY f.id"
    )
}

impl ReplicaQuery {
    fn sites<'a>(&self, tx: &mut Tx<'_>, rses: &'a [Rse]) -> Result<BTreeMap<i64, Site<'a>>> {
        let within: Option<BTreeSet<i64>> = match &self.expression {
            None => None,
            Some(text) => Some(mainstay_rules::rse::resolve(tx, text)?),
        };
        let taken = rses.iter().filter(|rse| {
            within.as_ref().is_none_or(|within| within.contains(&rse.id))
                && (self.ignore_availability || rse.read)
        });
        let site = |rse: &'a Rse| {
            let mut bases = Vec::new();
            for domain in self.domains {
                let mut ranked: Vec<_> = rse
                    .protocols
                    .iter()
                    .filter(|one| {
                        self.schemes.as_ref().is_none_or(|schemes| schemes.contains(&one.scheme))
                    })
                    .filter_map(|one| Some((one.rank(domain, "read")?, one)))
                    .collect();
                ranked.sort_by_key(|(rank, _)| *rank);
                for (_, one) in ranked {
                    let base = one.base();
                    // A name that is the same in both domains is listed once.
                    if !bases.iter().any(|(known, _)| *known == base) {
                        bases.push((base, *domain));
                    }
                }
            }
            (rse.id, Site { rse, bases })
        };
        Ok(taken.map(site).collect())
    }

    fn write(&self, tx: &mut Tx<'_>, line: &mut dyn FnMut(String) -> Result<()>) -> Result<()> {
        let rses = mainstay_rules::rse::all(tx)?;
        let sites = self.sites(tx, &rses)?;
        // Unknown names must fail before the first line is sent; later the only way is to cut the stream.
        let roots = self.dids.iter().map(|name| Ok((name, did::get(tx, name)?)));
        for (name, root) in roots.collect::<Result<Vec<_>>>()? {
            let above = match root.did_type {
                DidType::File => Vec::new(),
                _ => vec![name.to_string()],
            };
            self.below(tx, (root.id, root.did_type), &above, &sites, line)?;
        }
        Ok(())
    }

    fn below(
        &self,
        tx: &mut Tx<'_>,
        (root, kind): (i64, DidType),
        above: &[String],
        sites: &BTreeMap<i64, Site<'_>>,
        line: &mut dyn FnMut(String) -> Result<()>,
    ) -> Result<()> {
        let mut file: Option<(i64, File<'_>)> = None;
        let since = self.updated_after.unwrap_or(0);
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let params = values![root, self.all_states, since, self.unavailable];
        tx.for_each(&replicas_sql(kind), params, &mut |row| -> Result<()> {
            let id = row.int(0)?;
            if file.as_ref().is_none_or(|file| file.0 != id) {
                if let Some((_, done)) = file.take() {
                    line(self.show(done, &mut rng))?;
                }
                let parents = self.parents.then_some(above);
                file = Some((id, begin(&row, parents)?));
            }
            if let (Some((_, file)), Some(rse)) = (&mut file, row.opt_int(6)?)
                && let Some(site) = sites.get(&rse)
            {
                add(file, site, &row)?;
            }
            Ok(())
        })?;
        match file {
            Some((_, done)) => line(self.show(done, &mut rng)),
            None => Ok(()),
        }
    }

    fn show(&self, mut file: File<'_>, rng: &mut SmallRng) -> String {
        if let Some(most) = self.at_most {
            thin_out(&mut file, most, rng);
        }
        if self.metalink {
            return metalink(&file);
        }
        serde_json::to_string(&file).unwrap_or_default()
    }
}

fn begin<'a>(row: &Row, parents: Option<&'a [String]>) -> Result<File<'a>> {
    Ok(File {
        scope: row.text(1)?.to_owned(),
        name: row.text(2)?.to_owned(),
        bytes: row.opt_int(3)?,
        md5: row.opt_text(4)?,
        adler32: row.opt_text(5)?,
        pfns: BTreeMap::new(),
        rses: BTreeMap::new(),
        states: BTreeMap::new(),
        parents,
    })
}

/// Adds a replica to its file. A replica with an unknown path gets no physical name.
fn add<'a>(file: &mut File<'a>, site: &Site<'a>, row: &Row) -> Result<()> {
    let state = row.state::<ReplicaState>(7)?;
    file.states.insert(&site.rse.name, state);
    if site.bases.is_empty() {
        return Ok(());
    }
    let did = Did::new(file.scope.as_str(), file.name.as_str());
    let registered = row.opt_text(8)?;
    let Ok(path) = protocol::path(site.rse, &did, registered.as_deref()) else { return Ok(()) };
    for (base, domain) in &site.bases {
        let name = format!("{base}{path}");
        file.rses.entry(&site.rse.name).or_default().push(name.clone());
        let priority = file.pfns.len() + 1;
        let physical = Physical {
            rse_id: &site.rse.uuid,
            rse: &site.rse.name,
            kind: &site.rse.rse_type,
            volatile: site.rse.volatile,
            domain,
            priority,
            client_extract: false,
        };
        file.pfns.insert(name, physical);
    }
    Ok(())
}

/// Removes random physical names of a file until `most` are left.
fn thin_out(file: &mut File<'_>, most: usize, rng: &mut SmallRng) {
    while file.pfns.len() > most {
        let nth = rng.random_range(0..file.pfns.len());
        let Some(name) = file.pfns.keys().nth(nth).cloned() else { return };
        file.pfns.remove(&name);
        file.rses.values_mut().for_each(|names| names.retain(|one| *one != name));
    }
    file.rses.retain(|_, names| !names.is_empty());
    let mut left: Vec<&mut Physical<'_>> = file.pfns.values_mut().collect();
    left.sort_by_key(|one| one.priority);
    (1..).zip(left).for_each(|(priority, one)| one.priority = priority);
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn metalink(file: &File<'_>) -> String {
    let (scope, name) = (escaped(&file.scope), escaped(&file.name));
    let mut text = format!(" <file name=\"{name}\">\n  <identity>{scope}:{name}</identity>\n");
    for (kind, sum) in [("adler32", &file.adler32), ("md5", &file.md5)] {
        if let Some(sum) = sum {
            text.push_str(&format!("  <hash type=\"{kind}\">{}</hash>\n", escaped(sum)));
        }
    }
    if let Some(bytes) = file.bytes {
        text.push_str(&format!("  <size>{bytes}</size>\n"));
    }
    text.push_str(&format!("  <glfn name=\"/{scope}/rucio/{scope}:{name}\"></glfn>\n"));
    if let Some(parents) = file.parents {
        let all: String =
            parents.iter().map(|one| format!("<did>{}</did>", escaped(one))).collect();
        text.push_str(&format!("  <parents>{all}</parents>\n"));
    }
    let mut physical: Vec<(&String, &Physical<'_>)> = file.pfns.iter().collect();
    physical.sort_by_key(|(_, one)| one.priority);
    for (name, one) in physical {
        text.push_str(&format!(
            "  <url location=\"{}\" domain=\"{}\" priority=\"{}\" client_extract=\"false\">{}</url>\n",
            escaped(one.rse),
            one.domain,
            one.priority,
            escaped(name)
        ));
    }
    text.push_str(" </file>");
    text
}
