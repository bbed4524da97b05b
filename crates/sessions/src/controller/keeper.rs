//! Writes of ApplicationSessions and Instances, which the actor keeps instead of the store.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_store::keeper::{Keeper, Prepared};
use mainstay_store::object::{self, Record};
use mainstay_store::status::{Error, Reason};

use super::handle::{Handle, Input, not_running};

/// Passes writes of one kind to the actor.
#[derive(Debug)]
struct KindKeeper {
    handle: Handle,
    /// Sessions if true, else instances.
    sessions: bool,
}

impl Handle {
    /// The keepers of sessions and of instances.
    #[must_use]
    pub fn keepers(&self) -> (Arc<dyn Keeper>, Arc<dyn Keeper>) {
        let keeper = |sessions| Arc::new(KindKeeper { handle: self.clone(), sessions });
        (keeper(true), keeper(false))
    }
}

/// The error of writes to instances.
fn read_only() -> Error {
    let message = "instances are made and changed by their application; change its scalingPolicy, or delete the instance";
    Error::new(Reason::MethodNotAllowed, message)
}

impl Keeper for KindKeeper {
    fn create(
        &self,
        key: object::Key,
        object: Prepared,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        if !self.sessions {
            return std::future::ready(Err(read_only())).boxed();
        }
        let opened = self.handle.ask(|answer| Input::Open { key, object, answer });
        opened.map(|answer| answer.unwrap_or_else(|| Err(not_running()))).boxed()
    }

    fn read_only(&self) -> Option<Error> {
        (!self.sessions).then(read_only)
    }

    fn update(
        &self,
        key: object::Key,
        before: Arc<Record>,
        object: Prepared,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        if !self.sessions {
            return std::future::ready(Err(read_only())).boxed();
        }
        let before = Some(before.revision());
        let changed = self.handle.ask(move |answer| Input::Update { key, before, object, answer });
        changed.map(|answer| answer.unwrap_or_else(|| Err(not_running()))).boxed()
    }

    fn remove(
        &self,
        key: object::Key,
        before: Arc<Record>,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        async move {
            if self.sessions {
                // A user removed the finalizer; the session is closed nevertheless.
                let mut object = before.object();
                let now = serde_json::Value::from("1970-01-01T00:00:00Z");
                if let Some(metadata) = object.get_mut("metadata").and_then(|it| it.as_object_mut())
                {
                    metadata.entry("deletionTimestamp").or_insert(now);
                }
                let changed =
                    self.handle.ask(|answer| Input::Update { key, before: None, object, answer });
                changed.await.unwrap_or_else(|| Err(not_running()))?;
            } else if !self.handle.put(Input::DeleteInstance { key }).await {
                return Err(not_running());
            }
            Ok(before)
        }
        .boxed()
    }

    fn recall(&self, key: &object::Key) -> Option<Arc<Record>> {
        self.handle.recall(key).filter(|_| self.sessions)
    }
}
