//! Waits for a state of one disk by watching it.

use std::time::Duration;

use mainstay_client::watch::{Change, EventType, Follow};
use mainstay_client::{Client, JSON, encode};
use mainstay_terminal::Error;
use serde_json::Value;

use super::{DISKS, typed};
use crate::api::BlockDevice;

/// Shows every state of the disk to `look` until it returns something; `None` if that takes longer
/// than `limit`.
pub(super) async fn until<T>(
    client: &Client,
    name: &str,
    limit: Duration,
    mut look: impl FnMut(&BlockDevice) -> Option<T>,
) -> Result<Option<T>, Error> {
    let selector = format!("fieldSelector={}", encode(&format!("metadata.name={name}")));
    let mut follow = Follow::new(client, DISKS.to_owned(), selector, JSON);
    let looking = async {
        loop {
            let object = match follow.next().await? {
                Change::Listed(mut list) => match list["items"].get_mut(0) {
                    Some(object) => object.take(),
                    None => Value::Null,
                },
                Change::Event(event) if event.kind == EventType::Deleted => Value::Null,
                Change::Event(event) => event.object,
            };
            if object.is_null() {
                return Err(Error::negative(format!("BlockDevice {name} was deleted")));
            }
            if let Some(found) = look(&typed(&object)?) {
                return Ok(found);
            }
        }
    };
    match tokio::time::timeout(limit, looking).await {
        Ok(found) => found.map(Some),
        Err(_) => Ok(None),
    }
}
