//! Commands about RSEs, accounts and quotas.

use serde_json::{Map, Value, json};

use super::{AccountCommand, Cli, Error, QuotaCommand, RseCommand, pair, part, table};

/// Parses an availability flag: what an RSE is to be open or closed for.
fn availability(text: &str) -> Result<(&str, bool), Error> {
    let found = text.split_once('=').and_then(|(key, value)| {
        let open = value.to_ascii_lowercase().parse().ok()?;
        ["read", "write", "delete"].contains(&key).then_some((key, open))
    });
    found.ok_or_else(|| {
        let should = "read, write or delete, then = and true or false, as in write=false";
        Error::Usage(format!("{text:?} should be {should}"))
    })
}

impl Cli<'_> {
    pub(super) async fn rse(&mut self, command: RseCommand) -> Result<u8, Error> {
        match command {
            RseCommand::List { expression: None } => {
                let columns = [
                    "rse",
                    "rse_type",
                    "availability_read",
                    "availability_write",
                    "availability_delete",
                    "staging_area",
                ];
                self.rows("/rses/", &columns).await
            }
            RseCommand::List { expression: Some(expression) } => {
                self.rows(&format!("/rses/?expression={}", part(&expression)), &["rse"]).await
            }
            RseCommand::Add { rse, kind, staging } => {
                let body = json!({"rse_type": kind, "staging_area": staging});
                self.done("POST", &format!("/rses/{}", part(&rse)), Some(body)).await
            }
            RseCommand::Show { rse } => {
                let mut value = self.value("GET", &format!("/rses/{}", part(&rse)), None).await?;
                value["attributes"] =
                    self.value("GET", &format!("/rses/{}/attr/", part(&rse)), None).await?;
                value["limits"] =
                    self.value("GET", &format!("/rses/{}/limits", part(&rse)), None).await?;
                value["usage"] =
                    Value::Array(self.lines(&format!("/rses/{}/usage", part(&rse))).await?);
                table::value(self.out, self.format, &value)?;
                Ok(0)
            }
            RseCommand::Set { rse, attributes } => {
                for attribute in &attributes {
                    let (key, value) = pair(attribute)?;
                    let path = format!("/rses/{}/attr/{}", part(&rse), part(key));
                    self.done("POST", &path, Some(json!({"value": value}))).await?;
                }
                Ok(0)
            }
            RseCommand::Unset { rse, key } => {
                self.done("DELETE", &format!("/rses/{}/attr/{}", part(&rse), part(&key)), None)
                    .await
            }
            RseCommand::Limit { rse, name, bytes } => {
                let body = json!({"name": name, "value": bytes});
                self.done("PUT", &format!("/rses/{}/limits", part(&rse)), Some(body)).await
            }
            RseCommand::Availability { rse, flags } => {
                let mut body = Map::new();
                for flag in &flags {
                    let (key, open) = availability(flag)?;
                    body.insert(format!("availability_{key}"), json!(open));
                }
                self.done("PUT", &format!("/rses/{}", part(&rse)), Some(Value::Object(body))).await
            }
            RseCommand::Protocol { rse, url, remove } => {
                let wrong = || Error::Usage(format!("{url:?} should be scheme://host:port/prefix"));
                let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
                let (host, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let (host, port) = host.split_once(':').unwrap_or((host, "0"));
                let port: i64 = port.parse().map_err(|_| wrong())?;
                let path = format!("/rses/{}/protocols/{}", part(&rse), part(scheme));
                if remove {
                    let host = if host.is_empty() { "localhost" } else { host };
                    let path = format!("{path}/{}/{port}", part(host));
                    return self.done("DELETE", &path, None).await;
                }
                let body = json!({"hostname": host, "port": port, "prefix": prefix});
                self.done("POST", &path, Some(body)).await
            }
            RseCommand::Distance { from, to, distance } => {
                let path = format!("/rses/{}/distances/{}", part(&from), part(&to));
                let known = self.value("GET", &path, None).await?;
                let new = known.as_array().is_none_or(Vec::is_empty);
                let method = if new { "POST" } else { "PUT" };
                self.done(method, &path, Some(json!({"distance": distance}))).await
            }
            RseCommand::Transfers { expression, most, from, activity } => {
                let direction = if from { "SOURCE" } else { "DESTINATION" };
                let body = json!({
                    "rse_expression": expression, "direction": direction, "activity": activity, "max_transfers": most,
                });
                let method = if most < 0 { "DELETE" } else { "PUT" };
                self.done(method, "/requests/transfer_limits", Some(body)).await
            }
            RseCommand::Usage { rse, used, free } => {
                let body = json!({"source": "storage", "used": used, "free": free});
                self.done("PUT", &format!("/rses/{}/usage", part(&rse)), Some(body)).await
            }
            RseCommand::Delete { rse } => {
                self.done("DELETE", &format!("/rses/{}", part(&rse)), None).await
            }
        }
    }

    pub(super) async fn account(&mut self, command: AccountCommand) -> Result<u8, Error> {
        match command {
            AccountCommand::List => self.rows("/accounts/", &["account", "type", "email"]).await,
            AccountCommand::Add { account, kind } => {
                self.done(
                    "POST",
                    &format!("/accounts/{}", part(&account)),
                    Some(json!({"type": kind, "email": null})),
                )
                .await
            }
            AccountCommand::Scope { account, scope } => {
                self.done(
                    "POST",
                    &format!("/accounts/{}/scopes/{}", part(&account), part(&scope)),
                    None,
                )
                .await
            }
            AccountCommand::Set { account, attribute } => {
                let (key, value) = pair(&attribute)?;
                let path = format!("/accounts/{}/attr/{}", part(&account), part(key));
                self.done("POST", &path, Some(json!({"key": key, "value": value}))).await
            }
        }
    }

    pub(super) async fn quota(&mut self, command: QuotaCommand) -> Result<u8, Error> {
        let path = |account: &str, on: &str, global: bool| {
            let which = if global { "global" } else { "local" };
            format!("/accounts/{}/limits/{which}/{}", part(account), part(on))
        };
        match command {
            QuotaCommand::Show { account } => {
                let mut rows =
                    self.lines(&format!("/accounts/{}/usage/local", part(&account))).await?;
                for mut row in
                    self.lines(&format!("/accounts/{}/usage/global", part(&account))).await?
                {
                    row["rse"] = row["rse_expression"].clone();
                    rows.push(row);
                }
                table::rows(
                    self.out,
                    self.format,
                    &rows,
                    &["rse", "files", "bytes", "bytes_limit", "bytes_remaining"],
                )?;
                Ok(0)
            }
            QuotaCommand::Set { account, on, bytes, global } => {
                self.done("POST", &path(&account, &on, global), Some(json!({"bytes": bytes}))).await
            }
            QuotaCommand::Unset { account, on, global } => {
                self.done("DELETE", &path(&account, &on, global), None).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn availability_flags_need_an_explicit_true_or_false() {
        for (text, meant) in [
            ("write=true", Some(("write", true))),
            ("write=True", Some(("write", true))),
            ("read=FALSE", Some(("read", false))),
            ("delete=false", Some(("delete", false))),
            ("write=yes", None),
            ("write=1", None),
            ("write= true", None),
            ("write=", None),
            ("write", None),
            ("wirte=true", None),
            ("availability_write=true", None),
            ("Write=true", None),
        ] {
            match (availability(text), meant) {
                (Ok(found), Some(meant)) => assert_eq!(found, meant),
                (Err(Error::Usage(why)), None) => {
                    assert!(why.contains("true or false") && why.contains(text), "{why}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
