//! `mainstay bench placement`: the pure engine on one core, and volumes on a live server.

use std::collections::BTreeMap;

use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use mainstay_placement::bench;
use mainstay_server::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::report::{Row, table};
use super::server::ServerProcess;
use crate::client::watch::{Change, Follow};
use crate::client::{self, Call, Client, JSON, MERGE_PATCH};
use crate::command::plan::Shape;
use crate::connect::Connect;
use crate::error::Error;
use crate::output;

const STORAGE: &str = "/apis/storage.mainstay.dev/v1";
const VOLUMES: &str = "/apis/storage.mainstay.dev/v1/replicatedvolumes";

/// Decide places by the pure engine, then apply volumes to a server and wait until all are placed
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay bench placement                       the engine, and 1,000 volumes on 100 nodes
  mainstay bench placement --volumes 0 -o json   only the engine")]
pub(crate) struct Placement {
    /// Volumes to apply to the live server; 0 starts none
    #[arg(long, default_value_t = 1_000)]
    volumes: usize,
    /// Nodes of the live server
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(3..=1000))]
    nodes: u32,
    /// Where the live server keeps objects: sqlite, memory, or any --store URL
    #[arg(long, default_value = "sqlite", value_name = "STORE")]
    store: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
    #[command(flatten)]
    connect: Connect,
}

impl Placement {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let clock = SystemClock::new();
        let mut rows: Vec<Row> = bench::run(&|| clock.elapsed())
            .into_iter()
            .map(|row| {
                let mut shown = Row::new(row.case, "pure", row.size);
                shown.rate = Some(row.rate.round());
                shown.unit = Some(row.unit.into());
                shown.p50_ms = Some(row.p50_ms);
                shown.p99_ms = Some(row.p99_ms);
                shown
            })
            .collect();
        if self.volumes > 0 {
            rows.push(self.live(&clock).await?);
        }
        match self.output {
            Shape::Table => output::print(&table(&rows).text())?,
            Shape::Json => output::print_line(&output::json(&json!(rows)))?,
        }
        Ok(0)
    }

    async fn live(&self, clock: &SystemClock) -> Result<Row, Error> {
        let store = match self.store.as_str() {
            "sqlite" => "",
            "memory" => "memory:",
            url => url,
        };
        let server = ServerProcess::start(store).await?;
        let kubeconfig = Some(server.kubeconfig().display().to_string());
        let connect = Connect {
            kubeconfig,
            context: None,
            server: None,
            token: None,
            ..self.connect.clone()
        };
        let client = connect.client()?;
        self.prepare(&client).await?;
        let begun = clock.elapsed();
        let applied = stream::iter((0..self.volumes).map(|index| {
            let (client, name) = (&client, format!("v{index:05}"));
            async move {
                let sent = clock.elapsed();
                let spec = json!({"size": "1Gi", "replicatedStorageClassName": "bench"});
                create(client, VOLUMES, object("ReplicatedVolume", &name, spec)).await?;
                Ok::<_, client::Error>((name, sent))
            }
        }))
        .buffer_unordered(32)
        .try_collect::<BTreeMap<_, _>>();
        let placed = self.placed(&client, clock);
        let (applied, placed) = tokio::try_join!(applied, placed)?;
        let seconds = clock.elapsed().saturating_sub(begun).as_secs_f64();
        let latencies = placed
            .iter()
            .filter_map(|(name, at)| Some(at.saturating_sub(*applied.get(name)?)))
            .map(|latency| u32::try_from(latency.as_micros()).unwrap_or(u32::MAX))
            .collect();
        let row = Row::new("volumes applied until scheduled", &self.store, self.volumes);
        let mut row = row.rate(self.volumes, seconds, "volumes/s").latencies(latencies);
        row.rss_mb = server.rss_mb();
        server.stop().await?;
        Ok(row)
    }

    /// Nodes, a group on each, a pool of all, and a class of three replicas.
    async fn prepare(&self, client: &Client) -> Result<(), client::Error> {
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
        clock: &SystemClock,
    ) -> Result<BTreeMap<String, std::time::Duration>, client::Error> {
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

async fn create(client: &Client, path: &str, object: Value) -> Result<(), client::Error> {
    client.json(Call::send(Method::POST, path, JSON, &object)).await.map(drop)
}

async fn set_status(
    client: &Client,
    path: &str,
    name: &str,
    status: Value,
) -> Result<(), client::Error> {
    let path = format!("{path}/{name}/status");
    let patch = json!({"status": status});
    client.json(Call::send(Method::PATCH, path, MERGE_PATCH, &patch)).await.map(drop)
}
