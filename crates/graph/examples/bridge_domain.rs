//! A bridge domain, step by step.
//!
//! Three kinds of things: network interfaces, bridge domains, and entries of a forwarding table. A
//! bridge domain exists by itself; each interface *in* it is a derived value that needs the interface
//! to be there. Its key lies below that of the bridge domain, `bd/bd1/interface/tap1`, and has its own
//! descriptor, because a pattern beats a prefix. A forwarding entry needs the interface to be in its
//! bridge domain. The transactions do not say in which order to create them: the engine computes it.
//!
//! Run it with `cargo run -p mainstay-graph --example bridge_domain`.

use std::sync::Arc;

use mainstay_graph::{
    Builder, Context, Dependency, Derived, Descriptor, Engine, Key, Known, Model, OperationError,
    Options, PatternModel, PrefixModel, Resync, Retrieved, Transaction,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Interface {
    name: String,
    mtu: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BridgeDomain {
    name: String,
    interfaces: Vec<String>,
}

/// An interface in a bridge domain: derived, never part of a transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Member {
    domain: String,
    interface: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    address: String,
    domain: String,
    interface: String,
}

fn interfaces() -> PrefixModel<Interface> {
    PrefixModel::new("interface/", |one: &Interface| Some(one.name.clone()))
}

fn domains() -> PrefixModel<BridgeDomain> {
    PrefixModel::new("bd/", |one: &BridgeDomain| Some(one.name.clone()))
}

fn members() -> PatternModel<Member> {
    PatternModel::new("bd/*/interface/*", |one: &Member| {
        vec![one.domain.clone(), one.interface.clone()]
    })
}

fn entries() -> PrefixModel<Entry> {
    PrefixModel::new("fib/", |one: &Entry| Some(one.address.clone()))
}

/// A simulated switch: it prints its operations.
#[derive(Debug, Clone, Default)]
struct Switch(Arc<Mutex<Vec<String>>>);

impl Switch {
    async fn does(&self, what: &str, key: &Key) -> Result<(), OperationError> {
        println!("    the switch: {what} {key}");
        self.0.lock().await.push(format!("{what} {key}"));
        Ok(())
    }
}

/// It has no `update`: an interface that changes is deleted and created.
struct InterfaceDescriptor(PrefixModel<Interface>, Switch);

impl Descriptor for InterfaceDescriptor {
    type Model = PrefixModel<Interface>;
    /// The switch knows an interface by a number.
    type Metadata = usize;

    fn name(&self) -> &str {
        "interface"
    }

    fn model(&self) -> &Self::Model {
        &self.0
    }

    fn metadata_index(&self) -> Option<&str> {
        Some("interface-numbers")
    }

    async fn create(&self, _: &Context, key: &Key, _: &Interface) -> Result<usize, OperationError> {
        self.1.does("create", key).await?;
        Ok(self.1.0.lock().await.len())
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &Interface,
        _: Option<&usize>,
    ) -> Result<(), OperationError> {
        self.1.does("delete", key).await
    }

    async fn retrieve(
        &self,
        _: &Context,
        _: &[Known<'_, Interface, usize>],
    ) -> Result<Vec<Retrieved<Interface, usize>>, OperationError> {
        // A switch that was just turned on.
        Ok(Vec::new())
    }
}

struct DomainDescriptor(PrefixModel<BridgeDomain>, Switch);

impl Descriptor for DomainDescriptor {
    type Model = PrefixModel<BridgeDomain>;
    type Metadata = ();

    fn name(&self) -> &str {
        "bridge-domain"
    }

    fn model(&self) -> &Self::Model {
        &self.0
    }

    /// The members have operations of their own.
    fn equivalent(&self, _: &Key, old: &BridgeDomain, new: &BridgeDomain) -> bool {
        old.name == new.name
    }

    async fn create(&self, _: &Context, key: &Key, _: &BridgeDomain) -> Result<(), OperationError> {
        self.1.does("create", key).await
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &BridgeDomain,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        self.1.does("delete", key).await
    }

    fn derived(&self, _: &Key, domain: &BridgeDomain) -> Vec<Derived> {
        let member = |interface: &String| {
            let member = Member { domain: domain.name.clone(), interface: interface.clone() };
            members().key(&member).map(|key| Derived::new(key, member))
        };
        domain.interfaces.iter().filter_map(member).collect()
    }
}

struct MemberDescriptor(PatternModel<Member>, Switch);

impl Descriptor for MemberDescriptor {
    type Model = PatternModel<Member>;
    type Metadata = ();

    fn name(&self) -> &str {
        "bridge-domain-interface"
    }

    fn model(&self) -> &Self::Model {
        &self.0
    }

    async fn create(
        &self,
        context: &Context,
        key: &Key,
        member: &Member,
    ) -> Result<(), OperationError> {
        // It depends on the interface, so the interface has its number by now.
        let number: Option<usize> = context.indexes().get("interface-numbers", &member.interface);
        let number = number.ok_or("the interface has no number")?;
        self.1.does(&format!("add interface number {number} as"), key).await
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &Member,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        self.1.does("delete", key).await
    }

    fn dependencies(&self, _: &Key, member: &Member) -> Vec<Dependency> {
        vec![Dependency::on(format!("interface/{}", member.interface))]
    }
}

struct EntryDescriptor(PrefixModel<Entry>, Switch);

impl Descriptor for EntryDescriptor {
    type Model = PrefixModel<Entry>;
    type Metadata = ();

    fn name(&self) -> &str {
        "forwarding-entry"
    }

    fn model(&self) -> &Self::Model {
        &self.0
    }

    async fn create(&self, _: &Context, key: &Key, _: &Entry) -> Result<(), OperationError> {
        self.1.does("create", key).await
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &Entry,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        self.1.does("delete", key).await
    }

    fn dependencies(&self, _: &Key, entry: &Entry) -> Vec<Dependency> {
        vec![Dependency::on(format!("bd/{}/interface/{}", entry.domain, entry.interface))]
    }
}

fn interface(name: &str) -> Interface {
    Interface { name: name.to_owned(), mtu: 1500 }
}

fn domain(interfaces: &[&str]) -> BridgeDomain {
    let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
    BridgeDomain { name: "bd1".to_owned(), interfaces }
}

fn entry(address: &str, interface: &str) -> Entry {
    Entry { address: address.to_owned(), domain: "bd1".to_owned(), interface: interface.to_owned() }
}

async fn tell(
    engine: &Engine,
    story: &str,
    transaction: Transaction,
) -> Result<(), mainstay_graph::Error> {
    println!("\n{story}");
    let record = engine.commit(transaction).await?;
    for operation in &record.executed {
        println!("  {operation}");
    }
    for status in engine.statuses(|_| true) {
        for one in std::iter::once(&status).chain(&status.derived) {
            if !one.details.is_empty() {
                println!("  {} waits for {}", one.key, one.details.join(" and "));
            }
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), mainstay_graph::Error> {
    let switch = Switch::default();
    let (engine, service) = Builder::new(Options::default())
        .register(InterfaceDescriptor(interfaces(), switch.clone()))?
        .register(DomainDescriptor(domains(), switch.clone()))?
        .register(MemberDescriptor(members(), switch.clone()))?
        .register(EntryDescriptor(entries(), switch))?
        .build()?;
    let stop = CancellationToken::new();
    let worker = tokio::spawn(service.run(stop.clone()));

    let first = Transaction::new()
        .put(&interfaces(), interface("tap1"))
        .put(&interfaces(), interface("loopback1"))
        .put(&domains(), domain(&["tap2", "loopback1"]))
        .put(&entries(), entry("cc:cc", "tap1"))
        .put(&entries(), entry("aa:aa", "tap2"))
        .resync(Resync::FullResync);
    tell(&engine, "In the beginning, everything we want; tap2 is missing.", first).await?;

    let second = Transaction::new()
        .put(&domains(), domain(&["tap1", "tap2", "loopback1"]))
        .put(&interfaces(), interface("tap2"));
    tell(&engine, "tap2 arrives, and tap1 joins the bridge domain.", second).await?;

    let wider = Interface { mtu: 9000, ..interface("tap2") };
    let change = Transaction::new().put(&interfaces(), wider);
    tell(&engine, "tap2 changes: it is created anew, between what needs it.", change).await?;

    let third = Transaction::new().delete("interface/tap1");
    tell(&engine, "tap1 goes; what needs it goes first, and waits.", third).await?;

    stop.cancel();
    // The worker returns nothing.
    let _ = worker.await;
    Ok(())
}
