//! Event: what happened to an object, for people to read.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::column::{Column, ColumnType, age};
use crate::meta::{MicroTime, ObjectMeta, Time};
use crate::registry::Kind;
use crate::status::Violation;
use crate::typed;

/// Something that happened to an object, described for people. Events are not reliable: they may be
/// dropped under load, and the server removes them about an hour after they were last seen, or
/// earlier if there are very many. Read conditions, not Events, to decide anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Standard metadata: name, labels, owners and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The operation during which it happened, in one word. Often not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// How often it happened. Not set means once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// When it happened, for reporters that write one Event for each occurrence. Others set
    /// firstTimestamp and lastTimestamp instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<MicroTime>,
    /// When it happened for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_timestamp: Option<Time>,
    /// The object it happened to. The Event lives in the namespace of that object; one about an
    /// object outside of namespaces lives in default, kube-system or mainstay-system.
    pub involved_object: ObjectReference,
    /// When it last happened. The age of the Event counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_timestamp: Option<Time>,
    /// A description of the event, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The event in one word that programs can match, as Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A second object that had part in it. Not set if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub related: Option<ObjectReference>,
    /// The program that reports it. If not set, see source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reporting_component: Option<String>,
    /// Which instance of that program: the server or node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reporting_instance: Option<String>,
    /// How a thing that keeps happening goes on. Not set for a single occurrence, or if count is
    /// used instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<EventSeries>,
    /// The component that reports it, in an older form. If both forms are set, this one is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<EventSource>,
    /// Normal if things went as they should, Warning if an operator may have to act.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Points at an object, or at a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ObjectReference {
    /// The group and version of the object, as v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// The part of the object that is meant, as a path of fields, such as spec.taints. Not set if
    /// it is the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// The kind of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The namespace of the object. Not set if it lives in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The version of the object that was looked at. Not set if it does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// The identity of the object. Not set means whichever object has the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Occurrences of the same thing, counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSeries {
    /// How many occurrences there were until lastObservedTime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// When it was last seen to happen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<MicroTime>,
}

/// The component that reports an Event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSource {
    /// The program that reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// The node the program runs on. Not set if that says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

typed!(Event, group: "", version: "v1", plural: "events", namespaced: true);

pub(super) fn kind() -> Kind {
    let text = ColumnType::String;
    Kind::of::<Event>()
        .short("ev")
        .no_name_column()
        .selectable("involvedObject.kind")
        .selectable("involvedObject.namespace")
        .selectable("involvedObject.name")
        .selectable("involvedObject.uid")
        .selectable("involvedObject.apiVersion")
        .selectable("involvedObject.resourceVersion")
        .selectable("involvedObject.fieldPath")
        .selectable("reason")
        .selectable("reportingComponent")
        .selectable("type")
        .column(
            Column::computed("Last Seen", text, last_seen).about("How long ago it last happened."),
        )
        .column(
            Column::string("Type", ".type").about("Normal, or Warning if an operator should look."),
        )
        .column(Column::string("Reason", ".reason").about("Why it happened, for machines."))
        .column(Column::computed("Object", text, target).about("The object it is about."))
        .column(
            Column::string("Subobject", ".involvedObject.fieldPath")
                .about("The part of the object it is about.")
                .wide(),
        )
        .column(
            Column::computed("Source", text, source).about("The component that reports it.").wide(),
        )
        .column(Column::computed("Message", text, message).about("A description of the event."))
        .column(
            Column::computed("First Seen", text, first_seen)
                .about("How long ago it first happened.")
                .wide(),
        )
        .column(
            Column::computed("Count", ColumnType::Integer, |event, _| count(event))
                .about("How often it happened.")
                .wide(),
        )
        .column(
            Column::string("Name", ".metadata.name")
                .format("name")
                .about("The name of the event itself.")
                .wide(),
        )
        .validate(check)
        .build()
}

fn check(event: &Event, old: Option<&Event>) -> Vec<Violation> {
    let mut found = check_place(event);
    let known = old.map(|old| old.metadata.finalizers.as_slice()).unwrap_or_default();
    if event.metadata.finalizers.iter().any(|finalizer| !known.contains(finalizer)) {
        found.push(Violation::forbidden(
            "metadata.finalizers",
            "Events are removed by age and number; finalizers cannot hold them",
        ));
    }
    found
}

fn check_place(event: &Event) -> Vec<Violation> {
    const SYSTEM: [&str; 3] = ["default", "kube-system", "mainstay-system"];
    let own = event.metadata.namespace.as_deref().unwrap_or_default();
    let involved = event.involved_object.namespace.as_deref().unwrap_or_default();
    let fits =
        if involved.is_empty() { own.is_empty() || SYSTEM.contains(&own) } else { own == involved };
    if fits {
        Vec::new()
    } else {
        vec![Violation::invalid(
            "involvedObject.namespace",
            &Value::from(involved),
            "does not match event.namespace",
        )]
    }
}

fn get<'a>(event: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = rest.iter().try_fold(event.get(*first)?, |value, name| value.get(name))?;
    (!value.is_null()).then_some(value)
}

fn text<'a>(event: &'a Map<String, Value>, path: &[&str]) -> &'a str {
    get(event, path).and_then(Value::as_str).unwrap_or_default()
}

fn since(moment: Option<&Value>, now: Timestamp) -> Value {
    age(moment.unwrap_or(&Value::Null), now)
}

fn first_seen(event: &Map<String, Value>, now: Timestamp) -> Value {
    since(get(event, &["firstTimestamp"]).or_else(|| get(event, &["eventTime"])), now)
}

fn last_seen(event: &Map<String, Value>, now: Timestamp) -> Value {
    let series = get(event, &["series", "lastObservedTime"]);
    match series.or_else(|| get(event, &["lastTimestamp"])) {
        Some(moment) => since(Some(moment), now),
        None => first_seen(event, now),
    }
}

fn target(event: &Map<String, Value>, _: Timestamp) -> Value {
    let kind = text(event, &["involvedObject", "kind"]).to_lowercase();
    match text(event, &["involvedObject", "name"]) {
        "" => Value::from(kind),
        name => Value::from(format!("{kind}/{name}")),
    }
}

fn source(event: &Map<String, Value>, _: Timestamp) -> Value {
    let either = |new: &[&str], old: &[&str]| match text(event, old) {
        "" => text(event, new).to_owned(),
        text => text.to_owned(),
    };
    let component = either(&["reportingComponent"], &["source", "component"]);
    let instance = either(&["reportingInstance"], &["source", "host"]);
    if instance.is_empty() {
        Value::from(component)
    } else {
        Value::from(format!("{component}, {instance}"))
    }
}

fn message(event: &Map<String, Value>, _: Timestamp) -> Value {
    Value::from(text(event, &["message"]).trim())
}

fn count(event: &Map<String, Value>) -> Value {
    let series = get(event, &["series", "count"]);
    let count = series.or_else(|| get(event, &["count"])).and_then(Value::as_i64);
    Value::from(count.filter(|count| *count > 0).unwrap_or(1))
}
