//! The objects that a command is for: `TYPE[,TYPE] [NAME…]`, `TYPE/NAME…`, namespaces and selectors.

use clap::Args;

use crate::client::Client;
use crate::client::discovery::{Discovery, Resource};
use crate::client::encode;
use crate::error::Error;

/// `-n`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Scope {
    /// Namespace of the objects [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAME", env = "MAINSTAY_NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

impl Scope {
    pub(crate) fn namespace<'a>(&'a self, client: &'a Client) -> &'a str {
        self.namespace.as_deref().unwrap_or_else(|| client.namespace())
    }
}

/// `-l` and `--field-selector`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Selectors {
    /// Select objects by labels (`app=web,tier!=db`, `env in (a,b)`, `!old`)
    #[arg(short = 'l', long = "selector", value_name = "SELECTOR")]
    pub(crate) labels: Option<String>,
    /// Select objects by field values (`metadata.name=x,status.phase!=Active`)
    #[arg(long = "field-selector", value_name = "SELECTOR")]
    pub(crate) fields: Option<String>,
}

impl Selectors {
    /// The one object of this name.
    pub(crate) fn named(name: &str) -> Self {
        Self { labels: None, fields: Some(format!("metadata.name={name}")) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_none() && self.fields.is_none()
    }

    /// As query parameters, encoded.
    pub(crate) fn query(&self) -> String {
        let labels = self.labels.as_ref().map(|text| ("labelSelector", text));
        let fields = self.fields.as_ref().map(|text| ("fieldSelector", text));
        let parts: Vec<String> = labels
            .into_iter()
            .chain(fields)
            .map(|(name, text)| format!("{name}={}", encode(text)))
            .collect();
        parts.join("&")
    }
}

/// One type, and the names asked for (none: all of them).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) resource: Resource,
    pub(crate) names: Vec<String>,
}

/// Reads the positional arguments of `get`, `describe`, `delete`, `wait` and `watch`.
pub(crate) fn wanted(discovery: &Discovery, arguments: &[String]) -> Result<Vec<Wanted>, Error> {
    if arguments.iter().any(|argument| argument.contains('/')) {
        return pairs(discovery, arguments);
    }
    let Some((types, names)) = arguments.split_first() else {
        return Err(Error::usage("name a type: `mainstay get TYPE [NAME…]`"));
    };
    let mut wanted: Vec<Wanted> = Vec::new();
    for name in types.split(',').filter(|name| !name.is_empty()) {
        for resource in resources(discovery, name)? {
            if !wanted.iter().any(|known| known.resource == *resource) {
                wanted.push(Wanted { resource: resource.clone(), names: names.to_vec() });
            }
        }
    }
    if wanted.is_empty() {
        return Err(Error::usage(format!("{types:?} does not name a type")));
    }
    Ok(wanted)
}

fn pairs(discovery: &Discovery, arguments: &[String]) -> Result<Vec<Wanted>, Error> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for argument in arguments {
        let pair = argument.split_once('/').filter(|(kind, name)| {
            !kind.is_empty() && !name.is_empty() && !name.contains('/') && !kind.contains(',')
        });
        let Some((kind, name)) = pair else {
            return Err(Error::usage(format!(
                "{argument:?} is not TYPE/NAME; when one argument is, all must be"
            )));
        };
        for resource in resources(discovery, kind)? {
            let names = vec![name.to_owned()];
            match wanted.last_mut() {
                Some(last) if last.resource == *resource => last.names.extend(names),
                _ => wanted.push(Wanted { resource: resource.clone(), names }),
            }
        }
    }
    Ok(wanted)
}

fn resources<'a>(discovery: &'a Discovery, name: &str) -> Result<Vec<&'a Resource>, Error> {
    discovery.find(name).ok_or_else(|| {
        let similar = discovery.similar(name);
        let hint = match similar.as_slice() {
            [] => String::new(),
            names => format!("; did you mean {}?", names.join(" or ")),
        };
        Error::usage(format!("the server has no resource type {name:?}{hint}"))
    })
}
