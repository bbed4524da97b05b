//! Identities with passwords, the accounts they may act as, and their tokens.
//!
//! Passwords are stored as argon2 hashes, tokens as SHA-256: neither can be read back from the
//! catalog. Passwords are verified outside any transaction, because that takes long on purpose.

use argon2::{Argon2, PasswordHash, PasswordHasher, PasswordVerifier};
use mainstay_catalog::{Tx, values};
use sha2::{Digest, Sha256};

use crate::account::check_exists;
use crate::api::{Micros, SECOND};
use crate::error::{Class, Result, refuse};

/// How long a token is valid.
pub const TOKEN_LIFE: Micros = 3_600 * SECOND;

/// The kinds of identities; only the first can log in here.
const KINDS: [&str; 6] = ["USERPASS", "X509", "GSS", "SSH", "SAML", "OIDC"];

/// An identity of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of an identity")]
pub struct Identity {
    pub identity: String,
    pub kind: String,
    pub email: Option<String>,
}

/// The hash that is stored for a password.
pub fn hash_password(password: &str) -> Result<String> {
    let hashed = Argon2::default().hash_password(password.as_bytes());
    hashed.map(|hash| hash.to_string()).map_err(|error| {
        refuse(Class::InvalidObject, format!("The password cannot be taken: {error}"))
    })
}

/// Whether the password matches the hash.
#[must_use]
pub fn is_password(password: &str, hash: &str) -> bool {
    PasswordHash::new(hash)
        .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
}

/// The hash that is stored for a token.
#[must_use]
pub fn hash_token(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

/// Lets an identity act as an account. `hash` is that of its password; an existing identity keeps
/// its own.
pub fn add(
    tx: &mut Tx<'_>,
    account: &str,
    new: &Identity,
    hash: Option<&str>,
    default: bool,
    now: Micros,
) -> Result<()> {
    check_exists(tx, account)?;
    if new.identity.is_empty() || new.identity.len() > 2048 || !KINDS.contains(&new.kind.as_str()) {
        let message = format!("An identity has a name, and a type: one of {}", KINDS.join(", "));
        return Err(refuse(Class::InvalidObject, message));
    }
    let known = "SELECT password FROM identities WHERE identity = ?1 AND identity_type = ?2";
    let known = tx.first(known, values![&new.identity, &new.kind])?;
    if known.is_none() {
        if new.kind == "USERPASS" && hash.is_none() {
            return Err(refuse(
                Class::InvalidObject,
                "An identity of type USERPASS has a password",
            ));
        }
        tx.execute(
            "INSERT INTO identities (identity, identity_type, password, email, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (identity, identity_type) DO NOTHING",
            values![&new.identity, &new.kind, hash, new.email.clone(), now],
        )?;
    }
    let added = tx.execute(
        "INSERT INTO account_map (identity, identity_type, account, is_default, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (identity, identity_type, account) DO NOTHING",
        values![&new.identity, &new.kind, account, default, now],
    )?;
    if added == 0 {
        let message = format!("Identity pair '{}',{} already exists!", new.identity, new.kind);
        return Err(refuse(Class::Duplicate, message));
    }
    Ok(())
}

/// Removes an identity from an account; an identity without any account is deleted.
pub fn remove(tx: &mut Tx<'_>, account: &str, identity: &str, kind: &str) -> Result<()> {
    let gone = tx.execute(
        "DELETE FROM account_map WHERE identity = ?1 AND identity_type = ?2 AND account = ?3",
        values![identity, kind, account],
    )?;
    if gone == 0 {
        let message = format!("('{identity}','{kind}','{account}') does not exist");
        return Err(refuse(Class::IdentityError, message));
    }
    tx.execute(
        "DELETE FROM tokens WHERE identity = ?1 AND account = ?2",
        values![identity, account],
    )?;
    tx.execute(
        "DELETE FROM identities WHERE identity = ?1 AND identity_type = ?2 AND NOT EXISTS (SELECT 1 FROM account_map m
         WHERE m.identity = identities.identity AND m.identity_type = identities.identity_type)",
        values![identity, kind],
    )?;
    Ok(())
}

