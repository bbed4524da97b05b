//! The interfaces for descriptors: missing operations, key selectors, handles, errors, boxes.

use std::io;
use std::sync::Arc;

use mainstay_graph::{
    Abilities, BoxedDescriptor, Builder, Context, Dependency, Derived, Descriptor, Engine, Error,
    Handle, Key, Known, Model, OperationError, Options, PatternModel, PrefixModel, Retrieved,
    Transaction, ValueState,
};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

type Calls = Arc<Mutex<Vec<String>>>;

/// A descriptor of numbers without `update` and `retrieve`.
struct Ports {
    model: PrefixModel<u32>,
    calls: Calls,
}

impl Ports {
    fn new(calls: &Calls) -> Self {
        let model = PrefixModel::new("port/", |number: &u32| Some(number.to_string()));
        Self { model, calls: Arc::clone(calls) }
    }
}

impl Descriptor for Ports {
    type Model = PrefixModel<u32>;
    type Metadata = Handle<Mutex<u32>>;

    fn name(&self) -> &str {
        "port"
    }

    fn model(&self) -> &Self::Model {
        &self.model
    }

    fn metadata_index(&self) -> Option<&str> {
        Some("ports")
    }

    fn is_retriable(&self, error: &OperationError) -> bool {
        let cause = error.find::<io::Error>();
        cause.is_none_or(|cause| cause.kind() != io::ErrorKind::NotFound)
    }

    async fn create(
        &self,
        _: &Context,
        key: &Key,
        value: &u32,
    ) -> Result<Self::Metadata, OperationError> {
        self.calls.lock().push(format!("create {key} {value}"));
        if *value == 404 {
            return Err(io::Error::from(io::ErrorKind::NotFound))?;
        }
        Ok(Handle::new(Mutex::new(*value)))
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &u32,
        open: Option<&Self::Metadata>,
    ) -> Result<(), OperationError> {
        let number = open.map(|open| *open.lock());
        self.calls.lock().push(format!("delete {key} {number:?}"));
        Ok(())
    }
}

fn start(builder: Builder) -> (Engine, CancellationToken, JoinHandle<()>) {
    let (engine, service) = builder.build().unwrap();
    let stop = CancellationToken::new();
    let worker = tokio::spawn(service.run(stop.clone()));
    (engine, stop, worker)
}

fn lines(records: &[mainstay_graph::OperationRecord]) -> Vec<String> {
    records.iter().map(ToString::to_string).collect()
}

#[test]
fn abilities_are_the_operations_that_are_implemented() {
    let calls = Calls::default();
    assert_eq!(
        Abilities::of::<Ports>(),
        Abilities::ALL.without_update().without_retrieve(),
        "as in the impl block"
    );
    let boxed = BoxedDescriptor::from(Ports::new(&calls));
    assert_eq!(boxed.abilities(), Ports::new(&calls).abilities());
    assert_eq!(Abilities::of::<crate::south::Things>(), Abilities::ALL);
}

#[tokio::test]
async fn a_change_without_update_is_a_deletion_and_a_creation() {
    let calls = Calls::default();
    let builder = Builder::new(Options::default()).register(Ports::new(&calls)).unwrap();
    let (engine, stop, worker) = start(builder);
    engine.commit(Transaction::new().set_typed("port/a", 1_u32)).await.unwrap();
    let change = Transaction::new().set_typed("port/a", 2_u32);
    let planned = engine.plan(change.clone()).await.unwrap();
    let record = engine.commit(change).await.unwrap();
    let expected =
        ["DELETE port/a CONFIGURED>REMOVED RECREATE", "CREATE port/a REMOVED>CONFIGURED RECREATE"];
    assert_eq!(lines(&planned), expected);
    assert_eq!(lines(&record.executed), expected);
    assert_eq!(
        *calls.lock(),
        ["create port/a 1", "delete port/a Some(1)", "create port/a 2"],
        "the metadata of the deleted value is its open handle"
    );
    let open: Option<Handle<Mutex<u32>>> = engine.indexes().get("ports", "a");
    assert_eq!(open.map(|open| *open.lock()), Some(2));
    stop.cancel();
    worker.await.unwrap();
}

#[tokio::test]
async fn the_status_shows_every_cause_of_an_error() {
    let calls = Calls::default();
    let builder = Builder::new(Options::default()).register(Ports::new(&calls)).unwrap();
    let (engine, stop, worker) = start(builder);
    let refused = engine.commit(Transaction::new().set_typed("port/a", 404_u32)).await;
    let Err(Error::Failed(record)) = refused else { panic!("{refused:?}") };
    assert_eq!(record.errors[0].error, "I/O error: entity not found");
    let retried = Transaction::new()
        .set_typed("port/a", 404_u32)
        .on_failure(mainstay_graph::OnFailure::BestEffort)
        .retry(mainstay_graph::Retry::default());
    let _ = engine.apply(retried).await.unwrap();
    let status = engine.status("port/a");
    assert_eq!(status.state, ValueState::Failed, "is_retriable found the cause");
    assert_eq!(status.error.as_deref(), Some("I/O error: entity not found"));
    stop.cancel();
    worker.await.unwrap();
}

/// A bridge domain: a list of interfaces, each of which is a derived value.
struct Domains(PrefixModel<Vec<String>>, Calls);

