//! `mainstay apply`: creates or updates objects from manifests.
//!
//! Every document is sent as a server-side apply: the server knows which fields are ours, removes
//! those that are no longer in the manifest, and refuses to change fields that another manager owns.
//! [`apply_object`] applies one document.

use std::path::PathBuf;

use clap::Args;
use http::Method;
use mainstay_terminal::output;
use serde_json::{Map, Value, json};

use crate::client::Status;
use crate::client::discovery::{Discovery, Resource};
use crate::client::{self, APPLY_PATCH, Call, Client, JSON_PATCH, encode, with_query};
use crate::connect::Connect;
use crate::dry_run::DryRun;
use crate::error::{Error, Failures};
use crate::manifest::{self, Document};
use crate::ownership::{self, LAST_APPLIED, Part};
use crate::select::Scope;

/// How often the migration is retried when the object changes meanwhile.
const TRIES: usize = 5;

/// Create or update objects from manifests
///
/// The server records which manager applied which fields. A field that is no longer in a manifest is
/// removed, fields of other managers stay, and a field that another manager set to another value is a
/// conflict.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay apply -f settings.yaml             one file, any number of documents
  mainstay apply -f manifests/                a folder and all folders in it
  cat node.yaml | mainstay apply -f -         stdin
  mainstay apply -f node.yaml --status        also write the status part of the documents
  mainstay apply -f . --dry-run=server        what would change; nothing is written
  mainstay apply -f . --force-conflicts       take over what others have set")]
pub(crate) struct Apply {
    /// Files or folders to read; `-` is stdin
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    scope: Scope,
    /// Take over fields that another manager has set to other values
    #[arg(long)]
    force_conflicts: bool,
    /// The manager name that owns the applied fields
    #[arg(long, value_name = "NAME", default_value = "mainstay")]
    field_manager: String,
    /// Also write each document's status, through the status subresource; what others have set
    /// there is taken over. A document that holds nothing but a status leaves the rest of an
    /// existing object alone
    #[arg(long)]
    status: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    connect: Connect,
}

/// The result of applying a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    Created,
    Configured,
    Unchanged,
}

impl Applied {
    fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

impl Apply {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let documents = manifest::read(&self.files)?;
        if documents.is_empty() {
            return Err(Error::usage("no documents to apply"));
        }
        let client = self.connect.client()?;
        let discovery = Discovery::load(&client).await?;
        let mut failures = Failures::default();
        for document in documents {
            let place = format!("{}: {}", document.place, document.label());
            let applied = self.apply(&client, &discovery, document).await;
            let applied = applied.map_err(|error| error.within(place));
            if let Some(line) = failures.note(applied)? {
                output::print_line(&line)?;
            }
        }
        Ok(failures.code())
    }

    async fn apply(
        &self,
        client: &Client,
        discovery: &Discovery,
        document: Document,
    ) -> Result<String, Error> {
        let resource = resource_of(discovery, &document)?;
        let namespace = namespace_of(&document, resource, &self.scope, client)?;
        let Some(name) = document.name().map(str::to_owned) else {
            return Err(Error::usage("metadata.name is missing; apply needs it"));
        };
        let mut object = document.object;
        let status = object.remove("status");
        let only_status =
            !object.keys().any(|key| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata"));
        let path = resource.object(&namespace, &name);
        if resource.namespaced {
            object["metadata"]["namespace"] = namespace.as_str().into();
        }
        let place = Place { client, path: &path, manager: &self.field_manager, dry: &self.dry_run };
        let identity = identity(&object);
        let there = place.read().await?;
        let written = status.filter(|_| self.status);
        let mut applied = match &there {
            Some(_) if written.is_some() && only_status => Applied::Unchanged,
            _ => apply_object(&place, object, there, self.force_conflicts).await?,
        };
        if let Some(status) = written {
            let unwritten = self.dry_run.is_on() && applied == Applied::Created;
            let config = json!({"apiVersion": identity.0, "kind": identity.1, "status": status});
            let changed = !unwritten && apply_status(&place, &config).await?;
            if changed && applied == Applied::Unchanged {
                applied = Applied::Configured;
            }
        }
        let dry = self.dry_run.note();
        Ok(format!("{}/{name} {}{dry}", resource.label(), applied.word()))
    }
}

/// The type of a document, or an error that names the document.
pub(crate) fn resource_of<'a>(
    discovery: &'a Discovery,
    document: &Document,
) -> Result<&'a Resource, Error> {
    let Document { api_version, kind, .. } = document;
    discovery
        .by_kind(api_version, kind)
        .ok_or_else(|| Error::usage(format!("the server has no kind {kind:?} in {api_version:?}")))
}

