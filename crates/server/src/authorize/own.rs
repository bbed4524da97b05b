//! Which objects are a node's own.
//!
//! A node's credential lies on a machine that runs other people's programs. Everything it may write
//! therefore belongs to that node as it is stored and as it would be stored, and a write of a
//! status changes nothing but the status. It never says that data may be lost. Enter at [`owns`],
//! [`keeps_to`] and [`lets_data_be_lost`].

use serde_json::{Map, Value};

use crate::identity::User;

/// The namespace in which nodes keep their heartbeats.
pub(crate) const NODE_LEASES: &str = "kube-node-lease";
/// The component that an agent reports events as.
const AGENT: &str = "mainstay-agent";
/// The namespace of events about objects that are in none.
const EVENTS: &str = "default";
/// The label of a node's own name.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// The label of a node's zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

type Object = Map<String, Value>;

/// How an object tells to which node it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// It is the Node itself.
    Node,
    /// It is a Node that is made now, with nothing in it that is for operators to say.
    NewNode,
    /// It is the Node's heartbeat.
    Heartbeat,
    /// `spec.nodeName` names the node.
    SpecNodeName,
    /// `spec.local.nodeName` names the node.
    LocalNodeName,
    /// It is an Event that the node reports about one of its own objects.
    Event,
}

impl Own {
    /// Every rule.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 6] = [
        Self::Node,
        Self::NewNode,
        Self::Heartbeat,
        Self::SpecNodeName,
        Self::LocalNodeName,
        Self::Event,
    ];

    /// The field that names the node; a list or watch must select by it.
    pub(crate) fn field(self) -> Option<&'static str> {
        match self {
            Self::Node => Some("metadata.name"),
            Self::SpecNodeName => Some("spec.nodeName"),
            Self::LocalNodeName => Some("spec.local.nodeName"),
            Self::NewNode | Self::Heartbeat | Self::Event => None,
        }
    }

    /// Whether the name alone tells.
    pub(crate) fn is_by_name(self) -> bool {
        matches!(self, Self::Node | Self::NewNode | Self::Heartbeat)
    }

    /// The rule in words, for messages and for the docs.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Node => "its own Node",
            Self::NewNode => {
                "its own Node, with no spec and no labels but its name and the zone it joined in"
            }
            Self::Heartbeat => "its own Lease in kube-node-lease",
            Self::SpecNodeName => "if spec.nodeName is its own name",
            Self::LocalNodeName => "if spec.local.nodeName is its own name",
            Self::Event => "in default, reported by itself as mainstay-agent about its own objects",
        }
    }
}

/// Whether a namespace can hold objects of a rule.
pub(super) fn in_place(rule: Own, namespace: Option<&str>) -> bool {
    match rule {
        Own::Heartbeat => namespace == Some(NODE_LEASES),
        Own::Event => namespace == Some(EVENTS),
        _ => true,
    }
}

/// Whether an object belongs to the node of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Yes,
    No,
    /// If the object that it is about does, or is gone.
    IfSubject(Subject),
}

/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Empty if the Event does not tell.
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

fn text<'a>(object: &'a Object, path: &[&str]) -> &'a str {
    let mut steps = path.iter();
    let first = steps.next().and_then(|step| object.get(*step));
    let found = steps.fold(first, |value, step| value.and_then(|value| value.get(step)));
    found.and_then(Value::as_str).unwrap_or_default()
}

/// Decides whether an object, as it is stored or would be stored, belongs to a user's node.
pub(crate) fn owns(user: &User, rule: Own, object: &Object) -> Owned {
    let names = |path: &[&str]| user.speaks_for(text(object, path));
    let owned = match rule {
        Own::Node => names(&["metadata", "name"]),
        Own::NewNode => names(&["metadata", "name"]) && is_plain_node(object),
        Own::Heartbeat => {
            text(object, &["metadata", "namespace"]) == NODE_LEASES && names(&["metadata", "name"])
        }
        Own::SpecNodeName => names(&["spec", "nodeName"]),
        Own::LocalNodeName => names(&["spec", "local", "nodeName"]),
        Own::Event => return owns_event(user, object),
    };
    if owned { Owned::Yes } else { Owned::No }
}

