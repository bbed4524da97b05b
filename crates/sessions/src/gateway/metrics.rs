//! Metrics of the gateway.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counters of one gateway.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Bytes that went from socket to socket inside the kernel.
    pub spliced: Counter,
    /// Bytes that were copied through a buffer of this process.
    pub copied: Counter,
    /// TCP connections that reached an instance.
    pub connections: Counter,
    /// TCP connections whose instance could not be reached.
    pub unreachable: Counter,
    /// Connections and flows that were refused because of a limit.
    pub refused: Counter,
    /// UDP packets from clients.
    pub packets_in: Counter,
    /// UDP packets to clients.
    pub packets_out: Counter,
    /// UDP packets that could not be delivered at once.
    pub packets_dropped: Counter,
    /// UDP flows.
    pub flows: Counter,
    /// UDP flows that were replaced by others.
    pub evicted: Counter,
    /// Ports whose instance was replaced by another.
    pub retargeted: Counter,
    /// Open ports.
    pub ports: Gauge,
    /// Open connections and flows.
    pub clients: Gauge,
}

impl Metrics {
    /// Adds them to a registry, as `mainstay_gateway_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("mainstay_gateway");
        let counters = [
            ("spliced_bytes", "Bytes forwarded inside the kernel", &self.spliced),
            ("copied_bytes", "Bytes forwarded by copying", &self.copied),
            ("connections", "TCP connections that reached an instance", &self.connections),
            (
                "unreachable",
                "TCP connections whose instance could not be reached",
                &self.unreachable,
            ),
            ("refused", "Connections and flows refused because of a limit", &self.refused),
            ("udp_packets_in", "UDP packets from clients", &self.packets_in),
            ("udp_packets_out", "UDP packets to clients", &self.packets_out),
            (
                "udp_packets_dropped",
                "UDP packets that could not be delivered at once",
                &self.packets_dropped,
            ),
            ("udp_flows", "UDP flows", &self.flows),
            ("udp_flows_evicted", "UDP flows replaced by others at the limit", &self.evicted),
            ("retargeted", "Ports whose instance was replaced by another", &self.retargeted),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register("ports", "Open ports", self.ports.clone());
        registry.register("clients", "Open connections and flows", self.clients.clone());
    }
}
