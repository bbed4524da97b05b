//! The catalog's records, and validation of names and values.

mod number;
mod rule;

pub use mainstay_catalog::state::{
    DidType, Grouping, LockState, Notification, ReplicaState, RequestState, RuleState,
};
pub use mainstay_transfers::did::{Did, Micros, SECOND};
pub use number::whole;
pub use rule::check_activity;
pub use rule::{Counts, DEFAULT_ACTIVITY, NewRule, Rule};
use serde::{Deserialize, Serialize};

use crate::error::{Class, Error, Result, refuse};

/// Fails unless both parts of a name are well-formed.
pub fn check_did(did: &Did) -> Result<()> {
    check_scope(&did.scope)?;
    let first = did.name.bytes().next();
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte);
    let well = first.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'/')
        && did.name.len() <= 250
        && did.name.bytes().all(legal)
        && !did.name.split('/').any(|part| part == "." || part == "..");
    if well {
        Ok(())
    } else {
        let right = "^[A-Za-z0-9/][A-Za-z0-9/._-]*$ of at most 250, without parts . and ..";
        Err(malformed("name", &did.name, right))
    }
}

fn malformed(what: &str, value: &str, right: &str) -> Error {
    let shown: String = value.chars().take(60).collect();
    refuse(
        Class::InvalidObject,
        format!("Problem validating {what}: {shown:?} does not match {right}"),
    )
}

/// Fails unless `scope` is well-formed.
pub fn check_scope(scope: &str) -> Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    // Scopes are also folder names.
    let leads_away = scope == "." || scope == "..";
    if (1..=25).contains(&scope.len()) && scope.bytes().all(legal) && !leads_away {
        Ok(())
    } else {
        Err(malformed("scope", scope, "^[A-Za-z0-9._-]{1,25}$, and not . or .."))
    }
}

/// Fails unless `account` is well-formed.
pub fn check_account(account: &str) -> Result<()> {
    let legal =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=25).contains(&account.len()) && account.bytes().all(legal) {
        Ok(())
    } else {
        Err(malformed("account", account, "^[a-z0-9_-]{1,25}$"))
    }
}

/// Fails unless `rse` is well-formed: upper-case words joined by single `_` or `-`.
pub fn check_rse(rse: &str) -> Result<()> {
    let word = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    };
    if rse.len() <= 255 && rse.split(['_', '-']).all(word) {
        Ok(())
    } else {
        Err(malformed("rse", rse, "upper-case words joined by single _ or -"))
    }
}

/// The largest accepted size of a file; a larger value is taken for a mistake.
pub const LARGEST_FILE: i64 = 1 << 50;

/// The largest accepted content of an RSE, so that sums over RSEs and rules do not overflow.
pub(crate) const LARGEST_RSE: i64 = 1 << 60;

/// A file as it is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFile {
    /// Its name.
    #[serde(flatten)]
    pub did: Did,
    /// Its size.
    pub bytes: i64,
    /// Its Adler-32 checksum, eight hexadecimal digits.
    #[serde(default)]
    pub adler32: Option<String>,
    /// Its MD5 checksum.
    #[serde(default)]
    pub md5: Option<String>,
    /// Its path on an RSE that does not derive paths from names.
    #[serde(default, alias = "pfn")]
    pub path: Option<String>,
    /// The state of the new replica; available by default.
    #[serde(default)]
    pub state: Option<String>,
}

/// A data identifier as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DidRecord {
    /// The catalog's own number for it.
    pub id: i64,
    /// Its name.
    pub did: Did,
    /// File, dataset or container.
    pub did_type: DidType,
    /// The account that created it.
    pub account: String,
    /// Whether children can be attached.
    pub is_open: bool,
    /// Stored and shown, never enforced.
    pub monotonic: bool,
    /// Whether the last copy of the file is gone.
    pub lost: bool,
    /// Size, of files always, of collections once closed.
    pub bytes: Option<i64>,
    /// Number of files, of collections once closed.
    pub length: Option<i64>,
    /// Checksum of a file.
    pub md5: Option<String>,
    /// Checksum of a file.
    pub adler32: Option<String>,
    /// When it expires.
    pub expired_at: Option<Micros>,
    /// When it was closed.
    pub closed_at: Option<Micros>,
    /// When it was created.
    pub created_at: Micros,
    /// When it was last changed.
    pub updated_at: Micros,
}

/// The furthest accepted time, in seconds from now.
pub(crate) const HORIZON: i64 = 1_000 * 366 * 86_400;

/// Fails when a time is further away than [`HORIZON`].
pub(crate) fn check_seconds(what: &str, seconds: Option<i64>) -> Result<()> {
    match seconds {
        Some(seconds) if !(-HORIZON..=HORIZON).contains(&seconds) => {
            let message = format!("Problem validating {what}: a time is more than 1000 years away");
            Err(refuse(Class::InvalidObject, message))
        }
        _ => Ok(()),
    }
}

/// Formats a time as clients read it: `Sun, 15 Nov 2026 22:02:54 UTC`.
#[must_use]
pub fn show_time(at: Micros) -> String {
    jiff::Timestamp::from_microsecond(at)
        .map(|at| at.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        for (scope, name, fits) in [
            ("user.alice", "ds1", true),
            ("user.alice", "/a/b.c_d-e", true),
            ("user.alice", "../x", false),
            ("user.alice", "a/../x", false),
            ("user.alice", "a/./x", false),
            ("user.alice", "a/..", false),
            ("user.alice", "a..b", true),
            ("user alice", "x", false),
            ("", "x", false),
            ("s", "", false),
            (".", "x", false),
            ("..", "x", false),
            ("a..b", "x", true),
            ("s", "x'; DROP TABLE dids", false),
        ] {
            assert_eq!(check_did(&Did::new(scope, name)).is_ok(), fits, "{scope}:{name}");
        }
        for (rse, fits) in [("SITE-A", true), ("SITE__A", false), ("site", false), ("X1_Y2", true)]
        {
            assert_eq!(check_rse(rse).is_ok(), fits, "{rse}");
        }
    }

    #[test]
    fn times_are_shown_in_the_format_of_clients() {
        assert_eq!(show_time(1_794_780_174_000_000), "Sun, 15 Nov 2026 22:02:54 UTC");
        assert_eq!(show_time(0), "Thu, 01 Jan 1970 00:00:00 UTC");
    }
}
