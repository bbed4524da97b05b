//! What the gateway counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counters of one gateway.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Bytes that went from socket to socket inside the kernel.
    pub spliced: Counter,
    /// Bytes that were copied.
    pub copied: Counter,
    /// TCP connections that reached an instance.
    pub connections: Counter,
    /// TCP connections whose instance did not take them.
    pub unreachable: Counter,
    /// Connections and flows that were turned away for a limit.
    pub refused: Counter,
    /// UDP packets from clients.
    pub packets_in: Counter,
    /// UDP packets to clients.
    pub packets_out: Counter,
    /// UDP packets that nobody could take.
    pub packets_dropped: Counter,
    /// UDP flows.
    pub flows: Counter,
    /// UDP flows that made room for others.
    pub evicted: Counter,
    /// Ports that were aimed at another instance.
    pub retargeted: Counter,
    /// Ports that are open.
    pub ports: Gauge,
    /// Connections and flows that are there now.
    pub clients: Gauge,
}

impl Metrics {
    /// Adds them to what a server shows, as `mainstay_gateway_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("mainstay_gateway");
        let counters = [
            ("spliced_bytes", "Bytes forwarded inside the kernel", &self.spliced),
            ("copied_bytes", "Bytes forwarded by copying", &self.copied),
            ("connections", "TCP connections that reached an instance", &self.connections),
            ("unreachable", "TCP connections that no instance took", &self.unreachable),
            ("refused", "Connections and flows beyond a limit", &self.refused),
            ("udp_packets_in", "UDP packets from clients", &self.packets_in),
            ("udp_packets_out", "UDP packets to clients", &self.packets_out),
            ("udp_packets_dropped", "UDP packets that nobody could take", &self.packets_dropped),
            ("udp_flows", "UDP flows", &self.flows),
            ("udp_flows_evicted", "UDP flows that made room for others", &self.evicted),
            ("retargeted", "Ports that were aimed at another instance", &self.retargeted),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register("ports", "Ports that are open", self.ports.clone());
        registry.register("clients", "Connections and flows now", self.clients.clone());
    }
}
