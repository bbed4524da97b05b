//! The input of placement decisions, fetched from a server or read from files.

use std::path::PathBuf;

use mainstay_client::{Call, Client};
use mainstay_terminal::Error;
use serde_json::Value;

use crate::extender::ReservationList;
use crate::world::{World, documents};

/// The collection of each kind.
const COLLECTIONS: [(&str, &str); 7] = [
    ("/api/v1/nodes", "Node"),
    ("/apis/storage.mainstay.dev/v1/replicatedstorageclasses", "ReplicatedStorageClass"),
    ("/apis/storage.mainstay.dev/v1/replicatedstoragepools", "ReplicatedStoragePool"),
    ("/apis/storage.mainstay.dev/v1/lvmvolumegroups", "LVMVolumeGroup"),
    ("/apis/storage.mainstay.dev/v1/replicatedvolumes", "ReplicatedVolume"),
    ("/apis/storage.mainstay.dev/v1/replicatedvolumereplicas", "ReplicatedVolumeReplica"),
    ("/apis/storage.mainstay.dev/v1/replicatedvolumeattachments", "ReplicatedVolumeAttachment"),
];

/// The objects and reservations of a server.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// Its objects.
    pub(super) objects: Vec<Value>,
    /// The reservations of its ledger.
    reservations: ReservationList,
}

/// The objects and reservations of a server.
pub(super) async fn fetch(client: &Client) -> Result<Fetched, Error> {
    let mut fetched = Fetched::default();
    for (path, kind) in COLLECTIONS {
        let mut list = client.json(Call::get(path)).await?;
        let items = list.get_mut("items").map(Value::take);
        for mut item in items.and_then(|items| items.as_array().cloned()).unwrap_or_default() {
            item["kind"] = kind.into();
            fetched.objects.push(item);
        }
    }
    match client.json(Call::get("/v1/lvg/reservations")).await {
        Ok(held) => {
            fetched.reservations = serde_json::from_value(held).map_err(|error| {
                Error::negative(format!("the reservations cannot be read: {error}"))
            })?;
        }
        // A server without the volumes engine has no reservations.
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(fetched)
}

/// The objects in files; `-` is stdin.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<Value>, Error> {
    let mut objects = Vec::new();
    for file in files {
        let text = text(file)?;
        let found = documents(&text)
            .map_err(|error| Error::usage(format!("{}: {error}", file.display())))?;
        objects.extend(found);
    }
    Ok(objects)
}

/// The text of a file; `-` is stdin.
pub(super) fn text(file: &PathBuf) -> Result<String, Error> {
    let read = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    read.map_err(|error| Error::usage(format!("cannot read {}: {error}", file.display())))
}

impl Fetched {
    /// The input of a placement decision.
    pub(super) fn world(self) -> Result<World, Error> {
        let world = World::read(self.objects).map_err(|error| Error::usage(error.to_string()))?;
        Ok(World { reservations: self.reservations.reservations, ..world })
    }
}
