//! Eligible nodes, laid out so that a decision over thousands of them touches little memory.
//!
//! [`EligibleNodes`] is built once for each revision of a pool and shared by all decisions: nodes
//! sorted by name, groups sorted by name within their node, zones numbered. A candidate is a
//! [`Slot`], a few numbers, whose order is the order of the names behind it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pipeline::{Candidate, Pipeline, Recorder, Source};

/// A node that may hold replicas, as a pool reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EligibleNode {
    /// The node.
    pub node_name: String,
    /// Its zone; empty when unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub zone_name: String,
    /// Cordoned.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// The node itself is ready.
    pub node_ready: bool,
    /// The agent on it is ready.
    pub agent_ready: bool,
    /// The volume groups it offers; a node without any may still hold a TieBreaker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lvm_volume_groups: Vec<EligibleGroup>,
}

/// A volume group (or a thin pool in it) that a node offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EligibleGroup {
    /// The volume group.
    pub name: String,
    /// The thin pool in it; empty for thick volumes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thin_pool_name: String,
    /// Closed for new replicas.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// Whether it can take volumes.
    pub ready: bool,
}

/// One candidate: a node, and for disk-bearing replicas a volume group on it.
///
/// Slots of the same [`EligibleNodes`] compare as their node names do, then their group names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    node: u32,
    group: u32,
    zone: u16,
    flags: u16,
}

const NODE_USABLE: u16 = 1;
const GROUP_USABLE: u16 = 2;
const HAS_GROUPS: u16 = 4;
const NO_GROUP: u32 = u32::MAX;

impl Slot {
    /// The group's number among all groups of all nodes; `None` when only the node matters.
    #[must_use]
    pub fn group(&self) -> Option<usize> {
        (self.group != NO_GROUP).then_some(self.group as usize)
    }

    /// Ready, its agent too, and not cordoned.
    #[must_use]
    pub fn node_usable(&self) -> bool {
        self.flags & NODE_USABLE != 0
    }

    /// Its group is ready and open.
    #[must_use]
    pub fn group_usable(&self) -> bool {
        self.flags & GROUP_USABLE != 0
    }

    /// Its node offers volume groups at all.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.flags & HAS_GROUPS != 0
    }
}

impl Candidate for Slot {
    fn node(&self) -> usize {
        self.node as usize
    }

    fn zone(&self) -> usize {
        usize::from(self.zone)
    }
}

/// The eligible nodes of one pool.
#[derive(Clone, Debug, Default)]
pub struct EligibleNodes {
    nodes: Vec<EligibleNode>,
    zones: Vec<String>,
    zone_of: Vec<u16>,
    lvgs: Vec<Slot>,
    only_nodes: Vec<Slot>,
}

impl EligibleNodes {
    /// Sorts and numbers the nodes of a pool. Of several entries with the same name the first counts. Zones beyond 65,535 share the last number.
    #[must_use]
    pub fn new(nodes: impl IntoIterator<Item = EligibleNode>) -> Self {
        let mut nodes: Vec<EligibleNode> = nodes.into_iter().collect();
        nodes.sort_by(|a, b| a.node_name.cmp(&b.node_name));
        nodes.dedup_by(|b, a| a.node_name == b.node_name);
        for node in &mut nodes {
            node.lvm_volume_groups
                .sort_by(|a, b| (&a.name, &a.thin_pool_name).cmp(&(&b.name, &b.thin_pool_name)));
        }
        let mut zones: Vec<String> = nodes.iter().map(|node| node.zone_name.clone()).collect();
        zones.sort();
        zones.dedup();
        let mut this = Self { zones, ..Self::default() };
        for (index, node) in nodes.iter().enumerate() {
            let zone = this.zones.binary_search(&node.zone_name).unwrap_or_default();
            let zone = u16::try_from(zone).unwrap_or(u16::MAX);
            this.zone_of.push(zone);
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let mut flags = 0;
            if node.node_ready && node.agent_ready && !node.unschedulable {
                flags |= NODE_USABLE;
            }
            if !node.lvm_volume_groups.is_empty() {
                flags |= HAS_GROUPS;
            }
            this.only_nodes.push(Slot { node: index, group: NO_GROUP, zone, flags });
            for group in &node.lvm_volume_groups {
                let usable = if group.ready && !group.unschedulable { GROUP_USABLE } else { 0 };
                let number = u32::try_from(this.lvgs.len()).unwrap_or(NO_GROUP);
                this.lvgs.push(Slot { node: index, group: number, zone, flags: flags | usable });
            }
        }
        this.nodes = nodes;
        this
    }

    /// `TakeLVGsFromEligibleNodes`: one candidate for each node and volume group.
    #[must_use]
    pub fn take_lvgs_from_eligible_nodes<R: Recorder<Slot>>(
        &self,
        recorder: R,
    ) -> Pipeline<Slot, R> {
        let source = self.source("candidates (node×LVG)");
        Pipeline::recorded(source, self.lvgs.iter().copied(), recorder)
    }

    /// `TakeOnlyNodesFromEligibleNodes`: one candidate for each node, with or without groups.
    #[must_use]
    pub fn take_only_nodes_from_eligible_nodes<R: Recorder<Slot>>(
        &self,
        recorder: R,
    ) -> Pipeline<Slot, R> {
        Pipeline::recorded(self.source("candidates"), self.only_nodes.iter().copied(), recorder)
    }

    fn source(&self, unit: &'static str) -> Source {
        Source { unit, nodes: self.nodes.len(), zones: self.zones.len() }
    }

    /// Every node × group, in order. A slot's group number is its index here.
    #[must_use]
    pub fn lvgs(&self) -> &[Slot] {
        &self.lvgs
    }

    /// Every node, in order.
    #[must_use]
    pub fn only_nodes(&self) -> &[Slot] {
        &self.only_nodes
    }

    /// The nodes, sorted by name.
    #[must_use]
    pub fn nodes(&self) -> &[EligibleNode] {
        &self.nodes
    }

    /// The zones, sorted by name.
    #[must_use]
    pub fn zones(&self) -> &[String] {
        &self.zones
    }

    /// The number of the node called `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.binary_search_by(|node| node.node_name.as_str().cmp(name)).ok()
    }

    /// The zone of a node.
    #[must_use]
    pub fn zone_of(&self, node: usize) -> usize {
        usize::from(self.zone_of[node])
    }

    /// The node behind a slot.
    #[must_use]
    pub fn node(&self, slot: Slot) -> &EligibleNode {
        &self.nodes[slot.node()]
    }

    /// The volume group behind a slot.
    #[must_use]
    pub fn lvg(&self, slot: Slot) -> Option<&EligibleGroup> {
        let number = slot.group()?;
        let groups = &self.node(slot).lvm_volume_groups;
        // Groups are numbered across nodes, so the first slot of the node has the first number.
        let first = self.lvgs[..=number].partition_point(|other| other.node() < slot.node());
        groups.get(number - first)
    }
}
