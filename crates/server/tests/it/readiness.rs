//! Whether a server says which of its parts does not work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_server::Check;
use mainstay_store::Location;
use mainstay_store::clock::SystemClock;

use crate::client::{Client, Host};
use crate::cluster::Cluster;

async fn text(client: &mut Client, path: &str) -> (u16, String) {
    let answer = client.get(path).await;
    (answer.code, String::from_utf8_lossy(&answer.bytes).into_owned())
}

/// Asks until the answer has this code.
async fn until(client: &mut Client, path: &str, code: u16) -> String {
    loop {
        let (found, text) = text(client, path).await;
        if found == code {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_paused_etcd_makes_the_server_not_ready_until_it_goes_on() {
    let cluster = Cluster::start(1);
    let store = Location::Etcd(cluster.address());
    let host = Host::start_with(SystemClock::new(), |options| options.store = store).await;
    let mut client = host.client_with(None).await;
    assert_eq!(text(&mut client, "/readyz").await, (200, "ok".to_owned()));
    cluster.signal(0, "-STOP");
    let failed = until(&mut client, "/readyz", 503).await;
    assert!(failed.contains("[+]ping ok\n[-]store failed: the store is unavailable"), "{failed}");
    assert!(failed.ends_with("readyz check failed\n"), "{failed}");
    assert_eq!(text(&mut client, "/livez").await, (200, "ok".to_owned()));
    assert_eq!(text(&mut client, "/readyz/store").await.0, 503);
    assert_eq!(text(&mut client, "/readyz/ping").await, (200, "ok".to_owned()));
    cluster.signal(0, "-CONT");
    until(&mut client, "/readyz", 200).await;
    let verbose = text(&mut client, "/readyz?verbose").await.1;
    assert_eq!(
        verbose,
        "[+]ping ok\n[+]store ok\n[+]audit ok\n[+]shutdown ok\nreadyz check passed\n"
    );
    host.stop().await;
}

#[derive(Debug)]
struct Switch(AtomicBool);

impl Check for Switch {
    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        let on = self.0.load(Relaxed);
        let said = if on { Ok(()) } else { Err("its database does not answer".to_owned()) };
        std::future::ready(said).boxed()
    }
}

#[tokio::test]
async fn parts_of_others_are_named_and_measured() {
    let switch = Arc::new(Switch(AtomicBool::new(true)));
    let check: Arc<dyn Check> = switch.clone();
    let host = Host::start_with(SystemClock::new(), |options| {
        options.checks.push(("catalog", check));
    })
    .await;
    let mut client = host.client().await;
    until(&mut client, "/readyz/catalog", 200).await;
    switch.0.store(false, Relaxed);
    let failed = until(&mut client, "/readyz", 503).await;
    assert!(failed.contains("[-]catalog failed: its database does not answer\n"), "{failed}");
    let metrics = text(&mut client, "/metrics").await.1;
    assert!(metrics.contains("mainstay_ready{check=\"catalog\"} 0"), "{metrics}");
    assert!(metrics.contains("mainstay_ready{check=\"store\"} 1"), "{metrics}");
    switch.0.store(true, Relaxed);
    until(&mut client, "/readyz", 200).await;
    assert_eq!(text(&mut client, "/readyz/nothing").await.0, 404);
    host.stop().await;
}
