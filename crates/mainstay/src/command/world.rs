//! Everything that decides about places, fetched from a server or read from files.

use std::path::PathBuf;

use mainstay_volumes::world::{World, documents};
use serde_json::Value;

use crate::client::{Call, Client};
use crate::error::Error;

/// Where the objects of each kind are, and which kind they are.
const COLLECTIONS: [(&str, &str); 7] = [
    ("/api/v1/nodes", "Node"),
    ("/apis/storage.mainstay.dev/v1/replicatedstorageclasses", "ReplicatedStorageClass"),
    ("/apis/storage.mainstay.dev/v1/replicatedstoragepools", "ReplicatedStoragePool"),
    ("/apis/storage.mainstay.dev/v1/lvmvolumegroups", "LVMVolumeGroup"),
    ("/apis/storage.mainstay.dev/v1/replicatedvolumes", "ReplicatedVolume"),
    ("/apis/storage.mainstay.dev/v1/replicatedvolumereplicas", "ReplicatedVolumeReplica"),
    ("/apis/storage.mainstay.dev/v1/replicatedvolumeattachments", "ReplicatedVolumeAttachment"),
];

/// The objects of a server.
pub(crate) async fn fetch(client: &Client) -> Result<Vec<Value>, Error> {
    let mut objects = Vec::new();
    for (path, kind) in COLLECTIONS {
        let mut list = client.json(Call::get(path)).await?;
        let items = list.get_mut("items").map(Value::take);
        for mut item in items.and_then(|items| items.as_array().cloned()).unwrap_or_default() {
            item["kind"] = kind.into();
            objects.push(item);
        }
    }
    Ok(objects)
}

/// The objects in files; `-` is stdin.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Value>, Error> {
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
pub(crate) fn text(file: &PathBuf) -> Result<String, Error> {
    let read = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    read.map_err(|error| Error::usage(format!("cannot read {}: {error}", file.display())))
}

/// The world of these objects.
pub(crate) fn world(objects: Vec<Value>) -> Result<World, Error> {
    World::read(objects).map_err(|error| Error::usage(error.to_string()))
}
