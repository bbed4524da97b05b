//! Values that are messages of `prost`.

use mainstay_graph::{
    Builder, Context, Descriptor, FileJournal, Key, Model, OperationError, Options, PrefixModel,
    Transaction, Value, ValueState, ValueType, View,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

#[derive(Clone, PartialEq, prost::Message)]
struct Interface {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    mtu: u32,
    #[prost(string, repeated, tag = "3")]
    ip_addresses: Vec<String>,
    #[prost(int32, tag = "4")]
    kind: i32,
}

const DESCRIPTORS: &[u8] = include_bytes!("../../examples/proto/switch.pb");

mainstay_graph::proto_value!(Interface, "switch.v1.Interface", DESCRIPTORS);

#[derive(Clone, PartialEq, prost::Message)]
struct Nameless {}

mainstay_graph::proto_value!(Nameless, "switch.v1.Nameless", DESCRIPTORS);

fn tap() -> Interface {
    Interface { name: "tap1".into(), mtu: 1500, ip_addresses: vec!["10.0.0.1/24".into()], kind: 1 }
}

#[test]
fn messages_are_json_as_protobuf_defines_it() {
    let shown = json!({"name": "tap1", "mtu": 1500, "ipAddresses": ["10.0.0.1/24"],
        "kind": "KIND_LOOPBACK"});
    assert_eq!(Value::new(tap()).json(), shown);
    assert_eq!(Interface::from_json(shown), Ok(tap()));
    let spelt = json!({"name": "tap1", "mtu": 1500, "ip_addresses": ["10.0.0.1/24"], "kind": 1});
    assert_eq!(Interface::from_json(spelt), Ok(tap()));
    assert_eq!(Value::new(Interface::default()).json(), json!({}));
    let wrong = Interface::from_json(json!({"colour": "red"})).unwrap_err();
    assert!(wrong.contains("switch.v1.Interface") && wrong.contains("colour"), "{wrong}");
    let missing = Nameless::default().to_json().unwrap_err();
    assert_eq!(missing, "the descriptor has no message switch.v1.Nameless");
}

struct Interfaces(PrefixModel<Interface>);

impl Descriptor for Interfaces {
    type Model = PrefixModel<Interface>;
    type Metadata = ();

    fn name(&self) -> &str {
        "interface"
    }

    fn model(&self) -> &Self::Model {
        &self.0
    }

    async fn create(&self, _: &Context, _: &Key, one: &Interface) -> Result<(), OperationError> {
        if one.mtu == 0 { Err("the MTU is 0")? } else { Ok(()) }
    }

    async fn update(
        &self,
        _: &Context,
        _: &Key,
        _: &Interface,
        _: &Interface,
        _: Option<&()>,
    ) -> Result<Option<()>, OperationError> {
        Ok(None)
    }
}

fn model() -> PrefixModel<Interface> {
    PrefixModel::new("interface/", |one: &Interface| Some(one.name.clone()))
}

#[tokio::test]
async fn messages_survive_the_journal_and_arrive_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    assert_eq!(model().key(&tap()), Some(Key::from("interface/tap1")));
    for run in 0..2 {
        let options = Options::default().journal(FileJournal::open(&path).unwrap());
        let builder = Builder::new(options).register(Interfaces(model())).unwrap();
        let (engine, service) = builder.build().unwrap();
        let stop = CancellationToken::new();
        let worker = tokio::spawn(service.run(stop.clone()));
        engine.barrier().await.unwrap();
        if run == 0 {
            engine.commit(Transaction::new().put(&model(), tap())).await.unwrap();
            // The same value as JSON is no change.
            let same = Transaction::new().set("interface/tap1", Value::new(tap()).json());
            assert!(engine.commit(same).await.unwrap().executed.is_empty());
            let wrong = json!({"name": "tap1", "colour": "red"});
            let wrong = Transaction::new()
                .set("interface/wrong", wrong)
                .on_failure(mainstay_graph::OnFailure::BestEffort);
            engine.apply(wrong).await.unwrap();
            assert_eq!(engine.status("interface/wrong").state, ValueState::Invalid);
        }
        assert_eq!(engine.status("interface/tap1").state, ValueState::Configured);
        let dumped = engine.dump("interface", View::NB).await.unwrap();
        let tap1 = dumped.iter().find(|one| one.key.as_str() == "interface/tap1").unwrap();
        assert_eq!(tap1.value.json(), Value::new(tap()).json(), "run {run}");
        stop.cancel();
        worker.await.unwrap();
    }
}
