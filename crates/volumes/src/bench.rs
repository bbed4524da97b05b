//! Measures how fast a server places volumes: applies many and waits until all are scheduled.
//!
//! The pure decisions are measured by `mainstay_placement::bench`. Time is an argument: the caller
//! provides the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use mainstay_client::watch::{Change, Follow};
use mainstay_client::{Call, Client, Error, JSON, MERGE_PATCH};
use mainstay_clock::Clock;
use mainstay_terminal::report::Row;
use serde_json::{Value, json};

const STORAGE: &str = "/apis/storage.mainstay.dev/v1";
const VOLUMES: &str = "/apis/storage.mainstay.dev/v1/replicatedvolumes";
/// Volumes that are applied at the same time.
const CONCURRENCY: usize = 32;

/// The size of the workload.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Volumes to apply.
    pub volumes: usize,
    /// Nodes to place them on.
    pub nodes: u32,
}

impl Load {
    /// Measures an empty server; `backend` names its store in the result.
    pub async fn run(
        &self,
        client: &Client,
        clock: &dyn Clock,
        backend: &str,
    ) -> Result<Row, Error> {
        self.prepare(client).await?;
        let begun = clock.elapsed();
        let applied = stream::iter((0..self.volumes).map(|index| {
            let name = format!("v{index:05}");
            async move {
                let sent = clock.elapsed();
                let spec = json!({"size": "1Gi", "replicatedStorageClassName": "bench"});
                create(client, VOLUMES, object("ReplicatedVolume", &name, spec)).await?;
                Ok::<_, Error>((name, sent))
            }
        }))
        .buffer_unordered(CONCURRENCY)
        .try_collect::<BTreeMap<_, _>>();
        let placed = self.placed(client, clock);
        let (applied, placed) = tokio::try_join!(applied, placed)?;
        let seconds = clock.elapsed().saturating_sub(begun).as_secs_f64();
        let latencies = placed
            .iter()
            .filter_map(|(name, at)| Some(at.saturating_sub(*applied.get(name)?)))
            .map(|latency| u32::try_from(latency.as_micros()).unwrap_or(u32::MAX))
            .collect();
        let row = Row::new("volumes applied until scheduled", backend, self.volumes);
        Ok(row.rate(self.volumes, seconds, "volumes/s").latencies(latencies))
    }

    /// Creates nodes, a group on each, a pool of all, and a class of three replicas.
    async fn prepare(&self, client: &Client) -> Result<(), Error> {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let mut groups = Vec::new();
        for index in 0..self.nodes {
            let (node, group) = (format!("node-{index:04}"), format!("vg-{index:04}"));
            let labels = json!({"topology.kubernetes.io/zone": format!("zone-{}", index % 3)});
            let object = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node, "labels": labels}});
            create(client, "/api/v1/nodes", object).await?;
            set_status(client, "/api/v1/nodes", &node, json!({"conditions": ready})).await?;
            let path = format!("{STORAGE}/lvmvolumegroups");
            let spec = json!({"local": {"nodeName": node}});
            create(client, &path, self::object("LVMVolumeGroup", &group, spec)).await?;
            let status = json!({"phase": "Ready", "vgSize": "10Ti", "vgFree": "10Ti"});
            set_status(client, &path, &group, status).await?;
            groups.push(json!({"name": group}));
        }
        let pool = json!({"type": "LVM", "lvmVolumeGroups": groups});
        let path = format!("{STORAGE}/replicatedstoragepools");
        create(client, &path, object("ReplicatedStoragePool", "bench", pool)).await?;
        let class = json!({"storagePoolName": "bench", "topology": "TransZonal"});
        let path = format!("{STORAGE}/replicatedstorageclasses");
        create(client, &path, object("ReplicatedStorageClass", "bench", class)).await
    }

    /// When each volume was seen with all replicas placed.
    async fn placed(
        &self,
        client: &Client,
        clock: &dyn Clock,
    ) -> Result<BTreeMap<String, Duration>, Error> {
        let mut follow = Follow::new(client, VOLUMES.to_owned(), String::new(), JSON);
        let mut placed = BTreeMap::new();
        while placed.len() < self.volumes {
            let seen: Vec<Value> = match follow.next().await? {
                Change::Listed(mut list) => {
                    list["items"].take().as_array().cloned().unwrap_or_default()
                }
                Change::Event(event) => vec![event.object],
            };
            for volume in seen {
                if volume["status"]["phase"] == "Ready" {
                    let name = volume["metadata"]["name"].as_str().unwrap_or_default();
                    placed.entry(name.to_owned()).or_insert_with(|| clock.elapsed());
                }
            }
        }
        Ok(placed)
    }
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "storage.mainstay.dev/v1", "kind": kind, "metadata": {"name": name},
        "spec": spec})
}

async fn create(client: &Client, path: &str, object: Value) -> Result<(), Error> {
    client.json(Call::send(Method::POST, path, JSON, &object)).await.map(drop)
}

async fn set_status(client: &Client, path: &str, name: &str, status: Value) -> Result<(), Error> {
    let path = format!("{path}/{name}/status");
    let patch = json!({"status": status});
    client.json(Call::send(Method::PATCH, path, MERGE_PATCH, &patch)).await.map(drop)
}
