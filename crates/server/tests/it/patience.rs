//! A request that a keeper lets wait is answered when the keeper answers, not when others would be
//! given up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Method;
use mainstay_client::{Address, Client};
use mainstay_server::{Options, Server};
use mainstay_store::builtin::Namespace;
use mainstay_store::clock::{Clock, ManualClock, SystemClock};
use mainstay_store::keeper::{Keeper, Prepared};
use mainstay_store::object::{Body, Key, Record, Resource, Revision};
use mainstay_store::resources::WriteOptions;
use mainstay_store::status::Error;
use serde_json::json;

use crate::{access, block_on, registry};

/// How long a request may take here.
const LIMIT: Duration = Duration::from_secs(60);

/// Thinks for longer than a request may take: the time passes while it does.
#[derive(Debug)]
struct Slow {
    clock: Arc<ManualClock>,
}

impl Keeper for Slow {
    fn create(&self, key: Key, object: Prepared) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        async move {
            // The futures beside it are polled after each step.
            for _ in 0..3 {
                self.clock.advance(LIMIT);
                tokio::task::yield_now().await;
            }
            Ok(Arc::new(Body::new(&object).at(key, Revision(7), Revision(7))))
        }
        .boxed()
    }

    fn update(
        &self,
        _key: Key,
        before: Arc<Record>,
        _object: Prepared,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        std::future::ready(Ok(before)).boxed()
    }

    fn remove(&self, _key: Key, before: Arc<Record>) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        std::future::ready(Ok(before)).boxed()
    }

    fn recall(&self, _key: &Key) -> Option<Arc<Record>> {
        None
    }
}

#[test]
fn a_request_that_waits_for_a_keeper_has_no_time_limit() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let data = folder.path().to_owned();
        let clock = ManualClock::new(SystemClock::new().now());
        let mut options = Options::new(anywhere, data, registry(), clock.clone());
        options.limits.request = LIMIT;
        let keeper: Arc<dyn Keeper> = Arc::new(Slow { clock });
        options.keepers = HashMap::from([(Resource::new("", "apples"), keeper)]);
        let running = Server::start(options).await.unwrap();
        let mut namespace = Namespace::default();
        namespace.metadata.name = "a".to_owned();
        running.resources().create_as(&namespace, &WriteOptions::default()).await.unwrap();
        let servers = vec![Address::parse(running.url()).unwrap()];
        let client = Client::new(servers, access(&running, None));
        let apple = json!({"apiVersion": "v1", "kind": "Apple", "metadata": {"name": "x"}});
        let body = Some(apple.to_string().into_bytes());
        let path = "/api/v1/namespaces/a/apples";
        let answer = client.call(Method::POST, path, body).await.unwrap();
        assert_eq!(answer.code.as_u16(), 201, "{}", String::from_utf8_lossy(&answer.body));
        let handle = running.handle();
        handle.shut_down();
        running.wait().await;
    });
}
