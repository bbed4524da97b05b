//! Updates usage counters: bytes and files of accounts on RSEs, and of RSEs, exact in every
//! transaction.
//!
//! Every transaction changes counters, so they are locked last and for the shortest time: a
//! transaction reads the usage of its account without a lock, chooses, writes everything else, and
//! only then locks the counters, in order. If the account used more meanwhile, and the choice no
//! longer fits its quota, the transaction starts over ([`Error::Moved`]): no quota is ever
//! exceeded.
//!
//! An RSE has its counter from its creation. Counters of accounts that do not exist yet are
//! inserted first, before any existing one is locked: so no transaction that holds a counter waits
//! for one that is being inserted, and the lock order holds.

use std::collections::{BTreeMap, BTreeSet};

use super::Tx;
use crate::error::{Error, Result};
use crate::{Micros, values};

/// The source name of the catalog's own usage counter of an RSE.
pub const OWN_COUNT: &str = "mainstay";

/// The counters and limits of an account that were read when RSEs were chosen for it.
#[derive(Clone, Debug, Default)]
pub struct UsageSnapshot {
    /// RSE → bytes used.
    pub used: BTreeMap<i64, i64>,
    /// RSE → limit, where it is finite.
    pub local: BTreeMap<i64, i64>,
    /// Finite limits over several RSEs.
    pub global: Vec<(BTreeSet<i64>, i64)>,
}

/// Changes to counters, gathered during a transaction and written at its end in order.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    usage: BTreeMap<(String, i64), (i64, i64)>,
    rses: BTreeMap<i64, (i64, i64)>,
    seen: BTreeMap<String, UsageSnapshot>,
    /// RSE → (bytes held when it was read, most it may hold).
    space: BTreeMap<i64, (i64, i64)>,
}

impl Ledger {
    /// Adds to the usage of an account on an RSE; negative numbers subtract.
    pub fn use_more(&mut self, account: &str, rse: i64, files: i64, bytes: i64) {
        let entry = self.usage.entry((account.to_owned(), rse)).or_default();
        *entry = (entry.0 + files, entry.1 + bytes);
    }

    /// Adds to the usage of an RSE; negative numbers subtract.
    pub fn hold_more(&mut self, rse: i64, files: i64, bytes: i64) {
        let entry = self.rses.entry(rse).or_default();
        *entry = (entry.0 + files, entry.1 + bytes);
    }

    /// The change in bytes of an account on an RSE that is not written yet.
    #[must_use]
    pub fn used(&self, account: &str, rse: i64) -> i64 {
        self.usage.get(&(account.to_owned(), rse)).map_or(0, |entry| entry.1)
    }

    /// The change in bytes of an RSE that is not written yet.
    #[must_use]
    pub fn held(&self, rse: i64) -> i64 {
        self.rses.get(&rse).map_or(0, |entry| entry.1)
    }

    /// Records the counters and limits on which a choice for this account is based.
    pub fn rests_on(&mut self, account: &str, seen: UsageSnapshot) {
        self.seen.entry(account.to_owned()).or_insert(seen);
    }

    /// Records the usage and the limit of an RSE on which a choice is based.
    pub fn rests_on_space(&mut self, rse: i64, held: i64, most: i64) {
        self.space.entry(rse).or_insert((held, most));
    }

    /// Writes everything, counters in order.
    pub fn write(mut self, tx: &mut Tx<'_>, now: Micros) -> Result<()> {
        self.usage.retain(|_, change| *change != (0, 0));
        self.rses.retain(|_, change| *change != (0, 0));
        if tx.is_postgres() { self.write_shared(tx, now) } else { self.write_alone(tx, now) }
    }