/// The namespace of a document: its own, which `-n` must not contradict, else the usual one.
pub(crate) fn namespace_of(
    document: &Document,
    resource: &Resource,
    scope: &Scope,
    client: &Client,
) -> Result<String, Error> {
    match (document.namespace(), &scope.namespace) {
        (Some(own), Some(given)) if resource.namespaced && own != given => {
            Err(Error::usage(format!("metadata.namespace is {own:?}, but -n is {given:?}")))
        }
        (Some(own), _) => Ok(own.to_owned()),
        (None, _) => Ok(scope.namespace(client).to_owned()),
    }
}

/// `apiVersion` and `kind`, which every part of an object has.
fn identity(object: &Map<String, Value>) -> (Value, Value) {
    let of = |name: &str| object.get(name).cloned().unwrap_or_default();
    (of("apiVersion"), of("kind"))
}

/// One object's place on the server, and how it is to be written.
struct Place<'a> {
    client: &'a Client,
    path: &'a str,
    manager: &'a str,
    dry: &'a DryRun,
}

impl Place<'_> {
    async fn read(&self) -> Result<Option<Value>, Error> {
        match self.client.json(Call::get(self.path)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a configuration of the object or of its status.
    async fn send(&self, part: Part, config: &Value, force: bool) -> Result<Value, client::Error> {
        let path = match part {
            Part::Main => self.path.to_owned(),
            Part::Status => format!("{}/status", self.path),
        };
        let manager = format!("fieldManager={}&fieldValidation=Strict", encode(self.manager));
        let force = if force { "force=true" } else { "" };
        let path = with_query(&path, &[&manager, force, self.dry.query()]);
        self.client.json(Call::send(Method::PATCH, path, APPLY_PATCH, config)).await
    }

    /// Takes over the fields of client-side apply; returns the object after that.
    async fn take_over(&self, part: Part, mut there: Value) -> Result<Value, Error> {
        let mut tries = TRIES;
        while let Some(entries) = ownership::taken_over(&there, self.manager, part) {
            tries -= 1;
            // The version is a precondition, so that no concurrent change is lost.
            let patch = json!([
                {"op": "replace", "path": "/metadata/managedFields", "value": entries},
                {"op": "replace", "path": "/metadata/resourceVersion",
                 "value": there["metadata"]["resourceVersion"]},
            ]);
            let call = Call::send(Method::PATCH, self.path, JSON_PATCH, &patch);
            match self.client.json(call).await {
                Ok(after) => return Ok(after),
                Err(error) if error.is_conflict() && tries > 0 => {}
                Err(error) => return Err(error.into()),
            }
            match self.read().await? {
                Some(now) => there = now,
                None => break,
            }
        }
        Ok(there)
    }

    /// Applies a part of the object. Fields of our predecessors are no conflict, not even in a dry
    /// run, which cannot take them over.
    async fn apply(
        &self,
        part: Part,
        config: &Value,
        there: Option<Value>,
        force: bool,
    ) -> Result<Value, Error> {
        let predecessors = there
            .as_ref()
            .map(|there| ownership::predecessors(there, self.manager, part))
            .unwrap_or_default();
        if let Some(there) = there
            && !self.dry.is_on()
        {
            self.take_over(part, there).await?;
        }
        let answer = match self.send(part, config, force).await {
            Err(client::Error::Status(status))
                if self.dry.is_on() && only_with(&status, &predecessors) =>
            {
                self.send(part, config, true).await
            }
            answer => answer,
        };
        answer.map_err(|error| match error {
            client::Error::Status(status) => explained(*status),
            other => other.into(),
        })
    }
}

/// Applies `object` at `place`; `there` is the object on the server.
async fn apply_object(
    place: &Place<'_>,
    mut object: Map<String, Value>,
    there: Option<Value>,
    force: bool,
) -> Result<Applied, Error> {
    tidy(&mut object);
    let config = Value::Object(object);
    let before = there.clone();
    let after = place.apply(Part::Main, &config, there, force).await?;
    Ok(match before {
        None => Applied::Created,
        Some(before) if same(&before, &after) => Applied::Unchanged,
        Some(_) => Applied::Configured,
    })
}

/// Writes the status; returns whether anything changed.
async fn apply_status(place: &Place<'_>, config: &Value) -> Result<bool, Error> {
    let before = place.read().await?;
    let after = place.apply(Part::Status, config, before.clone(), true).await?;
    Ok(before.is_none_or(|before| before["status"] != after["status"]))
}

/// Removes the fields of a manifest that was saved from a server: managedFields, which only the
/// server may set, and the annotation of client-side apply, which is no longer needed.
fn tidy(object: &mut Map<String, Value>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("managedFields");
    let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations
        && annotations.remove(LAST_APPLIED).is_some()
        && annotations.is_empty()
    {
        metadata.remove("annotations");
    }
}

/// Whether an answer means that the object did not change. A dry run gives no version, so the contents decide,
/// except for when fields were last written.
fn same(before: &Value, after: &Value) -> bool {
    let plain = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
            let entries = metadata.get_mut("managedFields").and_then(Value::as_array_mut);
            for entry in entries.into_iter().flatten().filter_map(Value::as_object_mut) {
                entry.remove("time");
            }
        }
        object
    };
    plain(before) == plain(after)
}

