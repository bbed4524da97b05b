//! Discovery: the resource types that the server has.
//!
//! Aggregated discovery takes two requests; a server without it is asked group by group. Names
//! are resolved as kubectl does: plural, singular, short name or kind, `NAME.GROUP` and
//! `NAME.VERSION.GROUP`, and categories such as `all`; the first group listed wins.

use serde::Deserialize;
use serde_json::Value;

use super::encode;
use super::{Call, Client, Error};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// One served resource type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
}

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `configmap` or `lease.coordination.k8s.io`: how an object of the type is named in output.
    pub(crate) fn label(&self) -> String {
        let name =
            if self.singular.is_empty() { self.kind.to_lowercase() } else { self.singular.clone() };
        if self.group.is_empty() { name } else { format!("{name}.{}", self.group) }
    }

    /// The path of the collection: of one namespace, or of all when `namespace` is `None`.
    pub(crate) fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let root = format!("{root}/{}", self.api_version());
        match namespace {
            Some(namespace) if self.namespaced => {
                format!("{root}/namespaces/{}/{}", encode(namespace), self.plural)
            }
            _ => format!("{root}/{}", self.plural),
        }
    }

    /// The path of one object.
    pub(crate) fn object(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(Some(namespace)), encode(name))
    }

    fn answers_to(&self, name: &str) -> bool {
        self.plural.eq_ignore_ascii_case(name)
            || self.singular.eq_ignore_ascii_case(name)
            || self.kind.eq_ignore_ascii_case(name)
            || self.short_names.iter().any(|short| short.eq_ignore_ascii_case(name))
    }

    fn can(&self, verb: &str) -> bool {
        self.verbs.is_empty() || self.verbs.iter().any(|known| known == verb)
    }
}

