//! The extender over HTTP: as a server, and as a client of an external one.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::{Clock, ManualClock, SystemClock};
use mainstay_store::builtin::Event;
use mainstay_volumes::conditions;
use mainstay_volumes::extender::{Client, ClientError, LedgerService, Request, router};
use mainstay_volumes::ledger::{Claim, Target};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Cluster, class, group, pool, volume};
use crate::fake::{Answers, Fake, Mode};

/// One request over a connection of its own: the status and the body.
async fn send(address: std::net::SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn the_served_extender_follows_the_contract() {
    let cluster = Cluster::new(None).await;
    cluster.group("small", "a", "2Gi").await;
    cluster.group("large", "b", "20Gi").await;
    let mut broken = group("broken", "c", "20Gi");
    broken["status"]["phase"] = "NotReady".into();
    cluster.apply(broken).await;
    let mut thin = group("thin", "d", "20Gi");
    thin["status"]["thinPools"] =
        json!([{"name": "t", "ready": true, "actualSize": "10Gi", "allocationLimit": "200%"}]);
    cluster.apply(thin).await;
    let views = cluster.volumes.views().clone();
    cluster
        .until("the groups are known", || async {
            views.groups.list().iter().filter(|it| !it.status.phase.is_empty()).count() == 4
        })
        .await;
    let slot = Arc::new(OnceLock::new());
    let app = router(slot.clone());
    slot.set(LedgerService::new(cluster.volumes.reserve().clone(), cluster.resources.clone()))
        .unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async move { axum::serve(listener, app).await.unwrap() };
    let _task = AbortOnDropHandle::new(tokio::spawn(serve));
    let score = "/v1/lvg/filter-and-score";
    let narrow = "/v1/lvg/narrow-reservation";
    let gib = 1_u64 << 30;
    let ask = |id: &str, size: u64, lvgs: Value| {
        json!({"reservationID": id, "reservationTTL": "1m0s", "size": size, "lvgs": lvgs})
            .to_string()
    };

    assert_eq!(send(address, "GET", score, "").await.0, 405);
    let one = json!([{"name": "large"}]);
    let bad = [
        "{".to_owned(),
        ask("", gib, one.clone()),
        ask("x", gib, json!([])),
        ask("x", 0, one.clone()),
        ask("x", gib, json!([{"name": ""}])),
        ask("x", gib, one.clone()).replace("1m0s", "soon"),
    ];
    for body in bad {
        assert_eq!(send(address, "POST", score, &body).await.0, 400, "{body}");
    }
    for body in [
        json!({"reservationID": "", "reservationTTL": "1s", "lvg": {"name": "large"}}),
        json!({"reservationID": "x", "reservationTTL": "1s", "lvg": {"name": ""}}),
        json!({"reservationID": "x", "reservationTTL": "-", "lvg": {"name": "large"}}),
    ] {
        assert_eq!(send(address, "POST", narrow, &body.to_string()).await.0, 400, "{body}");
    }

    let all = json!([{"name": "small"}, {"name": "large"}, {"name": "broken"}, {"name": "gone"},
        {"name": "thin", "thinPoolName": "t"}, {"name": "thin", "thinPoolName": "u"}]);
    let (status, answer) = send(address, "POST", score, &ask("a", 5 * gib, all.clone())).await;
    let kept: Vec<String> =
        answer["lvgs"].as_array().unwrap().iter().map(|it| it["name"].to_string()).collect();
    assert_eq!((status, kept), (200, vec!["\"large\"".to_owned(), "\"thin\"".to_owned()]));
    assert_eq!(answer["lvgs"][1]["thinPoolName"], "t");
    let scores = answer["lvgs"].as_array().unwrap();
    assert!(scores.iter().all(|it| (1..=100).contains(&it["score"].as_i64().unwrap())));

    // A broad reservation counts against others on all its targets, and not against its own holder.
    let large = json!([{"name": "large"}]);
    let (_, again) = send(address, "POST", score, &ask("a", 16 * gib, large.clone())).await;
    assert_eq!(
        again["lvgs"].as_array().unwrap().len(),
        1,
        "a request with the same id replaces the reservation"
    );
    let (_, other) = send(address, "POST", score, &ask("b", 5 * gib, large.clone())).await;
    assert_eq!(other, json!({"lvgs": []}));

    let keep = |id: &str, name: &str| {
        json!({"reservationID": id, "reservationTTL": "1m0s", "lvg": {"name": name}}).to_string()
    };
    assert_eq!(send(address, "POST", narrow, &keep("unknown", "large")).await.0, 200);
    assert_eq!(send(address, "POST", narrow, &keep("a", "large")).await, (200, json!({})));
    let (_, other) = send(address, "POST", score, &ask("b", 5 * gib, large.clone())).await;
    assert_eq!(other, json!({"lvgs": []}), "narrowed, it still counts");
    // Narrowing to a target without the reservation removes it.
    assert_eq!(send(address, "POST", narrow, &keep("a", "small")).await.0, 200);
    let (_, other) = send(address, "POST", score, &ask("b", 5 * gib, large)).await;
    assert_eq!(other["lvgs"].as_array().unwrap().len(), 1);
    cluster.volumes.shutdown().await;
}

fn targets() -> [Target; 2] {
    [Target::new("vg-a", ""), Target::new("vg-b", "t")]
}

#[tokio::test]
async fn a_failing_invalid_or_slow_extender_is_an_error() {
    let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
    let answers = Answers { default: Some(7), ..Answers::default() };
    let fake = Fake::start(answers).await;
    let client = Client::new(&fake.url(), None, clock.clone()).unwrap();
    let request =
        Request { claim: Claim { size: 5, ..Claim::default() }, reservation_id: "id".to_owned() };
    let [first, second] = targets();
    let targets = [&first, &second];
    let ask = || client.filter_and_score(&request, &targets);
    assert_eq!(ask().await.unwrap(), [7, 7]);
    let sent = fake.requests().remove(0).1;
    assert_eq!(
        sent,
        json!({"reservationID": "id", "reservationTTL": "2s", "size": 5,
            "lvgs": [{"name": "vg-a"}, {"name": "vg-b", "thinPoolName": "t"}]})
    );
    fake.set(|it| it.scoring = Mode::Down);
    assert!(matches!(ask().await, Err(ClientError::Status(_))));
    fake.set(|it| it.scoring = Mode::Garbage);
    assert!(matches!(ask().await, Err(ClientError::Body(_))));
    fake.set(|it| it.scoring = Mode::Silent);
    let slow = ask();
    let advance = async {
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(11));
    };
    assert!(matches!(tokio::join!(slow, advance).0, Err(ClientError::Timeout)));
    let nobody = Client::new("http://127.0.0.1:1", None, clock.clone()).unwrap();
    let refused = nobody.narrow_reservation(&request, &first).await;
    assert!(matches!(refused, Err(ClientError::Connect { .. })));
    let clock: Arc<dyn Clock> = clock;
    for url in ["ftp://x", "x", "https://x"] {
        let client = Client::new(url, None, clock.clone());
        assert!(matches!(client, Err(ClientError::Url(_))), "{url}");
    }
}