    /// SQLite: there is one writer, so no locks are needed.
    fn write_alone(self, tx: &mut Tx<'_>, now: Micros) -> Result<()> {
        for ((account, rse), (files, bytes)) in self.usage {
            tx.execute(
                "INSERT INTO account_usage (account, rse_id, files, bytes) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (account, rse_id) DO UPDATE SET files = account_usage.files + excluded.files,
                 bytes = account_usage.bytes + excluded.bytes",
                values![account, rse, files, bytes],
            )?;
        }
        for (rse, (files, bytes)) in self.rses {
            tx.execute(
                "INSERT INTO rse_usage (rse_id, source, used, files, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (rse_id, source) DO UPDATE SET used = rse_usage.used + excluded.used,
                 files = rse_usage.files + excluded.files, updated_at = excluded.updated_at",
                values![rse, OWN_COUNT, bytes, files, now],
            )?;
        }
        Ok(())
    }

    /// PostgreSQL: inserts missing rows, checks the counters that choices are based on, then
    /// writes.
    fn write_shared(self, tx: &mut Tx<'_>, now: Micros) -> Result<()> {
        let accounts: Vec<String> = self.usage.keys().map(|key| key.0.clone()).collect();
        let on: Vec<i64> = self.usage.keys().map(|key| key.1).collect();
        let rses: Vec<i64> = self.rses.keys().copied().collect();
        if !self.usage.keys().all(|(account, rse)| self.has_counter(account, *rse)) {
            tx.later(
                "INSERT INTO account_usage (account, rse_id, files, bytes) SELECT v.account, v.rse, 0, 0
                 FROM unnest(?1::text[], ?2::bigint[]) AS v(account, rse) ORDER BY v.account COLLATE \"C\", v.rse
                 ON CONFLICT (account, rse_id) DO NOTHING",
                values![accounts.clone(), on.clone()],
            )?;
        }
        self.check_quotas(tx, &accounts, &on)?;
        let (files, bytes): (Vec<i64>, Vec<i64>) = self.usage.values().copied().unzip();
        if !on.is_empty() {
            tx.later(
                "INSERT INTO account_usage (account, rse_id, files, bytes) SELECT v.account, v.rse, v.files, v.bytes
                 FROM unnest(?1::text[], ?2::bigint[], ?3::bigint[], ?4::bigint[]) AS v(account, rse, files, bytes)
                 ORDER BY v.account COLLATE \"C\", v.rse
                 ON CONFLICT (account, rse_id) DO UPDATE SET files = account_usage.files + excluded.files,
                 bytes = account_usage.bytes + excluded.bytes",
                values![accounts, on, files, bytes],
            )?;
        }
        self.check_space(tx)?;
        let (files, bytes): (Vec<i64>, Vec<i64>) = self.rses.values().copied().unzip();
        if !rses.is_empty() {
            tx.later(
                "INSERT INTO rse_usage (rse_id, source, used, files, updated_at) SELECT v.rse, ?4, v.bytes, v.files, ?5
                 FROM unnest(?1::bigint[], ?2::bigint[], ?3::bigint[]) AS v(rse, files, bytes) ORDER BY v.rse
                 ON CONFLICT (rse_id, source) DO UPDATE SET used = rse_usage.used + excluded.used,
                 files = rse_usage.files + excluded.files, updated_at = excluded.updated_at",
                values![rses, files, bytes, OWN_COUNT, now],
            )?;
        }
        Ok(())
    }

    /// Whether a counter was read, so that its row need not be inserted.
    fn has_counter(&self, account: &str, rse: i64) -> bool {
        self.seen.get(account).is_some_and(|seen| seen.used.contains_key(&rse))
    }

    /// Locks the counters that choices are based on, and fails if a choice no longer fits its
    /// quota.
    fn check_quotas(&self, tx: &mut Tx<'_>, accounts: &[String], on: &[i64]) -> Result<()> {
        let checked: Vec<String> = self
            .seen
            .keys()
            .filter(|account| {
                self.usage.iter().any(|(key, change)| key.0 == **account && change.1 > 0)
            })
            .cloned()
            .collect();
        if checked.is_empty() {
            return Ok(());
        }
        let rows = tx.query(
            "SELECT account, rse_id, bytes FROM account_usage WHERE account = ANY (?1::text[])
             OR (account, rse_id) IN (SELECT * FROM unnest(?2::text[], ?3::bigint[]))
             ORDER BY account COLLATE \"C\", rse_id LOCK ROWS",
            values![checked.clone(), accounts.to_vec(), on.to_vec()],
        )?;
        let mut used: BTreeMap<&str, BTreeMap<i64, i64>> = BTreeMap::new();
        for row in &rows {
            used.entry(row.text(0)?).or_default().insert(row.int(1)?, row.int(2)?);
        }
        let none = BTreeMap::new();
        let fits = checked.iter().all(|account| {
            let more = self.usage.iter().filter(|(key, _)| key.0 == *account);
            let more = more.map(|(key, change)| (key.1, change.1)).collect();
            still_fits(&self.seen[account], used.get(account.as_str()).unwrap_or(&none), &more)
        });
        if fits { Ok(()) } else { Err(Error::Moved) }
    }

