//! Whether the store takes writes: an Event in `mainstay-system` tells when that changes.

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::builtin::{Event, ObjectReference};
use mainstay_store::clock::Clock;
use mainstay_store::meta::Time;
use mainstay_store::objects;
use mainstay_store::resources::{Resources, WriteOptions};

/// How often it is looked at.
const PERIOD: Duration = Duration::from_secs(5);
const NAMESPACE: &str = "mainstay-system";
const COMPONENT: &str = "mainstay-server";

/// Looks until it is stopped.
pub(crate) async fn run(resources: Resources, clock: Arc<dyn Clock>) {
    let mut was = true;
    loop {
        let state = resources.objects().ready().await;
        let is = state.is_ok();
        if is != was {
            was = is;
            let event = event(&state, clock.now());
            if let Err(error) = resources.create_as(&event, &WriteOptions::default()).await {
                tracing::debug!(%error, "writing an Event about the store failed");
            }
        }
        clock.sleep(PERIOD).await;
    }
}

fn event(state: &Result<(), objects::Error>, now: jiff::Timestamp) -> Event {
    let (kind, reason, message) = match state {
        Ok(()) => ("Normal", "StoreReady", "the store takes writes again".to_owned()),
        Err(error @ objects::Error::Full { .. }) => ("Warning", "DiskFull", error.to_string()),
        Err(error) => ("Warning", "StoreUnavailable", error.to_string()),
    };
    let mut event = Event {
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(NAMESPACE.to_owned()),
            ..ObjectReference::default()
        },
        kind: Some(kind.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time::new(now)),
        last_timestamp: Some(Time::new(now)),
        reporting_component: Some(COMPONENT.to_owned()),
        ..Event::default()
    };
    event.metadata.namespace = Some(NAMESPACE.to_owned());
    // A full store takes events by this name, and no others.
    event.metadata.name = format!("store.{:x}", now.as_millisecond());
    event
}