/// Whether a new Node says nothing that is for operators to say: no spec (taints, unschedulable),
/// no labels but its name and its zone, nothing that holds it or lets it go.
fn is_plain_node(object: &Object) -> bool {
    let empty = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    };
    let metadata = object.get("metadata");
    let part = |name: &str| metadata.and_then(|metadata| metadata.get(name));
    let labels = part("labels").and_then(Value::as_object);
    let name = text(object, &["metadata", "name"]);
    let known = |(label, value): (&String, &Value)| match label.as_str() {
        HOSTNAME_LABEL => value == name,
        ZONE_LABEL => true,
        _ => false,
    };
    empty(object.get("spec"))
        && ["annotations", "finalizers", "ownerReferences"].into_iter().all(|it| empty(part(it)))
        && labels.is_none_or(|labels| labels.iter().all(known))
}

/// The name of a Node and the zone it says it is in.
pub(crate) fn name_and_zone(node: &Object) -> (&str, Option<&str>) {
    let zone = text(node, &["metadata", "labels", ZONE_LABEL]);
    (text(node, &["metadata", "name"]), Some(zone).filter(|zone| !zone.is_empty()))
}

fn owns_event(user: &User, event: &Object) -> Owned {
    let reporters = [text(event, &["reportingInstance"]), text(event, &["source", "host"])];
    let mut named = reporters.into_iter().filter(|reporter| !reporter.is_empty()).peekable();
    let reported = named.peek().is_some() && named.all(|reporter| user.speaks_for(reporter));
    let components = [text(event, &["reportingComponent"]), text(event, &["source", "component"])];
    let mut components =
        components.into_iter().filter(|component| !component.is_empty()).peekable();
    let by_agent = components.peek().is_some() && components.all(|component| component == AGENT);
    let involved = |field: &str| text(event, &["involvedObject", field]);
    let placed = text(event, &["metadata", "namespace"]) == EVENTS
        && involved("namespace").is_empty()
        && event.get("related").is_none();
    if !reported || !by_agent || !placed || involved("name").is_empty() {
        return Owned::No;
    }
    Owned::IfSubject(Subject {
        api_version: involved("apiVersion").to_owned(),
        kind: involved("kind").to_owned(),
        name: involved("name").to_owned(),
    })
}

/// Whether a write keeps to the part of the object that it names: that of a status changes nothing
/// else.
pub(crate) fn keeps_to(subresource: &str, old: Option<&Object>, new: Option<&Object>) -> bool {
    let ("status", Some(old), Some(new)) = (subresource, old, new) else { return true };
    let rest = |object: &Object| {
        let mut rest = object.clone();
        rest.remove("status");
        if let Some(metadata) = rest.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["managedFields", "resourceVersion", "generation"] {
                metadata.remove(field);
            }
        }
        rest
    };
    rest(old) == rest(new)
}

fn at<'a>(object: Option<&'a Object>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let first = object?.get(*first);
    rest.iter().fold(first, |value, step| value.and_then(|value| value.get(step)))
}

fn listed<'a>(object: Option<&'a Object>, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    at(object, path).and_then(Value::as_array).into_iter().flatten()
}

/// Why a node may not write an object in this way: it would say on its own that data on a disk may
/// be lost. People say that; an agent asks only for blank disks to be formatted, which needs no
/// such word. It may carry one over into the operation that it begins, and take one away.
pub(crate) fn lets_data_be_lost(old: Option<&Object>, new: &Object) -> Option<&'static str> {
    const SAID: &[&str] = &["spec", "acknowledgeDataLoss"];
    const CARRIED: &[&str] = &["status", "operation", "acknowledged"];
    let said = |name: &Value| listed(old, SAID).any(|known| known == name);
    let carried = |name: &Value| listed(old, CARRIED).any(|known| known == name);
    if !listed(Some(new), SAID).all(said) {
        return Some("a node must not add to spec.acknowledgeDataLoss");
    }
    if !listed(Some(new), CARRIED).all(|name| said(name) || carried(name)) {
        return Some(
            "status.operation.acknowledged must not say more than spec.acknowledgeDataLoss",
        );
    }
    let acknowledged = listed(old, SAID).chain(listed(Some(new), SAID)).next().is_some();
    let filesystem = |object| at(object, &["spec", "fileSystem"]);
    let forced = |object| filesystem(object).is_some_and(|it| it["forceFormatted"] == true);
    let request = |object| filesystem(object).and_then(|it| it["formatRequest"].as_str());
    let same_request = request(old).unwrap_or_default() == request(Some(new)).unwrap_or_default();
    let asks_anew = forced(Some(new)) && !(forced(old) && same_request);
    let moved =
        old.is_some_and(|old| text(old, &["spec", "devPath"]) != text(new, &["spec", "devPath"]));
    (acknowledged && (asks_anew || moved)).then_some(
        "a node must not ask for formatting or change spec.devPath while spec.acknowledgeDataLoss names data",
    )
}