    /// The same for RSEs with a limit.
    fn check_space(&self, tx: &mut Tx<'_>) -> Result<()> {
        let limited: Vec<i64> =
            self.space.keys().copied().filter(|rse| self.held(*rse) > 0).collect();
        if limited.is_empty() {
            return Ok(());
        }
        // Locked in one order together with those that are only counted.
        let all: BTreeSet<i64> = limited.iter().chain(self.rses.keys()).copied().collect();
        let rows = tx.query(
            "SELECT rse_id, used FROM rse_usage WHERE source = ?2 AND rse_id IN ARRAY(?1) ORDER BY rse_id LOCK ROWS",
            values![all.into_iter().collect::<Vec<i64>>(), OWN_COUNT],
        )?;
        for row in &rows {
            let (rse, held) = (row.int(0)?, row.int(1)?);
            let Some((seen, most)) = self.space.get(&rse) else { continue };
            let more = self.held(rse);
            if more > 0 && held > *seen && held.saturating_add(more) > *most {
                return Err(Error::Moved);
            }
        }
        Ok(())
    }
}

/// Whether a choice that was made from the counters in `seen` still fits the current usage. It
/// always does where the usage has not grown since.
fn still_fits(seen: &UsageSnapshot, used: &BTreeMap<i64, i64>, more: &BTreeMap<i64, i64>) -> bool {
    let of = |map: &BTreeMap<i64, i64>, rse: i64| map.get(&rse).copied().unwrap_or(0);
    let local = more.iter().filter(|(_, more)| **more > 0).all(|(rse, more)| {
        let now = of(used, *rse);
        let Some(limit) = seen.local.get(rse) else { return true };
        now <= of(&seen.used, *rse) || now.saturating_add(*more) <= *limit
    });
    let global = seen.global.iter().all(|(set, limit)| {
        let sum = |map: &BTreeMap<i64, i64>| set.iter().map(|rse| of(map, *rse)).sum::<i64>();
        let (now, more) = (sum(used), sum(more));
        more <= 0 || now <= sum(&seen.used) || now.saturating_add(more) <= *limit
    });
    local && global
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(i64, i64)]) -> BTreeMap<i64, i64> {
        pairs.iter().copied().collect()
    }

    #[test]
    fn a_choice_is_rejected_if_concurrent_usage_makes_it_exceed_the_quota() {
        let seen = UsageSnapshot {
            used: map(&[(1, 100), (2, 100)]),
            local: map(&[(1, 200)]),
            global: vec![(BTreeSet::from([1, 2]), 300)],
        };
        for (used, more, fits) in [
            (&[(1, 100), (2, 100)][..], &[(1, 100)][..], true),
            (&[(1, 110), (2, 100)], &[(1, 90)], true),
            (&[(1, 110), (2, 100)], &[(1, 91)], false),
            (&[(1, 90), (2, 100)], &[(1, 500)], true),
            (&[(1, 100), (2, 150)], &[(2, 50)], true),
            (&[(1, 100), (2, 151)], &[(2, 50)], false),
            (&[(1, 900), (2, 900)], &[(1, -5)], true),
            (&[(1, 150), (2, 150)], &[(1, 10), (2, -10)], true),
        ] {
            assert_eq!(still_fits(&seen, &map(used), &map(more)), fits, "{used:?} {more:?}");
        }
    }
}
