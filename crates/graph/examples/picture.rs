//! A storage cluster of any size, to look at its picture.
//!
//! Nodes, disks, pools, volumes with two replicas each, exports through any gateway. One disk is
//! missing, some operations fail, one value is invalid and one has no descriptor. Each transaction is
//! a place on the slider of the page.
//!
//! `cargo run -p mainstay-graph --example picture -- 500 127.0.0.1:9191` serves about 500 values at
//! `http://127.0.0.1:9191/scheduler/graph`. Without an address it prints the scenario, for
//! `mainstay graph run FILE`.

use std::fmt::Write;

use mainstay_graph::rest;
use mainstay_graph::scenario::{parse, play};

/// The numbers of each kind of value.
struct Cluster {
    nodes: usize,
    disks: usize,
    pools: usize,
    volumes: usize,
}

impl Cluster {
    /// A cluster of about this many values.
    fn of(values: usize) -> Self {
        let volumes = (values * 4 / 19).max(4);
        let pools = (volumes / 10).max(1);
        Self { nodes: pools + 1, disks: (volumes / 2).max(3), pools, volumes }
    }

    /// The dependencies of each value of a kind, in YAML.
    fn depends(&self, kind: &str) -> String {
        let mut out = String::new();
        let mut add = |key: String, needs: &str| {
            let _ = writeln!(out, "      {key}: [{needs}]");
        };
        match kind {
            "disk" => (0..self.disks).for_each(|disk| {
                add(
                    format!("/disk/{disk:04}"),
                    &format!("{{key: /node/{:03}}}", disk % self.nodes),
                );
            }),
            "pool" => (0..self.pools).for_each(|pool| {
                let own =
                    (0..3).map(|one| format!("{{key: /disk/{:04}}}", pool + one * self.pools));
                add(format!("/pool/{pool:03}"), &own.collect::<Vec<_>>().join(", "));
            }),
            "volume" => (0..self.volumes).for_each(|volume| {
                let key = format!("/volume/{volume:04}");
                add(key.clone(), &format!("{{key: /pool/{:03}}}", volume % self.pools));
                for (replica, far) in [("a", 0), ("b", 1)] {
                    let disk = (volume / 2 + far) % (self.disks + 1);
                    add(format!("{key}/{replica}"), &format!("{{key: /disk/{disk:04}}}"));
                }
            }),
            _ => (0..self.volumes).for_each(|volume| {
                let gateway = "{label: a gateway, any-of: {prefixes: [/gateway/]}}";
                let needs = format!("{{key: /volume/{volume:04}/a}}, {gateway}");
                add(format!("/export/{volume:04}"), &needs);
            }),
        }
        out
    }

    /// The cluster as a scenario.
    fn scenario(&self) -> String {
        let mut out = String::from("descriptors:\n");
        for (kind, items) in [
            ("node", "none"),
            ("gateway", "none"),
            ("disk", "none"),
            ("pool", "none"),
            ("volume", "derive"),
            ("export", "none"),
        ] {
            let _ = write!(out, "  - name: {kind}\n    prefix: /{kind}/\n    items: {items}\n");
            if !["node", "gateway"].contains(&kind) {
                let _ = write!(out, "    depends:\n{}", self.depends(kind));
            }
        }
        out.push_str("invalid:\n  - {key: /export/0003, items: [], fields: [path], error: the path is empty}\nfail:\n");
        for volume in (0..self.volumes).filter(|volume| volume % 60 == 2) {
            let _ = writeln!(
                out,
                "  - {{key: /volume/{volume:04}/b, op: create, error: 'no space left on disk', retriable: false}}"
            );
        }
        out.push_str("steps:\n");
        let mut step = |what: String, values: Vec<String>| {
            let set = values.join(", ");
            let _ = writeln!(
                out,
                "  - txn: {{set: {{{set}}}, description: '{what}', on-failure: best-effort}}\n  - advance: 20s"
            );
        };
        let numbered = |kind: &str, range: std::ops::Range<usize>, digits: usize| {
            let value = |one| format!("/{kind}/{one:0digits$}: {{}}");
            range.map(value).collect::<Vec<_>>()
        };
        step("add nodes".into(), numbered("node", 0..self.nodes, 3));
        step("add disks".into(), numbered("disk", 0..self.disks, 4));
        step("make pools".into(), numbered("pool", 0..self.pools, 3));
        step("plan a snapshot".into(), vec!["/snapshot/1: {of: volume 1}".into()]);
        let size = self.volumes.div_ceil(8);
        for first in (0..self.volumes).step_by(size) {
            let last = (first + size).min(self.volumes);
            let volume =
                |one| format!("/volume/{one:04}: {{size: {}Gi, items: [a, b]}}", 10 + one % 7 * 15);
            step(format!("volumes {first} to {}", last - 1), (first..last).map(volume).collect());
            let export = |one| format!("/export/{one:04}: {{protocol: nvme, items: []}}");
            step(format!("exports {first} to {}", last - 1), (first..last).map(export).collect());
        }
        let gateways = "{/gateway/east: {address: 10.0.0.1}, /gateway/west: {address: 10.0.0.2}}";
        let _ = writeln!(out, "  - notify: {{set: {gateways}}}\n  - advance: 20s");
        out
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let values = arguments.next().map_or(Ok(30), |count| count.parse())?;
    let scenario = Cluster::of(values).scenario();
    let Some(address) = arguments.next() else {
        print!("{scenario}");
        return Ok(());
    };
    let played = play(&parse(&scenario)?).await?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}/scheduler/graph", listener.local_addr()?);
    axum::serve(listener, rest::router(played.engine.clone())).await?;
    Ok(())
}
