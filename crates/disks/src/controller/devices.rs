//! The BlockDevice objects of the node: a copy that is read, and the writes to the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_controller::reflector::{self, Reflector};
use mainstay_controller::write;
use mainstay_store::object::Revision;
use mainstay_store::resources::{DeleteOptions, Error as StoreError, Resources, WriteOptions};
use parking_lot::Mutex;

use super::scan;
use crate::api::{BlockDevice, FINALIZER};

/// The field manager of every write.
const MANAGER: &str = "mainstay-agent";
/// The index of objects by what links them with disks.
const BY_LINK: &str = "link";

/// The BlockDevices of the node.
#[derive(Debug)]
pub(super) struct Devices {
    resources: Resources,
    copy: Reflector<BlockDevice>,
    /// The versions this process wrote that the copy may not show yet.
    ahead: Mutex<BTreeMap<String, Revision>>,
}

impl Devices {
    /// Follows the objects of a node and of no other. Must be called within a tokio runtime.
    pub(super) fn follow(resources: &Resources, node: &str) -> Self {
        let copy = Reflector::of(resources)
            .field("spec.nodeName", node)
            .index(BY_LINK, |device: &BlockDevice| scan::known(device).links())
            .start();
        Self { resources: resources.clone(), copy, ahead: Mutex::default() }
    }

    /// The copy.
    pub(super) fn copy(&self) -> &Reflector<BlockDevice> {
        &self.copy
    }

    /// One object, as the copy shows it.
    pub(super) fn find(&self, name: &str) -> Option<Arc<BlockDevice>> {
        self.copy.find(None, name)
    }

    /// Every object, as the copy shows it.
    pub(super) fn list(&self) -> Vec<Arc<BlockDevice>> {
        self.copy.list()
    }

    /// The objects that bear a link, as the copy shows them.
    pub(super) fn linked(&self, link: &str) -> Vec<Arc<BlockDevice>> {
        self.copy.by_index(BY_LINK, link)
    }

    /// One object, read from the store.
    pub(super) async fn read(&self, name: &str) -> Result<Option<BlockDevice>, StoreError> {
        self.resources.get_as(None, name).await
    }

    /// Waits until the copy shows an object as it was written.
    pub(super) async fn wait_for(&self, device: &BlockDevice) -> Result<(), reflector::Error> {
        self.copy.wait_until_at(write::revision(device)).await
    }

    /// Whether a copied object is older than the last write of this process. True at most once per
    /// write: a store restored to an older state must not be waited for.
    pub(super) fn is_stale(&self, copied: &BlockDevice) -> bool {
        let written = self.ahead.lock().remove(&copied.metadata.name);
        written.is_some_and(|written| write::revision(copied) < written)
    }

    fn wrote(&self, device: &BlockDevice) {
        self.ahead.lock().insert(device.metadata.name.clone(), write::revision(device));
    }

    /// Creates an object and waits until the copy shows it. Does nothing if it exists.
    pub(super) async fn create(&self, device: &BlockDevice) -> Result<(), super::Error> {
        match self.resources.create_as(device, &options()).await {
            Ok(created) => Ok(self.wait_for(&created).await?),
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets `edit` change the status of an object, and retries conflicts. `None` if it is gone.
    pub(super) async fn set_status(
        &self,
        name: &str,
        edit: impl FnMut(&mut BlockDevice) + Send,
    ) -> Result<Option<BlockDevice>, StoreError> {
        let written = write::set_status(&self.resources, None, name, MANAGER, edit).await?;
        if let Some(device) = &written {
            self.wrote(device);
        }
        Ok(written)
    }

    /// Lets `edit` change the spec of an object, and retries conflicts. `None` if it is gone.
    pub(super) async fn set_spec(
        &self,
        name: &str,
        edit: impl FnMut(&mut BlockDevice) + Send,
    ) -> Result<Option<BlockDevice>, StoreError> {
        let written = self.resources.modify_as(None, name, None, &options(), edit).await;
        let written = write::or_gone(written)?.map(|(device, _)| device);
        if let Some(device) = &written {
            self.wrote(device);
        }
        Ok(written)
    }

    /// Writes the status of an object unless the object changed since it was read or is gone: then
    /// `None`, and the change that won queues the object again.
    pub(super) async fn replace_status(
        &self,
        device: &BlockDevice,
    ) -> Result<Option<BlockDevice>, StoreError> {
        let written = self.resources.replace_status_as(device, &options()).await;
        self.unless_lost(written.map(|(device, _)| device))
    }

    /// Writes everything but the status of an object, on the same terms.
    pub(super) async fn replace(
        &self,
        device: &BlockDevice,
    ) -> Result<Option<BlockDevice>, StoreError> {
        let written = self.resources.replace_as(device, &options()).await;
        self.unless_lost(written.map(|(device, _)| device))
    }

    fn unless_lost(
        &self,
        written: Result<BlockDevice, StoreError>,
    ) -> Result<Option<BlockDevice>, StoreError> {
        match written {
            Ok(device) => {
                self.wrote(&device);
                Ok(Some(device))
            }
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes our finalizer. Does nothing if the object is gone or does not have it.
    pub(super) async fn remove_finalizer(&self, name: &str) -> Result<(), StoreError> {
        let resources = &self.resources;
        write::remove_finalizer::<BlockDevice>(resources, None, name, MANAGER, FINALIZER).await
    }

    /// Removes our finalizer and deletes the object.
    pub(super) async fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.remove_finalizer(name).await?;
        let delete = DeleteOptions::default();
        self.resources.delete_as::<BlockDevice>(None, name, &delete, &options()).await?;
        Ok(())
    }
}

fn options() -> WriteOptions {
    write::options(MANAGER)
}