#[tokio::test]
async fn a_volume_is_placed_when_the_extender_is_back() {
    let answers = Answers { default: Some(5), scoring: Mode::Down, ..Answers::default() };
    let fake = Fake::start(answers).await;
    let cluster = Cluster::new(Some(&fake)).await;
    for name in ["a", "b"] {
        cluster.node(name, "z", true).await;
        cluster.group(&format!("vg-{name}"), name, "10Gi").await;
    }
    cluster.apply(pool("pool", &["vg-a", "vg-b"])).await;
    cluster.apply(class("pair", "Consistency", "pool")).await;
    let mut annotated = volume("data", "pair", "1Gi");
    annotated["metadata"]["annotations"] =
        json!({"storage.mainstay.dev/scheduling-reservation-id": "ns/pvc-123"});
    cluster.apply(annotated).await;
    let reason = |name: &'static str| {
        let cluster = &cluster;
        async move {
            let replica = cluster.replica(name).await;
            let conditions = replica.map(|it| it.status.conditions).unwrap_or_default();
            conditions::find(&conditions, "Scheduled").map(|it| it.reason.clone())
        }
    };
    let waits = || async { reason("data-0").await.as_deref() == Some("ExtenderUnavailable") };
    cluster.until("the condition reports the extender as unreachable", waits).await;
    fake.set(|it| it.scoring = Mode::Right);
    let placed = || async {
        let both = [reason("data-0").await, reason("data-1").await];
        both.iter().all(|it| it.as_deref() == Some("Scheduled"))
    };
    cluster.until("both are placed", placed).await;
    // C71: the annotation is the id; C72: without one it is computed from each replica.
    assert!(fake.requests().iter().all(|(_, body)| body["reservationID"] == "ns/pvc-123"));
    let so_far = fake.requests().len();
    cluster.apply(volume("rv-test", "pair", "1Gi")).await;
    let asked = || async { fake.requests().len() >= so_far + 4 };
    cluster.until("the next is placed", asked).await;
    let (_, first) = &fake.requests()[so_far];
    assert_eq!(first["reservationID"], "rv-test-0-d228cb69101a8caf78912b704e4a147f");
    cluster.volumes.shutdown().await;
}