impl Descriptor for Domains {
    type Model = PrefixModel<Vec<String>>;
    type Metadata = ();

    fn name(&self) -> &str {
        "domain"
    }

    fn model(&self) -> &Self::Model {
        &self.0
    }

    fn equivalent(&self, _: &Key, _: &Vec<String>, _: &Vec<String>) -> bool {
        true
    }

    async fn create(&self, _: &Context, key: &Key, _: &Vec<String>) -> Result<(), OperationError> {
        self.1.lock().push(format!("domain: create {key}"));
        Ok(())
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &Vec<String>,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        self.1.lock().push(format!("domain: delete {key}"));
        Ok(())
    }

    async fn retrieve(
        &self,
        _: &Context,
        known: &[Known<'_, Vec<String>, ()>],
    ) -> Result<Vec<Retrieved<Vec<String>, ()>>, OperationError> {
        let keys: Vec<&str> = known.iter().map(|one| one.key.as_str()).collect();
        self.1.lock().push(format!("domain: knows {}", keys.join(" ")));
        Ok(known.iter().map(|one| Retrieved::new(one.key, one.value.clone())).collect())
    }

    fn derived(&self, key: &Key, interfaces: &Vec<String>) -> Vec<Derived> {
        let domain = key.trim_start_matches("bd/");
        let member = |name: &String| (domain.to_owned(), name.clone());
        let derived =
            |name| members().key(&member(name)).map(|key| Derived::new(key, member(name)));
        interfaces.iter().filter_map(derived).collect()
    }
}

type Member = (String, String);

fn members() -> PatternModel<Member> {
    PatternModel::new("bd/*/interface/*", |(domain, name): &Member| {
        vec![domain.clone(), name.clone()]
    })
}

struct Members(PatternModel<Member>, Calls);

impl Descriptor for Members {
    type Model = PatternModel<Member>;
    type Metadata = ();

    fn name(&self) -> &str {
        "member"
    }

    fn model(&self) -> &Self::Model {
        &self.0
    }

    async fn create(&self, _: &Context, key: &Key, _: &Member) -> Result<(), OperationError> {
        self.1.lock().push(format!("member: create {key}"));
        Ok(())
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &Member,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        self.1.lock().push(format!("member: delete {key}"));
        Ok(())
    }

    fn dependencies(&self, _: &Key, (_, name): &Member) -> Vec<Dependency> {
        vec![Dependency::on(format!("port/{name}"))]
    }
}

fn domains(calls: &Calls) -> Domains {
    Domains(PrefixModel::new("bd/", |_: &Vec<String>| None), Arc::clone(calls))
}

#[tokio::test]
async fn derived_values_below_their_base_have_their_own_descriptor() {
    let calls = Calls::default();
    let all: Vec<BoxedDescriptor> = vec![
        Ports::new(&Calls::default()).into(),
        domains(&calls).into(),
        Arc::new(Members(members(), Arc::clone(&calls))).into(),
    ];
    let mut builder = Builder::new(Options::default());
    for descriptor in all {
        builder = builder.register(descriptor).unwrap();
    }
    let (engine, stop, worker) = start(builder);
    let both = vec!["tap1".to_owned(), "tap2".to_owned()];
    let first = Transaction::new().set_typed("bd/a", both).set_typed("port/tap1", 1_u32);
    engine.commit(first).await.unwrap();
    assert_eq!(*calls.lock(), ["domain: create bd/a", "member: create bd/a/interface/tap1"]);
    assert_eq!(engine.status("bd/a/interface/tap2").details, ["port/tap2"]);
    assert_eq!(engine.descriptor_of_key("bd/a/interface/tap2").as_deref(), Some("member"));
    assert_eq!(engine.descriptor_of_prefix("bd/*/interface/*").unwrap(), "member");

    calls.lock().clear();
    engine.commit(Transaction::downstream_resync()).await.unwrap();
    assert_eq!(*calls.lock(), ["domain: knows bd/a"], "members are not values of the domain's own");

    calls.lock().clear();
    engine.commit(Transaction::new().set_typed("bd/a", vec!["tap2".to_owned()])).await.unwrap();
    assert_eq!(*calls.lock(), ["member: delete bd/a/interface/tap1"]);
    stop.cancel();
    worker.await.unwrap();
}

#[tokio::test]
async fn a_late_descriptor_takes_no_applied_values_from_another() {
    let calls = Calls::default();
    let builder = Builder::new(Options::default()).register(domains(&calls)).unwrap();
    let (engine, stop, worker) = start(builder);
    let set = Transaction::new().set_typed("bd/a/interface/b", Vec::<String>::new());
    engine.commit(set).await.unwrap();
    let refused = engine.register(Members(members(), Arc::clone(&calls))).await.unwrap_err();
    assert!(refused.to_string().contains("would take over bd/a/interface/b"), "{refused}");
    assert_eq!(engine.descriptor_of_key("bd/a/interface/b").as_deref(), Some("domain"));
    engine.commit(Transaction::new().delete("bd/a/interface/b")).await.unwrap();
    engine.register(Members(members(), Arc::clone(&calls))).await.unwrap();
    assert_eq!(engine.descriptor_of_key("bd/a/interface/b").as_deref(), Some("member"));
    stop.cancel();
    worker.await.unwrap();
}