/// The identities of an account.
pub fn list(tx: &mut Tx<'_>, account: &str) -> Result<Vec<Identity>> {
    check_exists(tx, account)?;
    let rows = tx.query(
        "SELECT i.identity, i.identity_type, i.email FROM account_map m JOIN identities i ON i.identity = m.identity
         AND i.identity_type = m.identity_type WHERE m.account = ?1 ORDER BY i.identity, i.identity_type",
        values![account],
    )?;
    let identity = |row: &mainstay_catalog::Row| {
        Ok(Identity {
            identity: row.text(0)?.to_owned(),
            kind: row.text(1)?.to_owned(),
            email: row.opt_text(2)?,
        })
    };
    rows.iter().map(identity).collect()
}

/// The accounts an identity may act as, its default first.
pub fn accounts(tx: &mut Tx<'_>, identity: &str, kind: &str) -> Result<Vec<String>> {
    let rows = tx.query(
        "SELECT account FROM account_map WHERE identity = ?1 AND identity_type = ?2 ORDER BY is_default DESC, account",
        values![identity, kind],
    )?;
    rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
}

/// The accounts that identities of this name, of any kind, may act as.
pub fn all_accounts(tx: &mut Tx<'_>, identity: &str) -> Result<Vec<String>> {
    let sql = "SELECT DISTINCT account FROM account_map WHERE identity = ?1";
    tx.query(sql, values![identity])?.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
}

/// The password hash of a user that may act as `account` (without one, as its default account), and
/// the name of that account.
pub fn login(
    tx: &mut Tx<'_>,
    user: &str,
    account: Option<&str>,
) -> Result<Option<(String, String)>> {
    let row = tx.first(
        "SELECT i.password, m.account FROM identities i JOIN account_map m ON m.identity = i.identity
         AND m.identity_type = i.identity_type JOIN accounts a ON a.account = m.account
         WHERE i.identity = ?1 AND i.identity_type = 'USERPASS' AND i.password IS NOT NULL AND a.deleted_at IS NULL
         AND a.status = 'ACTIVE' AND (?2 = '' OR m.account = ?2) ORDER BY m.is_default DESC, m.account LIMIT 1",
        values![user, account.unwrap_or("")],
    )?;
    row.map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).transpose()
}

/// Stores a token by its hash, and deletes expired tokens.
pub fn add_token(
    tx: &mut Tx<'_>,
    hash: &str,
    account: &str,
    identity: &str,
    now: Micros,
) -> Result<Micros> {
    let until = now.saturating_add(TOKEN_LIFE);
    tx.execute("DELETE FROM tokens WHERE expired_at < ?1", values![now])?;
    tx.execute(
        "INSERT INTO tokens (token_hash, account, identity, expired_at) VALUES (?1, ?2, ?3, ?4)",
        values![hash, account, identity, until],
    )?;
    Ok(until)
}

/// A token that is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The account its bearer acts as.
    pub account: String,
    /// The identity of its bearer.
    pub identity: String,
    /// Whether the account has all permissions.
    pub privileged: bool,
    /// When it expires.
    pub expires: Micros,
}

/// The token of this hash, if it is valid.
pub fn token(tx: &mut Tx<'_>, hash: &str, now: Micros) -> Result<Option<Token>> {
    let row = tx.first(
        "SELECT t.account, t.identity, t.expired_at, (SELECT 1 FROM account_attr_map m WHERE m.account = t.account AND m.key = 'admin')
         FROM tokens t JOIN accounts a ON a.account = t.account WHERE t.token_hash = ?1 AND t.expired_at >= ?2
         AND a.deleted_at IS NULL AND a.status = 'ACTIVE'",
        values![hash, now],
    )?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Token {
        account: row.text(0)?.to_owned(),
        identity: row.text(1)?.to_owned(),
        privileged: row.text(0)? == "root" || row.opt_int(3)?.is_some(),
        expires: row.int(2)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hashed_password_matches_its_hash() {
        let hash = hash_password("a word").unwrap();
        assert!(hash.starts_with("$argon2id$"), "{hash}");
        assert!(is_password("a word", &hash));
        assert!(!is_password("another", &hash));
        assert!(!is_password("a word", "not a hash"));
    }
}
