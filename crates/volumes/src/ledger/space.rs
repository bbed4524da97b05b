//! The space of a volume group, and the space that a replica takes of it.

use crate::api::LVMVolumeGroup;

/// The size of an extent if a group does not report it: 4 MiB.
pub const DEFAULT_EXTENT: u64 = 4 << 20;

/// The allocation limit of a thin pool without one, in percent.
const DEFAULT_LIMIT: u64 = 150;

/// The space of a group or thin pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The bytes that can be promised in total, over-commitment included.
    pub total: u64,
    /// The bytes that are reported as free.
    pub free: u64,
    /// The size of an extent.
    pub extent: u64,
}

/// The space of a ready group or thin pool; `None` if it is not ready, or the thin pool is missing.
#[must_use]
pub fn space(group: &LVMVolumeGroup, thin_pool: &str) -> Option<Space> {
    let bytes = |quantity: Option<mainstay_store::meta::Quantity>| {
        quantity.map(|quantity| u64::try_from(quantity.value()).unwrap_or_default())
    };
    if !group.is_ready(thin_pool) {
        return None;
    }
    let status = &group.status;
    let extent = bytes(status.extent_size).filter(|size| *size > 0).unwrap_or(DEFAULT_EXTENT);
    if thin_pool.is_empty() {
        let total = bytes(status.vg_size)?;
        return Some(Space { total, free: bytes(status.vg_free).unwrap_or(total), extent });
    }
    let pool = group.thin_pool(thin_pool)?;
    let wanted = group.spec.thin_pools.iter().find(|pool| pool.name == thin_pool);
    let limit = pool.allocation_limit.as_deref();
    let limit = limit.or_else(|| wanted.and_then(|wanted| wanted.allocation_limit.as_deref()));
    let limit = limit.and_then(percent).unwrap_or(DEFAULT_LIMIT);
    let allocated = bytes(pool.allocated_size).unwrap_or_default();
    let reported = bytes(pool.available_space);
    let size = bytes(pool.actual_size).or_else(|| bytes(wanted.and_then(|wanted| wanted.size)));
    let total = match (size, reported) {
        (Some(size), _) => {
            u64::try_from(u128::from(size) * u128::from(limit) / 100).unwrap_or(u64::MAX)
        }
        (None, Some(available)) => allocated.saturating_add(available),
        (None, None) => return None,
    };
    let by_limit = total.saturating_sub(allocated);
    Some(Space { total, free: reported.unwrap_or(by_limit).min(by_limit), extent })
}

/// Parses a limit of at least 100 %.
#[must_use]
pub fn percent(text: &str) -> Option<u64> {
    let number: u64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (number >= 100).then_some(number)
}

/// The bytes that a replica takes of a group: its volume's size, with replication plus metadata
/// (36 KiB and 0.0214 %), rounded up to whole extents.
#[must_use]
pub fn backing_size(size: u64, replicated: bool, extent: u64) -> u64 {
    let metadata = if replicated {
        (36 << 10) + u64::try_from(u128::from(size) * 214 / 1_000_000).unwrap_or(u64::MAX) + 1
    } else {
        0
    };
    let bytes = size.saturating_add(metadata);
    bytes.checked_next_multiple_of(extent.max(1)).unwrap_or(u64::MAX)
}
