//! Writes of objects at a remote server ([`Remote`]): handed over as they are.

use serde_json::{Map, Value};

use super::{Effect, Error, Resources, Subresource, TRIES, Written, is_race, metadata_text};
use crate::object::{Key, Record};
use crate::registry::Kind;
use crate::remote::{Remote, is_leaving};

/// An edited object.
pub(super) struct Edited {
    pub(super) object: Map<String, Value>,
    /// Whether it is another than it was.
    pub(super) differs: bool,
}

impl Resources {
    pub(super) async fn create_remotely(
        &self,
        remote: &dyn Remote,
        kind: &Kind,
        namespace: Option<&str>,
        object: Map<String, Value>,
    ) -> Result<Written, Error> {
        let name = metadata_text(&object, "name").to_owned();
        match remote.create(kind, namespace, object).await {
            Ok(record) => Ok(Written { record, warnings: Vec::new(), effect: Effect::Created }),
            Err(error) => Err(Error::from_store(kind, &name, error)),
        }
    }

    /// Hands over the object that `edit` returns, first for the copy that is at hand. Only a write
    /// shows whether that was the newest: before any other conclusion, the object is read from the
    /// server.
    pub(super) async fn modify_remotely(
        &self,
        remote: &dyn Remote,
        kind: &Kind,
        key: &Key,
        subresource: Option<Subresource>,
        mut edit: impl FnMut(&Record) -> Result<Edited, Error> + Send,
    ) -> Result<Written, Error> {
        let mut at_hand = remote.at_hand(key);
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let (record, newest) = match at_hand.take() {
                Some(record) => (record, false),
                None => (self.get(kind, key).await?, true),
            };
            let mut new = match edit(&record) {
                Ok(edited) if newest || edited.differs => edited.object,
                Err(error) if newest => return Err(error),
                _ => continue,
            };
            pin(&mut new, &record);
            match self.replace_remotely(remote, kind, key, subresource, new).await {
                Err(error) if tries > 0 && (is_race(&error) || !newest && error.is_not_found()) => {
                }
                other => return other,
            }
        }
    }

    pub(super) async fn replace_remotely(
        &self,
        remote: &dyn Remote,
        kind: &Kind,
        key: &Key,
        subresource: Option<Subresource>,
        object: Map<String, Value>,
    ) -> Result<Written, Error> {
        let before = metadata_text(&object, "resourceVersion").to_owned();
        let leaves = subresource.is_none() && is_leaving(&object);
        let record = remote.replace(kind, key, subresource, object).await;
        let record = record.map_err(|error| Error::from_store(kind, key.name(), error))?;
        let effect = match record.revision().to_string() == before {
            _ if leaves => Effect::Removed,
            true => Effect::Unchanged,
            false => Effect::Changed,
        };
        Ok(Written { record, warnings: Vec::new(), effect })
    }
}

/// Adds the version that an object was made from, if it has none.
fn pin(object: &mut Map<String, Value>, record: &Record) {
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if let Some(metadata) = metadata.as_object_mut() {
        let version = metadata.entry("resourceVersion");
        version.or_insert_with(|| Value::from(record.revision().to_string()));
    }
}
