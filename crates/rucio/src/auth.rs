//! Handles `/auth`: issues tokens for user and password, and finds the account of a token.

use std::sync::atomic::Ordering::Relaxed;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use mainstay_catalog::Tx;
use mainstay_rules::api::show_time;
use mainstay_rules::error::{Class, Error, Result, refuse};
use mainstay_rules::identity;
use mainstay_rules::logins::Refused;
use mainstay_rules::logins::lockout::{Account, Network};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::json;

use super::audit_facts::unknown_user;
use super::route::OpenCall;
use super::{Caller, Service, error_response, with_type};

/// The hash that an unknown user's password is compared with, so that the check takes as long as for a
/// known user.
const UNKNOWN_USER_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5LW5vYm9keQ$RuM7TnDQcPvJEVdFjH0rEQp2g3ifW0PiLnJMTpeqaMk";

/// The kind of identities with a password.
const USERPASS: &str = "USERPASS";

/// The header that carries a token.
pub(super) const TOKEN: &str = "x-rucio-auth-token";

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty())
}

fn unknown() -> Error {
    refuse(Class::CannotAuthenticate, "Cannot authenticate with given credentials")
}

/// The account that the token of a request belongs to.
pub(super) async fn bearer(service: &Service, headers: &HeaderMap) -> Result<Caller> {
    let token = header(headers, TOKEN).ok_or_else(unknown)?;
    let token = valid(service, token).await?;
    Ok(Caller { account: token.account, privileged: token.privileged, read_only: false })
}

async fn valid(service: &Service, token: &str) -> Result<identity::Token> {
    let (hash, now) = (identity::hash_token(token), service.around.now());
    service.catalog.read(move |tx| identity::token(tx, &hash, now)).await?.ok_or_else(unknown)
}

/// Returns the account, identity and expiry of the token in a request.
pub(super) async fn validate(call: &OpenCall<'_>) -> Result<Response> {
    let token = header(call.headers, TOKEN).ok_or_else(unknown)?;
    let token = valid(call.service, token).await?;
    let value = json!({
        "account": token.account, "identity": token.identity, "vo": "def",
        "lifetime": show_time(token.expires), "audience": null, "authz_scope": null,
    });
    Ok(with_type(StatusCode::OK, "application/json", value.to_string().into()))
}

/// Returns the version of Rucio whose API is served.
pub(super) async fn ping(_: &OpenCall<'_>) -> Result<Response> {
    let value = json!({"version": "41.5.1"});
    Ok(with_type(StatusCode::OK, "application/json", value.to_string().into()))
}

/// Accepts and discards clients' reports on their downloads.
pub(super) async fn trace(_: &OpenCall<'_>) -> Result<Response> {
    Ok(with_type(StatusCode::CREATED, super::TEXT, "Created".into()))
}

/// The response to a login that is not checked now, with `Retry-After`.
fn login_deferred(refused: Refused) -> Response {
    let status = match refused {
        Refused::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
        Refused::LockedOut(_) | Refused::Crowded(_) => StatusCode::TOO_MANY_REQUESTS,
    };
    let class = Class::CannotAuthenticate.to_string();
    let mut answer = error_response(status, class, &format!("Cannot authenticate now: {refused}"));
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(refused.retry_after()));
    answer
}

/// Whether there is a user of this name, for the audit log.
async fn is_user(service: &Service, user: &str) -> Result<bool> {
    let user = user.to_owned();
    let accounts = service.catalog.read(move |tx| identity::accounts(tx, &user, USERPASS)).await?;
    Ok(!accounts.is_empty())
}

/// Checks user and password, and returns a token.
pub(super) async fn user_and_password(call: &OpenCall<'_>) -> Result<Response> {
    let OpenCall { service, headers, from: address, user_exists } = *call;
    let user = header(headers, "x-rucio-username").ok_or_else(unknown)?.to_owned();
    let password = header(headers, "x-rucio-password").ok_or_else(unknown)?.to_owned();
    let account = header(headers, "x-rucio-account").map(str::to_owned);
    let (who, from) = (Account::named(&user), address.map(Network::from).unwrap_or_default());
    let now = || service.around.now();
    let turn = match service.logins.turn(&who, from, &now).await {
        Ok(turn) => turn,
        Err(refused) => {
            user_exists.store(is_user(service, &user).await?, Relaxed);
            return Ok(login_deferred(refused));
        }
    };
    let (name, wanted) = (user.clone(), account.clone());
    let work = move |tx: &mut Tx<'_>| -> Result<_> {
        let known = !identity::accounts(tx, &name, USERPASS)?.is_empty();
        Ok((known, identity::login(tx, &name, wanted.as_deref())?))
    };
    let (known, found) = service.catalog.read(work).await?;
    user_exists.store(known, Relaxed);
    let (hash, account) = found.unwrap_or((UNKNOWN_USER_HASH.to_owned(), String::new()));
    let right = turn.is_password(password, hash).await && !account.is_empty();
    service.logins.ended(&who, from, right, now());
    if !right {
        let shown = if known { user } else { unknown_user(&user) };
        tracing::warn!(user = %format_args!("{shown:.100}"), from = ?address, "login refused");
        let wanted = header(headers, "x-rucio-account").unwrap_or("(default)");
        let message = format!("Cannot authenticate to account {wanted:.30} with given credentials");
        return Err(refuse(Class::CannotAuthenticate, message));
    }
    let app = header(headers, "x-rucio-appid").unwrap_or("unknown");
    let token = format!("{account}-{user}-{app}-{}", secret(service));
    let (hash, now) = (identity::hash_token(&token), service.around.now());
    let owner = account.clone();
    let until =
        service.catalog.write(move |tx| identity::add_token(tx, &hash, &owner, &user, now)).await?;
    let mut answer = with_type(StatusCode::OK, "application/octet-stream", Body::empty());
    for (name, value) in [
        (TOKEN, token),
        ("x-rucio-auth-token-expires", show_time(until)),
        ("x-rucio-auth-account", account),
    ] {
        let value = HeaderValue::from_str(&value).map_err(|_| unknown())?;
        answer.headers_mut().insert(name, value);
    }
    Ok(answer)
}

/// A random secret of 256 bits.
fn secret(service: &Service) -> String {
    (0..4).map(|_| format!("{:016x}", service.around.seed())).collect()
}

/// A random initial password.
#[must_use]
pub fn new_password(service: &Service) -> String {
    const LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
    let mut word = String::with_capacity(24);
    for _ in 0..6 {
        let mut rng = SmallRng::seed_from_u64(service.around.seed());
        for _ in 0..4 {
            let at = rand::RngExt::random_range(&mut rng, 0..LETTERS.len());
            word.push(LETTERS[at] as char);
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_users_get_the_same_password_check() {
        assert!(argon2::PasswordHash::new(UNKNOWN_USER_HASH).is_ok());
        assert!(!identity::is_password("anything", UNKNOWN_USER_HASH));
    }
}
