//! `mainstay apply`: make the server hold what the manifests say.
//!
//! How one document is applied is [`apply_object`] alone: today a create or a merge patch against
//! what was applied last (kubectl's own annotation, so that the two can take turns).

use std::path::PathBuf;

use clap::Args;
use http::Method;
use serde_json::{Map, Value, json};

use crate::client::discovery::{Discovery, Resource};
use crate::client::watch::with_query;
use crate::client::{Call, Client, JSON, MERGE_PATCH};
use crate::connect::Connect;
use crate::error::{Error, Failures};
use crate::manifest::{self, Document};
use crate::merge::three_way;
use crate::output;
use crate::select::Scope;

/// Where kubectl keeps what was applied last; ours is the same, so that both can be used.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Create or update objects from manifests
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay apply -f settings.yaml             one file, any number of documents
  mainstay apply -f manifests/                a folder and all folders in it
  cat node.yaml | mainstay apply -f -         stdin
  mainstay apply -f node.yaml --status        also write the status part of the documents
  mainstay apply -f . --dry-run               what would change; nothing is written")]
pub(crate) struct Apply {
    /// Files or folders to read; `-` is stdin
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    scope: Scope,
    /// Also write each document's status, through the status subresource. A document that holds
    /// nothing but a status leaves the rest of an existing object alone
    #[arg(long)]
    status: bool,
    /// Let the server check everything, but write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: Connect,
}

/// What applying a document did.
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
            return Err(Error::usage("it has no metadata.name, which apply needs"));
        };
        let mut object = document.object;
        let status = object.remove("status");
        let only_status =
            !object.keys().any(|key| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata"));
        let path = resource.object(&namespace, &name);
        if resource.namespaced {
            object["metadata"]["namespace"] = namespace.as_str().into();
        }
        let place =
            Place { client, resource, namespace: &namespace, path: &path, dry_run: self.dry_run };
        let there = place.read().await?;
        let written = status.filter(|_| self.status);
        let mut applied = match &there {
            Some(_) if written.is_some() && only_status => Applied::Unchanged,
            _ => apply_object(&place, object, there.as_ref()).await?,
        };
        if let Some(status) = written {
            let unwritten = self.dry_run && applied == Applied::Created;
            if !unwritten && apply_status(&place, &status).await? && applied == Applied::Unchanged {
                applied = Applied::Configured;
            }
        }
        let dry = if self.dry_run { " (dry run)" } else { "" };
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
            Err(Error::usage(format!("it is for namespace {own:?}, but -n says {given:?}")))
        }
        (Some(own), _) => Ok(own.to_owned()),
        (None, _) => Ok(scope.namespace(client).to_owned()),
    }
}

/// One object's place on the server, and how it is to be written.
struct Place<'a> {
    client: &'a Client,
    resource: &'a Resource,
    namespace: &'a str,
    path: &'a str,
    dry_run: bool,
}

impl Place<'_> {
    async fn read(&self) -> Result<Option<Value>, Error> {
        match self.client.json(Call::get(self.path)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: &Value,
    ) -> Result<Value, Error> {
        let dry = if self.dry_run { "dryRun=All" } else { "" };
        let path = with_query(path, &["fieldManager=mainstay&fieldValidation=Strict", dry]);
        Ok(self.client.json(Call::send(method, path, content_type, body)).await?)
    }
}

/// Makes the object at `place` what `object` says; `there` is what the server holds now.
async fn apply_object(
    place: &Place<'_>,
    mut object: Map<String, Value>,
    there: Option<&Value>,
) -> Result<Applied, Error> {
    let remembered = remember(&mut object);
    let Some(Value::Object(current)) = there else {
        let path = place.resource.collection(Some(place.namespace));
        place.write(Method::POST, &path, JSON, &Value::Object(object)).await?;
        return Ok(Applied::Created);
    };
    let original = there
        .and_then(|there| there["metadata"]["annotations"][LAST_APPLIED].as_str())
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let mut patch = three_way(&original, &object, current);
    if patch.is_empty() {
        return Ok(Applied::Unchanged);
    }
    // Type and name are what the path already says.
    patch.remove("apiVersion");
    patch.remove("kind");
    let only_memory = patch.len() == 1
        && patch["metadata"] == json!({"annotations": {LAST_APPLIED: remembered}})
        && same_text(there, &remembered);
    if only_memory {
        return Ok(Applied::Unchanged);
    }
    let answer = place.write(Method::PATCH, place.path, MERGE_PATCH, &Value::Object(patch)).await?;
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let unchanged = !place.dry_run && there.map(version) == Some(version(&answer));
    Ok(if unchanged { Applied::Unchanged } else { Applied::Configured })
}

/// Puts what is applied into the object's own annotation, for the next time.
fn remember(object: &mut Map<String, Value>) -> String {
    if let Some(annotations) = object
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("annotations"))
        .and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{}\n", Value::Object(object.clone()));
    object["metadata"]["annotations"][LAST_APPLIED] = text.as_str().into();
    text
}

/// The remembered texts differ only in layout, as when another program wrote the last one.
fn same_text(there: Option<&Value>, remembered: &str) -> bool {
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    let last = there.and_then(|there| there["metadata"]["annotations"][LAST_APPLIED].as_str());
    let last = last.and_then(parse).map(with_annotations);
    last.is_some() && last == parse(remembered).map(with_annotations)
}

/// kubectl always writes `annotations`, also when it is empty.
fn with_annotations(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.entry("annotations").or_insert_with(|| json!({}));
    }
    object
}

/// Writes the status; says whether anything changed.
async fn apply_status(place: &Place<'_>, status: &Value) -> Result<bool, Error> {
    let before = place.read().await?;
    let path = format!("{}/status", place.path);
    let patch = json!({ "status": status });
    let after = place.write(Method::PATCH, &path, MERGE_PATCH, &patch).await?;
    Ok(before.map(|before| before["status"].clone()) != Some(after["status"].clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubectl_wrote_counts_as_the_same() {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"b": "1"}});
        let text = remember(object.as_object_mut().unwrap());
        let theirs = "{\"apiVersion\":\"v1\",\"data\":{\"b\":\"1\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"a\"}}\n";
        let there = json!({"metadata": {"annotations": {LAST_APPLIED: theirs}}});
        assert!(same_text(Some(&there), &text));
        let other = json!({"metadata": {"annotations": {LAST_APPLIED: "{}"}}});
        assert!(!same_text(Some(&other), &text));
    }

    #[test]
    fn remembering_twice_remembers_the_same() {
        let mut object = json!({"metadata": {"name": "a", "annotations": {"x": "y"}}});
        let map = object.as_object_mut().unwrap();
        assert_eq!(remember(map), remember(map));
    }
}
