//! Device leases within this process: one holder for each physical disk.
//!
//! The key is the kernel's device (number and disk sequence), not the object: two objects or two
//! paths that reach one disk wait for each other. Across processes [`mainstay_host::Host::lock`] does
//! the same. A lease is released when it is dropped, and not before: an operation that cannot be ended
//! keeps it, and the disk stays in quarantine.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_host::Device;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Every lease of this process. Clones are the same leases.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    held: Mutex<BTreeSet<Device>>,
    released: Notify,
}

/// A lease; dropping it releases it.
#[derive(Debug)]
pub struct Lease {
    device: Device,
    shared: Arc<Shared>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.held.lock().remove(&self.device);
        self.shared.released.notify_waiters();
    }
}

impl Leases {
    /// Takes a lease if it is free.
    #[must_use]
    pub fn try_take(&self, device: &Device) -> Option<Lease> {
        let free = self.shared.held.lock().insert(device.clone());
        free.then(|| Lease { device: device.clone(), shared: self.shared.clone() })
    }

    /// Waits for a lease.
    pub async fn take(&self, device: &Device) -> Lease {
        loop {
            let released = self.shared.released.notified();
            let mut released = std::pin::pin!(released);
            released.as_mut().enable();
            if let Some(lease) = self.try_take(device) {
                return lease;
            }
            released.await;
        }
    }

    /// Whether the lease of a disk is free.
    #[must_use]
    pub fn is_free(&self, device: &Device) -> bool {
        !self.shared.held.lock().contains(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(diskseq: u64) -> Device {
        Device::of(&mainstay_host::Disk {
            number: "7:0".to_owned(),
            diskseq,
            ..mainstay_host::Disk::default()
        })
    }

    #[tokio::test]
    async fn a_device_has_one_holder_and_the_next_is_woken() {
        let leases = Leases::default();
        let first = leases.try_take(&device(1)).unwrap();
        assert!(leases.try_take(&device(1)).is_none());
        assert!(!leases.is_free(&device(1)));
        assert!(leases.try_take(&device(2)).is_some(), "attached anew, it is another device");
        let waiting = tokio::spawn({
            let leases = leases.clone();
            async move { leases.take(&device(1)).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        drop(waiting.await.unwrap());
        assert!(leases.is_free(&device(1)));
    }
}
