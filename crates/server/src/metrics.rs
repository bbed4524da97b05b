//! The server's metrics, for Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use mainstay_store::object::Resource;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// A collection as a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Named(Resource);

impl EncodeLabelValue for Named {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    verb: &'static str,
    resource: Named,
    code: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    verb: &'static str,
    resource: Named,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    resource: Named,
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    nothing: Resource,
    requests: Family<Answered, Counter>,
    durations: Family<Asked, Histogram, fn() -> Histogram>,
    watches: Family<Of, Gauge>,
    in_flight: Gauge,
    connections: Gauge,
    revision: Gauge<u64, AtomicU64>,
    writes: Gauge<u64, AtomicU64>,
    pub(crate) rejected: Counter,
    pub(crate) audit: crate::audit::Meters,
}

/// Values that are looked up when the metrics are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    pub(crate) in_flight: usize,
    pub(crate) connections: usize,
    pub(crate) revision: u64,
    pub(crate) writes: u64,
}

impl Metrics {
    /// Adds the server's own counters to `registry`.
    pub(crate) fn new(mut registry: Registry) -> Self {
        let histogram: fn() -> Histogram = || {
            let seconds = [0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
            Histogram::new(seconds)
        };
        let requests = Family::default();
        let durations = Family::new_with_constructor(histogram);
        let (watches, in_flight) = (Family::default(), Gauge::default());
        let (connections, revision) = (Gauge::default(), Gauge::default());
        let writes = Gauge::default();
        let (rejected, audit) = (Counter::default(), crate::audit::Meters::default());
        let http = registry.sub_registry_with_prefix("mainstay_http");
        http.register("requests", "Requests answered", requests.clone());
        http.register(
            "request_duration_seconds",
            "How long requests took, watches excepted",
            durations.clone(),
        );
        http.register("requests_in_flight", "Requests under way", in_flight.clone());
        http.register("connections", "Connections open", connections.clone());
        http.register("connection_writes", "Writes to connections so far", writes.clone());
        http.register("rejected", "Requests turned away with 429", rejected.clone());
        let own = registry.sub_registry_with_prefix("mainstay");
        own.register("watches", "Watches open", watches.clone());
        own.register("store_revision", "The newest revision of the store", revision.clone());
        own.register("audit_lost", "Audit entries that were not written", audit.lost.clone());
        own.register(
            "audit_folded",
            "Denials of unknown users that were counted instead of written",
            audit.folded.clone(),
        );
        own.register("audit_failing", "Audit sinks that take no lines", audit.failing.clone());
        Self {
            registry: Mutex::new(registry),
            nothing: Resource::from_stored(""),
            requests,
            durations,
            watches,
            in_flight,
            connections,
            revision,
            writes,
            rejected,
            audit,
        }
    }

    /// Counts an answer; `duration` is left out for what lasts as long as the client likes.
    pub(crate) fn answered(
        &self,
        verb: &'static str,
        resource: Option<&Resource>,
        code: u16,
        duration: Option<Duration>,
    ) {
        let resource = Named(resource.unwrap_or(&self.nothing).clone());
        if let Some(duration) = duration {
            let asked = Asked { verb, resource: resource.clone() };
            self.durations.get_or_create(&asked).observe(duration.as_secs_f64());
        }
        self.requests.get_or_create(&Answered { verb, resource, code: code.into() }).inc();
    }

    /// Counts a watch for as long as the guard lives.
    pub(crate) fn watching(&self, resource: &Resource) -> Watching {
        let of = Of { resource: Named(resource.clone()) };
        let gauge = self.watches.get_or_create_owned(&of);
        gauge.inc();
        Watching(gauge)
    }

    /// Everything, in Prometheus' text format.
    pub(crate) fn text(&self, levels: Levels) -> String {
        let level = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.in_flight.set(level(levels.in_flight));
        self.connections.set(level(levels.connections));
        self.revision.set(levels.revision);
        self.writes.set(levels.writes);
        let mut out = String::with_capacity(16 << 10);
        let registry = self.registry.lock();
        if text::encode(&mut out, &registry).is_err() {
            tracing::error!("the metrics could not be encoded");
        }
        out
    }
}

/// A watch that is open.
#[derive(Debug)]
pub(crate) struct Watching(Gauge);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_shows_what_was_counted() {
        let metrics = Metrics::new(Registry::default());
        let maps = Resource::new("", "configmaps");
        metrics.answered("get", Some(&maps), 200, Some(Duration::from_micros(300)));
        metrics.answered("get", Some(&maps), 200, Some(Duration::from_micros(300)));
        let watching = metrics.watching(&maps);
        let levels = Levels { in_flight: 3, connections: 4, revision: 5, writes: 6 };
        let text = metrics.text(levels);
        for line in [
            "mainstay_http_requests_total{verb=\"get\",resource=\"configmaps\",code=\"200\"} 2",
            "mainstay_http_request_duration_seconds_count{verb=\"get\",resource=\"configmaps\"} 2",
            "mainstay_http_requests_in_flight 3",
            "mainstay_watches{resource=\"configmaps\"} 1",
            "mainstay_store_revision 5",
            "mainstay_http_connection_writes 6",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        drop(watching);
        assert!(metrics.text(levels).contains("mainstay_watches{resource=\"configmaps\"} 0"));
    }
}
