//! The kinds every installation has: Namespace, Node, Event, Lease, ConfigMap and
//! Secret.

mod configmap;
mod event;
mod lease;
mod namespace;
mod node;
mod secret;

pub use configmap::ConfigMap;
pub use event::{Event, EventSeries, EventSource, ObjectReference};
pub use lease::{Lease, LeaseSpec};
pub use namespace::{Namespace, NamespaceSpec, NamespaceStatus};
pub use node::{Node, NodeAddress, NodeCondition, NodeInfo, NodeSpec, NodeStatus, Taint};
pub use secret::Secret;

use crate::registry::Kind;

/// The built-in kinds, described.
#[must_use]
pub fn kinds() -> Vec<Kind> {
    vec![
        configmap::kind(),
        event::kind(),
        lease::kind(),
        namespace::kind(),
        node::kind(),
        secret::kind(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    #[test]
    fn the_built_in_kinds_can_be_served() {
        let registry = Registry::new(kinds()).unwrap();
        assert_eq!(registry.iter().count(), 6);
        assert!(registry.find("coordination.k8s.io", "v1", "leases").is_some());
    }
}