/// Everything a server serves, preferred versions first.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    resources: Vec<Resource>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Aggregated {
    items: Vec<Group>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Group {
    metadata: GroupName,
    versions: Vec<GroupVersion>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GroupName {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GroupVersion {
    version: String,
    resources: Vec<AggregatedResource>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AggregatedResource {
    resource: String,
    response_kind: Kind,
    scope: String,
    singular_resource: String,
    short_names: Vec<String>,
    categories: Vec<String>,
    verbs: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kind {
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Legacy {
    resources: Vec<LegacyResource>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LegacyResource {
    name: String,
    kind: String,
    namespaced: bool,
    singular_name: String,
    short_names: Vec<String>,
    categories: Vec<String>,
    verbs: Vec<String>,
}

impl Discovery {
    /// Asks the server. Groups that do not answer are left out, as kubectl does.
    pub(crate) async fn load(client: &Client) -> Result<Self, Error> {
        let (core, groups) = futures_util::future::join(
            client.json(Call::get("/api").accept(AGGREGATED)),
            client.json(Call::get("/apis").accept(AGGREGATED)),
        )
        .await;
        let mut resources = Vec::new();
        for (root, answer) in [("/api", core?), ("/apis", groups?)] {
            if answer["kind"] == "APIGroupDiscoveryList" {
                resources.extend(aggregated(root, answer)?);
                continue;
            }
            for (group, version) in group_versions(&answer) {
                let path = match group.as_str() {
                    "" => format!("/api/{version}"),
                    group => format!("/apis/{group}/{version}"),
                };
                if let Ok(answer) = client.json(Call::get(path.as_str())).await {
                    resources.extend(legacy(&path, &group, &version, answer)?);
                }
            }
        }
        Ok(Self { resources })
    }

    /// The types that `name` means: one, or several when it is a category.
    pub(crate) fn find(&self, name: &str) -> Option<Vec<&Resource>> {
        let readable = |resource: &&Resource| resource.can("list") || resource.can("get");
        let (first, rest) = name.split_once('.').unwrap_or((name, ""));
        let exact = self.resources.iter().filter(readable).find(|resource| {
            let place = format!("{}.{}", resource.version, resource.group);
            let in_group = rest.is_empty()
                || rest.eq_ignore_ascii_case(&resource.group)
                || rest.eq_ignore_ascii_case(&place);
            in_group && resource.answers_to(first)
        });
        if let Some(resource) = exact {
            return Some(vec![resource]);
        }
        let mut seen: Vec<&Resource> = Vec::new();
        for resource in self.resources.iter().filter(|resource| {
            resource.can("list") && resource.categories.iter().any(|category| category == name)
        }) {
            let known = seen
                .iter()
                .any(|other| other.group == resource.group && other.plural == resource.plural);
            if !known {
                seen.push(resource);
            }
        }
        (!seen.is_empty()).then_some(seen)
    }

    /// The type a document of this `apiVersion` and `kind` belongs to.
    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        self.resources
            .iter()
            .find(|resource| resource.kind == kind && resource.api_version() == api_version)
    }

    /// The served names closest to one that is not served, best first.
    pub(crate) fn similar(&self, name: &str) -> Vec<&str> {
        let name = name.to_lowercase();
        let mut scored: Vec<(usize, &str)> = self
            .resources
            .iter()
            .filter_map(|resource| {
                let names = [&resource.singular, &resource.plural];
                let scored = names.map(|known| (distance(&name, known), known.as_str()));
                scored.into_iter().min()
            })
            .filter(|(distance, known)| *distance <= known.len() / 3)
            .collect();
        scored.sort();
        scored.dedup();
        scored.into_iter().map(|(_, known)| known).take(2).collect()
    }
}

fn malformed(path: &str, error: &serde_json::Error) -> Error {
    Error::Malformed { path: path.to_owned(), why: error.to_string() }
}

fn aggregated(path: &str, answer: Value) -> Result<Vec<Resource>, Error> {
    let list: Aggregated =
        serde_json::from_value(answer).map_err(|error| malformed(path, &error))?;
    let mut resources = Vec::new();
    for group in list.items {
        for version in group.versions {
            for found in version.resources {
                resources.push(Resource {
                    group: group.metadata.name.clone(),
                    version: version.version.clone(),
                    kind: found.response_kind.kind,
                    plural: found.resource,
                    singular: found.singular_resource,
                    short_names: found.short_names,
                    categories: found.categories,
                    namespaced: found.scope == "Namespaced",
                    verbs: found.verbs,
                });
            }
        }
    }
    Ok(resources)
}

/// The groups of an old-style `/api` or `/apis`, the preferred version of each first.
fn group_versions(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let core = array(&answer["versions"])
        .iter()
        .map(|version| (String::new(), text(version)))
        .collect::<Vec<_>>();
    let groups = array(&answer["groups"]);
    let named = groups.iter().flat_map(|group| {
        let preferred = text(&group["preferredVersion"]["version"]);
        let mut versions: Vec<String> =
            array(&group["versions"]).iter().map(|version| text(&version["version"])).collect();
        versions.sort_by_key(|version| *version != preferred);
        let name = text(&group["name"]);
        versions.into_iter().map(move |version| (name.clone(), version))
    });
    core.into_iter().chain(named).collect()
}

fn legacy(path: &str, group: &str, version: &str, answer: Value) -> Result<Vec<Resource>, Error> {
    let list: Legacy = serde_json::from_value(answer).map_err(|error| malformed(path, &error))?;
    let whole = |found: &LegacyResource| !found.name.contains('/');
    Ok(list
        .resources
        .into_iter()
        .filter(whole)
        .map(|found| Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: found.kind,
            plural: found.name,
            singular: found.singular_name,
            short_names: found.short_names,
            categories: found.categories,
            namespaced: found.namespaced,
            verbs: found.verbs,
        })
        .collect())
}

/// How many letters must be added, taken or changed to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, known) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *known);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Discovery {
        let core = json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {},
        "versions": [{"version": "v1", "resources": [
            {"resource": "configmaps", "responseKind": {"kind": "ConfigMap"}, "scope": "Namespaced",
             "singularResource": "configmap", "shortNames": ["cm"], "verbs": ["get", "list"]},
            {"resource": "nodes", "responseKind": {"kind": "Node"}, "scope": "Cluster",
             "singularResource": "node", "shortNames": ["no"], "categories": ["all"], "verbs": ["get", "list"]},
        ]}]}]});
        let leases = json!({"resources": [
            {"name": "leases", "kind": "Lease", "namespaced": true, "singularName": "lease", "categories": ["all"], "verbs": ["list"]},
            {"name": "leases/status", "kind": "Lease", "namespaced": true, "verbs": ["get"]},
        ]});
        let mut resources = aggregated("/api", core).unwrap();
        resources.extend(legacy("/apis", "coordination.k8s.io", "v1", leases).unwrap());
        Discovery { resources }
    }

    #[test]
    fn types_are_found_by_plural_singular_short_name_and_kind() {
        let discovery = sample();
        let cases = [
            ("cm", vec!["configmaps"]),
            ("ConfigMap", vec!["configmaps"]),
            ("configmaps.v1.", vec!["configmaps"]),
            ("leases.coordination.k8s.io", vec!["leases"]),
            ("lease.v1.coordination.k8s.io", vec!["leases"]),
            ("all", vec!["nodes", "leases"]),
        ];
        for (name, expected) in cases {
            let found = discovery.find(name).unwrap_or_default();
            let plurals: Vec<&str> =
                found.iter().map(|resource| resource.plural.as_str()).collect();
            assert_eq!(plurals, expected, "{name}");
        }
        assert!(discovery.find("pods").is_none());
        assert!(discovery.find("configmaps.apps").is_none());
        assert_eq!(discovery.similar("confgimap"), ["configmap"]);
    }

    #[test]
    fn paths_follow_group_and_scope() {
        let discovery = sample();
        let path = |name: &str| discovery.find(name).unwrap()[0].object("a/b", "x y");
        assert_eq!(path("cm"), "/api/v1/namespaces/a%2Fb/configmaps/x%20y");
        assert_eq!(path("no"), "/api/v1/nodes/x%20y");
        assert_eq!(path("leases"), "/apis/coordination.k8s.io/v1/namespaces/a%2Fb/leases/x%20y");
    }
}