/// For every failure of the extender, the condition reports it as unreachable and an Event has the cause.
#[tokio::test]
async fn failures_of_the_extender_are_reported_with_their_cause() {
    let nobody = "http://127.0.0.1:1";
    let modes = [Some(Mode::Down), Some(Mode::Garbage), None];
    let why =
        ["the extender answered 503", "the extender's answer cannot be read", "cannot be reached"];
    for (mode, why) in modes.into_iter().zip(why) {
        let answers =
            Answers { default: Some(5), scoring: mode.unwrap_or_default(), ..Answers::default() };
        let fake = Fake::start(answers).await;
        let url = if mode.is_some() { fake.url() } else { nobody.to_owned() };
        let cluster = Cluster::asking(&url).await;
        cluster.node("a", "z", true).await;
        cluster.group("vg-a", "a", "10Gi").await;
        cluster.apply(pool("pool", &["vg-a"])).await;
        cluster.apply(class("single", "None", "pool")).await;
        cluster.apply(volume("data", "single", "1Gi")).await;
        let text = "Scheduling is temporarily unavailable: capacity scoring service is unreachable";
        let has_condition = || async {
            let replica = cluster.replica("data-0").await;
            let conditions = replica.map(|it| it.status.conditions).unwrap_or_default();
            conditions::find(&conditions, "Scheduled")
                .is_some_and(|it| it.reason == "ExtenderUnavailable" && it.message == text)
        };
        cluster.until("the condition is set", has_condition).await;
        let reported = || async {
            let events: Vec<Event> = cluster.resources.list_as(Some("default")).await.unwrap();
            events.iter().any(|it| {
                let message = it.message.as_deref().unwrap_or_default();
                it.reason.as_deref() == Some("ExtenderUnavailable")
                    && message.starts_with(text)
                    && message.contains(why)
            })
        };
        cluster.until(&format!("an Event contains: {why}"), reported).await;
        cluster.volumes.shutdown().await;
    }
}

#[tokio::test]
async fn an_extender_with_https_is_verified_against_the_given_authority() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let certificate = made.cert.der().clone();
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let answers = Answers { default: Some(7), ..Answers::default() };
    let fake = Fake::start_tls(answers, server).await;
    let trusting = |certificates: &[CertificateDer<'static>]| {
        let mut roots = RootCertStore::empty();
        certificates.iter().for_each(|it| roots.add(it.clone()).unwrap());
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Some(Arc::new(config))
    };
    let clock: Arc<dyn Clock> = SystemClock::new();
    let url = format!("https://localhost:{}", fake.port());
    let request = Request { claim: Claim::default(), reservation_id: "id".to_owned() };
    let [first, _] = targets();
    let client = Client::new(&url, trusting(&[certificate]), clock.clone()).unwrap();
    assert_eq!(client.filter_and_score(&request, &[&first]).await.unwrap(), [7]);
    client.narrow_reservation(&request, &first).await.unwrap();
    let stranger = Client::new(&url, trusting(&[]), clock).unwrap();
    let refused = stranger.filter_and_score(&request, &[&first]).await;
    assert!(matches!(refused, Err(ClientError::Tls { .. })));
}
