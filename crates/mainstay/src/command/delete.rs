//! `mainstay delete`: deletes objects, and waits until they are gone.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Method;
use mainstay_clock::duration;
use mainstay_terminal::output;
use serde_json::{Value, json};

use crate::client::discovery::{Discovery, Resource};
use crate::client::watch::{Change, EventType, Follow, list};
use crate::client::{Call, Client, JSON, with_query};
use crate::command::apply::{namespace_of, resource_of};
use crate::connect::Connect;
use crate::dry_run::DryRun;
use crate::error::{Error, Failures};
use crate::manifest::{self, Document};
use crate::select::{Scope, Selectors, Wanted, wanted};

/// Delete objects
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay delete cm settings other           two objects by name
  mainstay delete -f manifests/               everything the manifests name
  mainstay delete leases -l app=web           by label
  mainstay delete cm --all --wait=false       all of the namespace, without waiting")]
pub(crate) struct Delete {
    /// TYPE NAME…, TYPE/NAME…, or TYPE with -l or --all
    #[arg(value_name = "TYPE|TYPE/NAME", required_unless_present = "files")]
    what: Vec<String>,
    /// Delete the objects of these manifests; `-` is stdin
    #[arg(short, long = "filename", value_name = "FILE", conflicts_with = "what")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    selectors: Selectors,
    /// Delete all objects of the type in the namespace
    #[arg(long, conflicts_with_all = ["labels", "fields"])]
    all: bool,
    /// Wait until the objects are gone (finalizers may take time)
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    wait: bool,
    /// How long to wait at most; 0 means no limit
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration::parse)]
    timeout: Duration,
    /// Exit with code 0 even if an object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    connect: Connect,
}

/// One object to delete.
#[derive(Debug)]
struct Doomed {
    resource: Resource,
    namespace: String,
    name: String,
}

impl Delete {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.connect.client()?;
        let discovery = Discovery::load(&client).await?;
        let doomed = if self.files.is_empty() {
            self.named(&client, &discovery).await?
        } else {
            self.filed(&client, &discovery)?
        };
        if doomed.is_empty() {
            anstream::eprintln!("No resources found.");
        }
        let mut failures = Failures::default();
        let mut leaving = Vec::new();
        for doomed in doomed {
            let deleted = self.delete(&client, &doomed).await;
            if let Some(Some(uid)) = failures.note(deleted)? {
                leaving.push((doomed, uid));
            }
        }
        if self.wait && !self.dry_run.is_on() {
            let waiting = self.await_all(&client, &leaving);
            let waited = match self.timeout {
                Duration::ZERO => waiting.await,
                timeout => tokio::time::timeout(timeout, waiting).await.unwrap_or_else(|_| {
                    Err(Error::negative(
                        "timed out: the objects are being deleted, but their finalizers are not removed yet",
                    ))
                }),
            };
            failures.note(waited)?;
        }
        Ok(failures.code())
    }

    async fn named(&self, client: &Client, discovery: &Discovery) -> Result<Vec<Doomed>, Error> {
        let mut doomed = Vec::new();
        let namespace = self.scope.namespace(client).to_owned();
        for Wanted { resource, names } in wanted(discovery, &self.what)? {
            let chosen = self.all || !self.selectors.is_empty();
            match (names.is_empty(), chosen) {
                (true, false) => {
                    return Err(Error::usage("say which: give names, a selector (-l), or --all"));
                }
                (false, true) => {
                    return Err(Error::usage("names cannot be combined with --all or selectors"));
                }
                (false, false) => doomed.extend(names.into_iter().map(|name| Doomed {
                    resource: resource.clone(),
                    namespace: namespace.clone(),
                    name,
                })),
                (true, true) => {
                    let path = resource.collection(Some(&namespace));
                    let answer = list(client, &path, &self.selectors.query(), JSON).await?;
                    let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
                    let names = items.iter().filter_map(|item| item["metadata"]["name"].as_str());
                    doomed.extend(names.map(|name| Doomed {
                        resource: resource.clone(),
                        namespace: namespace.clone(),
                        name: name.to_owned(),
                    }));
                }
            }
        }
        Ok(doomed)
    }

    fn filed(&self, client: &Client, discovery: &Discovery) -> Result<Vec<Doomed>, Error> {
        let mut doomed = Vec::new();
        for document in manifest::read(&self.files)? {
            let place = format!("{}: {}", document.place, document.label());
            let found = self.document(client, discovery, &document);
            doomed.push(found.map_err(|error| error.within(place))?);
        }
        // In reverse order: later documents may depend on earlier ones.
        doomed.reverse();
        Ok(doomed)
    }

    fn document(
        &self,
        client: &Client,
        discovery: &Discovery,
        document: &Document,
    ) -> Result<Doomed, Error> {
        let resource = resource_of(discovery, document)?;
        let namespace = namespace_of(document, resource, &self.scope, client)?;
        let name = document.name().ok_or_else(|| Error::usage("metadata.name is missing"))?;
        Ok(Doomed { resource: resource.clone(), namespace, name: name.to_owned() })
    }

    /// Requests the deletion; returns the object's uid if it existed.
    async fn delete(&self, client: &Client, doomed: &Doomed) -> Result<Option<String>, Error> {
        let Doomed { resource, namespace, name } = doomed;
        let path = with_query(&resource.object(namespace, name), &[self.dry_run.query()]);
        let options = json!({"propagationPolicy": "Background"});
        let answer = match client.json(Call::send(Method::DELETE, path, JSON, &options)).await {
            Err(error) if self.ignore_not_found && error.is_not_found() => return Ok(None),
            answer => answer?,
        };
        let dry = self.dry_run.note();
        output::print_line(&format!("{} {name:?} deleted{dry}", resource.label()))?;
        // The answer is a Status with details, or the object itself if finalizers delay its deletion.
        let uid = [&answer["metadata"]["uid"], &answer["details"]["uid"]];
        let uid = uid.into_iter().find_map(Value::as_str).unwrap_or_default();
        Ok(Some(uid.to_owned()))
    }

    async fn await_all(&self, client: &Client, leaving: &[(Doomed, String)]) -> Result<(), Error> {
        for (doomed, uid) in leaving {
            gone(client, &doomed.resource, &doomed.namespace, &doomed.name, uid).await?;
        }
        Ok(())
    }
}

/// Completes when the object is gone, or was replaced by another of the same name.
pub(crate) async fn gone(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<(), Error> {
    let path = resource.collection(Some(namespace));
    let mut follow = Follow::new(client, path, Selectors::named(name).query(), JSON);
    let is_it = |object: &Value| {
        object["metadata"]["name"] == name && (uid.is_empty() || object["metadata"]["uid"] == uid)
    };
    loop {
        match follow.next().await? {
            Change::Listed(list) => {
                let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
                if !items.iter().any(is_it) {
                    return Ok(());
                }
            }
            Change::Event(event) if event.kind == EventType::Deleted && is_it(&event.object) => {
                return Ok(());
            }
            Change::Event(_) => {}
        }
    }
}
