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

/// Event is a report of an event somewhere in the cluster. Events have a limited retention time and
/// triggers and messages may evolve with time. Event consumers should not rely on the timing of an
/// event with a given Reason reflecting a consistent underlying trigger, or the continued existence
/// of events with that Reason. Events should be treated as informative, best-effort, supplemental
/// data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What action was taken/failed regarding to the Regarding object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The number of times this event has occurred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// Time when this Event was first observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<MicroTime>,
    /// The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_timestamp: Option<Time>,
    /// The object that this event is about.
    pub involved_object: ObjectReference,
    /// The time at which the most recent occurrence of this event was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_timestamp: Option<Time>,
    /// A human-readable description of the status of this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// This should be a short, machine understandable string that gives the reason for the
    /// transition into the object's current status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Optional secondary object for more complex actions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub related: Option<ObjectReference>,
    /// Name of the controller that emitted this Event, e.g. `kubernetes.io/kubelet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reporting_component: Option<String>,
    /// ID of the controller instance, e.g. `kubelet-xyzf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reporting_instance: Option<String>,
    /// Data about the Event series this event represents or nil if it's a singleton Event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<EventSeries>,
    /// The component reporting this event. Should be a short machine understandable string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<EventSource>,
    /// Type of this event (Normal, Warning), new types could be added in the future.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// ObjectReference contains enough information to let you inspect or modify the referred object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ObjectReference {
    /// API version of the referent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// If referring to a piece of an object instead of an entire object, this string should contain
    /// a valid JSON/Go field access statement, such as desiredState.manifest.containers[2].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// Kind of the referent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the referent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Namespace of the referent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Specific resourceVersion to which this reference is made, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// UID of the referent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// EventSeries contain information on series of events, i.e. thing that was/is happening
/// continuously for some time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSeries {
    /// Number of occurrences in this series up to the last heartbeat time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// Time of the last occurrence observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<MicroTime>,
}

/// EventSource contains information for an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSource {
    /// Component from which the event is generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// Node name on which the event is generated.
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
            Column::computed("Last Seen", text, last_seen)
                .about("The time at which the most recent occurrence of this event was recorded."),
        )
        .column(Column::string("Type", ".type").about("Type of this event (Normal, Warning)."))
        .column(Column::string("Reason", ".reason").about("Why it happened, for machines."))
        .column(Column::computed("Object", text, target).about("The object it is about."))
        .column(
            Column::string("Subobject", ".involvedObject.fieldPath")
                .about("The part of the object it is about.")
                .wide(),
        )
        .column(Column::computed("Source", text, source).about("Who reports it.").wide())
        .column(Column::computed("Message", text, message).about("What happened, for people."))
        .column(
            Column::computed("First Seen", text, first_seen)
                .about("The time at which the event was first recorded.")
                .wide(),
        )
        .column(
            Column::computed("Count", ColumnType::Integer, |event, _| count(event))
                .about("The number of times this event has occurred.")
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

fn check(event: &Event, _: Option<&Event>) -> Vec<Violation> {
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
