//! Commands about data identifiers, replicas and transfers.

use serde_json::{Value, json};

use super::{
    Cli, DidCommand, Error, ReplicaCommand, TransferCommand, did, did_path, named, part, table,
};

impl Cli<'_> {
    pub(super) async fn did(&mut self, command: DidCommand) -> Result<u8, Error> {
        match command {
            DidCommand::Tree { did } => self.tree(&did).await,
            DidCommand::Add { did, container, lifetime } => {
                let kind = if container { "CONTAINER" } else { "DATASET" };
                self.done(
                    "POST",
                    &did_path(&did, "")?,
                    Some(json!({"type": kind, "lifetime": lifetime})),
                )
                .await
            }
            DidCommand::Attach { parent, children } => {
                self.done(
                    "POST",
                    &did_path(&parent, "/dids")?,
                    Some(json!({"dids": named(&children)?})),
                )
                .await
            }
            DidCommand::Detach { parent, children } => {
                self.done(
                    "DELETE",
                    &did_path(&parent, "/dids")?,
                    Some(json!({"dids": named(&children)?})),
                )
                .await
            }
            DidCommand::Close { did } => {
                self.done("PUT", &did_path(&did, "/status")?, Some(json!({"open": false}))).await
            }
            DidCommand::Show { did } => {
                self.show("GET", &did_path(&did, "?dynamic_depth=FILE")?, None).await
            }
        }
    }

    /// Prints the tree below a data identifier, with an explicit stack, at most a thousand lines.
    async fn tree(&mut self, root: &str) -> Result<u8, Error> {
        let (scope, name) = did(root)?;
        let first = self.value("GET", &did_path(root, "")?, None).await?;
        let kind = first["type"].as_str().unwrap_or("").to_owned();
        let mut open = vec![(0_usize, scope, name, kind)];
        let mut left = 1_000;
        while let Some((depth, scope, name, kind)) = open.pop() {
            if left == 0 {
                writeln!(self.out, "…")?;
                break;
            }
            left -= 1;
            writeln!(self.out, "{}{scope}:{name} {kind}", "  ".repeat(depth))?;
            if kind == "FILE" {
                continue;
            }
            let children =
                self.lines(&format!("/dids/{}/{}/dids", part(&scope), part(&name))).await?;
            for child in children.iter().rev() {
                let text = |key: &str| child[key].as_str().unwrap_or("").to_owned();
                open.push((depth + 1, text("scope"), text("name"), text("type")));
            }
        }
        Ok(0)
    }

    pub(super) async fn replica(&mut self, command: ReplicaCommand) -> Result<u8, Error> {
        match command {
            ReplicaCommand::Add { rse, files } => {
                let mut list = Vec::with_capacity(files.len());
                for file in &files {
                    let parts: Vec<&str> = file.split(':').collect();
                    let (scope, name, bytes, sum) = match parts.as_slice() {
                        [scope, name, bytes] => (*scope, *name, *bytes, None),
                        [scope, name, bytes, sum] => (*scope, *name, *bytes, Some(*sum)),
                        _ => {
                            return Err(Error::Usage(format!(
                                "{file:?} should be scope:name:bytes[:adler32]"
                            )));
                        }
                    };
                    let bytes: i64 = bytes.parse().map_err(|_| {
                        Error::Usage(format!("{bytes:?} should be a number of bytes"))
                    })?;
                    list.push(
                        json!({"scope": scope, "name": name, "bytes": bytes, "adler32": sum}),
                    );
                }
                self.done("POST", "/replicas", Some(json!({"rse": rse, "files": list}))).await
            }
            ReplicaCommand::List { dids, all } => {
                let body = json!({"dids": named(&dids)?, "all_states": all});
                let text = self.call("POST", "/replicas/list", Some(body)).await?;
                let rows: Vec<Value> =
                    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
                table::rows(
                    self.out,
                    self.format,
                    &rows,
                    &["scope", "name", "bytes", "adler32", "states"],
                )?;
                Ok(0)
            }
            ReplicaCommand::Bad { rse, file, reason } => {
                let (scope, name) = did(&file)?;
                let body = json!({"replicas": [{"scope": scope, "name": name, "rse": rse}], "reason": reason});
                self.done("POST", "/replicas/bad", Some(body)).await
            }
            ReplicaCommand::Suspicious { expression } => {
                let path = match expression {
                    None => "/replicas/suspicious".to_owned(),
                    Some(text) => format!("/replicas/suspicious?rse_expression={}", part(&text)),
                };
                let text = self.call("GET", &path, None).await?;
                let rows: Vec<Value> =
                    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
                let columns = ["scope", "name", "rse", "cnt", "created_at", "reason"];
                table::rows(self.out, self.format, &rows, &columns)?;
                Ok(0)
            }
            ReplicaCommand::Tombstone { rse, file } => {
                let (scope, name) = did(&file)?;
                let body = json!({"replicas": [{"scope": scope, "name": name, "rse": rse}]});
                self.done("POST", "/replicas/tombstone", Some(body)).await
            }
        }
    }

    pub(super) async fn transfer(&mut self, command: TransferCommand) -> Result<u8, Error> {
        let (rse, files, state, error) = match command {
            TransferCommand::Done { rse, files } => (rse, files, "A", None),
            TransferCommand::Failed { rse, files, error } => (rse, files, "U", Some(error)),
        };
        let mut list = named(&files)?;
        for file in &mut list {
            file["state"] = json!(state);
            file["error_message"] = json!(error);
        }
        self.done("PUT", "/replicas", Some(json!({"rse": rse, "files": list}))).await
    }
}
