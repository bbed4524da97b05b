//! Writes that every reconciler makes: a status, a finalizer, an object that may be gone by then.
//!
//! Each reads the object afresh and tries again if it changed meanwhile, so that calling it twice is
//! the same as calling it once. An object that is gone is no error: nothing is left to write.

use mainstay_store::object::Revision;
use mainstay_store::registry::Typed;
use mainstay_store::resources::{Error, Resources, Subresource, WriteOptions};

/// Options of a write by the field manager `manager`.
#[must_use]
pub fn options(manager: &str) -> WriteOptions {
    WriteOptions { manager: manager.to_owned(), ..WriteOptions::default() }
}

/// The result, or `None` if the object is gone.
///
/// # Errors
/// Every error but "not found".
pub fn or_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets `edit` change the status of an object, and returns the object as it is then; `None` if it is
/// gone. A status that `edit` leaves as it is is not written.
///
/// # Errors
/// As [`Resources::modify`], except "not found".
pub async fn set_status<T: Typed>(
    resources: &Resources,
    namespace: Option<&str>,
    name: &str,
    manager: &str,
    edit: impl FnMut(&mut T) + Send,
) -> Result<Option<T>, Error> {
    let status = Some(Subresource::Status);
    let written = resources.modify_as(namespace, name, status, &options(manager), edit).await;
    Ok(or_gone(written)?.map(|(object, _)| object))
}

/// Removes a finalizer, and with the last one an object that is being deleted. Does nothing if the
/// object is gone or does not have it.
///
/// # Errors
/// As [`Resources::modify`], except "not found".
pub async fn remove_finalizer<T: Typed>(
    resources: &Resources,
    namespace: Option<&str>,
    name: &str,
    manager: &str,
    finalizer: &str,
) -> Result<(), Error> {
    let remove = |object: &mut T| {
        object.metadata_mut().finalizers.retain(|entry| entry != finalizer);
    };
    let written = resources.modify_as(namespace, name, None, &options(manager), remove).await;
    or_gone(written).map(drop)
}

/// The revision an object was read or written at: what [`crate::Reflector::wait_until_at`] takes.
#[must_use]
pub fn revision<T: Typed>(object: &T) -> Revision {
    object.metadata().resource_version.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use mainstay_store::builtin::{ConfigMap, Node};
    use mainstay_store::resources::DeleteOptions;

    use super::*;
    use crate::testing::{config, world};

    #[tokio::test]
    async fn an_object_that_is_gone_is_no_error() {
        let (resources, _) = world().await;
        let unschedulable = |node: &mut Node| node.spec.unschedulable = Some(true);
        let written = set_status(&resources, None, "gone", "test", unschedulable).await;
        assert_eq!(written.unwrap(), None);
        remove_finalizer::<Node>(&resources, None, "gone", "test", "test.dev/held").await.unwrap();
    }

    #[tokio::test]
    async fn the_last_finalizer_removes_an_object_that_is_being_deleted() {
        let (resources, _) = world().await;
        let mut held = config("held", &[]);
        held.metadata.finalizers = vec!["test.dev/held".to_owned()];
        let options = options("test");
        resources.create_as(&held, &options).await.unwrap();
        let delete = DeleteOptions::default();
        let namespace = Some("default");
        resources.delete_as::<ConfigMap>(namespace, "held", &delete, &options).await.unwrap();
        let there = async || resources.get_as::<ConfigMap>(namespace, "held").await.unwrap();
        for (finalizer, gone) in [("test.dev/other", false), ("test.dev/held", true)] {
            let removed =
                remove_finalizer::<ConfigMap>(&resources, namespace, "held", "test", finalizer);
            removed.await.unwrap();
            assert_eq!(there().await.is_none(), gone, "{finalizer}");
        }
    }
}
