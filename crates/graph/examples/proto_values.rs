//! Values that are protobuf messages, beside a value that serde knows.
//!
//! The interface is a message of `proto/switch.proto`; the route is a plain Rust struct. Both are
//! values of one engine. Messages are shown, sent and journalled in the JSON mapping of protobuf.
//!
//! Run it with `cargo run -p mainstay-graph --features prost --example proto_values`.

use mainstay_graph::{
    Builder, Context, Dependency, Descriptor, Key, Model, OperationError, Options, PrefixModel,
    Transaction,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// `switch.v1.Interface`, as `prost-build` generates it.
#[derive(Clone, PartialEq, prost::Message)]
struct Interface {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    mtu: u32,
    #[prost(string, repeated, tag = "3")]
    ip_addresses: Vec<String>,
    #[prost(enumeration = "Kind", tag = "4")]
    kind: i32,
}

/// `switch.v1.Kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum Kind {
    Tap = 0,
    Loopback = 1,
}

mainstay_graph::proto_value!(Interface, "switch.v1.Interface", include_bytes!("proto/switch.pb"));

/// A value that serde knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Route {
    name: String,
    interface: String,
}

/// A descriptor for either: only the model differs.
struct Switch<M: Model> {
    name: &'static str,
    model: M,
    needs: fn(&M::Value) -> Vec<Dependency>,
}

impl<M: Model> Descriptor for Switch<M> {
    type Model = M;
    type Metadata = ();

    fn name(&self) -> &str {
        self.name
    }

    fn model(&self) -> &M {
        &self.model
    }

    fn dependencies(&self, _: &Key, value: &M::Value) -> Vec<Dependency> {
        (self.needs)(value)
    }

    async fn create(&self, _: &Context, key: &Key, value: &M::Value) -> Result<(), OperationError> {
        println!("  create {key}: {value:?}");
        Ok(())
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &M::Value,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        println!("  delete {key}");
        Ok(())
    }
}

fn interfaces() -> PrefixModel<Interface> {
    PrefixModel::new("interface/", |one: &Interface| Some(one.name.clone()))
}

fn routes() -> PrefixModel<Route> {
    PrefixModel::new("route/", |one: &Route| Some(one.name.clone()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let needs = |route: &Route| vec![Dependency::on(format!("interface/{}", route.interface))];
    let (engine, service) = Builder::new(Options::default())
        .register(Switch { name: "interface", model: interfaces(), needs: |_| Vec::new() })?
        .register(Switch { name: "route", model: routes(), needs })?
        .build()?;
    let stop = CancellationToken::new();
    let worker = tokio::spawn(service.run(stop.clone()));

    println!("A message and a struct in one transaction:");
    let tap = Interface {
        name: "tap1".to_owned(),
        mtu: 1500,
        ip_addresses: vec!["10.0.0.1/24".to_owned()],
        kind: Kind::Tap.into(),
    };
    let route = Route { name: "default".to_owned(), interface: "tap1".to_owned() };
    engine.commit(Transaction::new().put(&routes(), route).put(&interfaces(), tap)).await?;

    println!("The same message as it arrives over REST, from the journal, or in a file:");
    let json = serde_json::json!({"name": "tap1", "mtu": 9000, "ipAddresses": ["10.0.0.1/24"],
        "kind": "KIND_LOOPBACK"});
    engine.commit(Transaction::new().set("interface/tap1", json)).await?;

    println!("As it is shown:");
    for one in engine.dump("interface", mainstay_graph::View::NB).await? {
        println!("  {} {}", one.key, one.value);
    }

    println!("A field that does not exist:");
    let wrong = serde_json::json!({"name": "tap1", "colour": "red"});
    if let Err(error) = engine.commit(Transaction::new().set("interface/tap1", wrong)).await {
        println!("  {error}");
    }

    stop.cancel();
    worker.await?;
    Ok(())
}