/// Whether all conflicting fields are owned by these managers through updates.
fn only_with(status: &Status, parties: &[String]) -> bool {
    let of = |message: &str| {
        parties.iter().any(|name| message.starts_with(&format!("conflict with {name:?} using ")))
    };
    let mut conflicts = status.conflicts().peekable();
    conflicts.peek().is_some() && conflicts.all(|(_, message)| of(message))
}

/// The message of a conflict, with the ways to resolve it.
fn explained(status: Status) -> Error {
    let lines: Vec<String> = status
        .conflicts()
        .map(|(field, message)| {
            let holder = message.strip_prefix("conflict with ").unwrap_or(message);
            format!("\n  {field} is held by {holder}")
        })
        .collect();
    if lines.is_empty() {
        return client::Error::from(status).into();
    }
    let what = if lines.len() == 1 { "a field has" } else { "fields have" };
    Error::negative(format!(
        "{what} other values by other parties:{}\n  \
         --force-conflicts takes over; what is not in the manifest is left to its holder",
        lines.concat()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflicts(causes: &[(&str, &str)]) -> Status {
        let causes: Vec<Value> = causes
            .iter()
            .map(|(field, message)| {
                json!({"reason": "FieldManagerConflict", "field": field, "message": message})
            })
            .collect();
        let body =
            json!({"reason": "Conflict", "message": "Apply failed", "details": {"causes": causes}});
        Status::parse(http::StatusCode::CONFLICT, body.to_string().as_bytes())
    }

    #[test]
    fn a_conflict_names_fields_and_holders() {
        let status = conflicts(&[(".data.a", "conflict with \"edit\" using v1")]);
        let text = explained(status).to_string();
        assert!(text.contains(".data.a is held by \"edit\" using v1"), "{text}");
        assert!(text.contains("--force-conflicts"), "{text}");
        let stale = Status::parse(http::StatusCode::CONFLICT, br#"{"message":"it was modified"}"#);
        assert_eq!(explained(stale).to_string(), "it was modified");
    }

    #[test]
    fn only_predecessors_are_no_conflict() {
        let ours = ["old".to_owned()];
        let cases = [
            (vec![(".a", "conflict with \"old\" using v1 at 2026")], true),
            (vec![(".a", "conflict with \"old\"")], false),
            (vec![(".a", "conflict with \"older\" using v1")], false),
            (
                vec![
                    (".a", "conflict with \"old\" using v1"),
                    (".b", "conflict with \"x\" using v1"),
                ],
                false,
            ),
            (vec![], false),
        ];
        for (causes, expected) in cases {
            assert_eq!(only_with(&conflicts(&causes), &ours), expected, "{causes:?}");
        }
    }

    #[test]
    fn server_side_fields_of_a_saved_manifest_are_removed() {
        let mut object = json!({"metadata": {
            "name": "a", "managedFields": [], "annotations": {LAST_APPLIED: "{}"},
        }});
        tidy(object.as_object_mut().unwrap());
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
        let mut object = json!({"metadata": {"annotations": {LAST_APPLIED: "{}", "b": "c"}}});
        tidy(object.as_object_mut().unwrap());
        assert_eq!(object, json!({"metadata": {"annotations": {"b": "c"}}}));
    }

    #[test]
    fn times_and_versions_are_no_change() {
        let object = |version: &str, time: &str, manager: &str| {
            json!({"metadata": {"resourceVersion": version,
                "managedFields": [{"manager": manager, "time": time}]}})
        };
        assert!(same(&object("1", "a", "m"), &object("2", "b", "m")));
        assert!(!same(&object("1", "a", "m"), &object("1", "a", "n")));
    }
}
