//! Deleting objects.

use std::sync::Arc;

use crate::object::{Body, Key};
use crate::objects::Change;
use crate::registry::Kind;
use crate::status::Error;
use crate::strategy::{self, DeleteOptions, Deletion};

use super::{Deleted, Resources, TRIES, WriteOptions, is_race};

impl Resources {
    /// Deletes an object, or marks it as being deleted if finalizers hold it back. Called twice,
    /// the second call finds it marked, or `Reason::NotFound`.
    ///
    /// # Errors
    /// `Reason::NotFound`; `Reason::Conflict` if a precondition does not hold.
    pub async fn delete(
        &self,
        kind: &Kind,
        key: &Key,
        delete: &DeleteOptions,
        options: &WriteOptions,
    ) -> Result<Deleted, Error> {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let record = self.get(kind, key).await?;
            let old = record.object();
            options.touch(&old).await?;
            options.admit(Some(&old), None).await?;
            let now = self.clock.now();
            let keeper = self.keeper(kind).filter(|_| !options.dry_run);
            let written = match strategy::prepare_delete(kind, key, &old, delete, now)? {
                Deletion::AlreadyMarked => return Ok(Deleted::Marked(record)),
                Deletion::Remove if options.dry_run => return Ok(Deleted::Removed(record)),
                Deletion::Remove if let Some(keeper) = keeper => {
                    return keeper.remove(key.clone(), record).await.map(Deleted::Removed);
                }
                Deletion::Mark(object) if let Some(keeper) = keeper => {
                    return keeper.update(key.clone(), record, object).await.map(Deleted::Marked);
                }
                Deletion::Remove => {
                    let change = Change::Delete(record.revision());
                    let written = self.write(kind, key.clone(), change, options).await;
                    written.map(Deleted::Removed)
                }
                Deletion::Mark(object) => {
                    let body = Body::new(&object);
                    if options.dry_run {
                        let marked = body.at(key.clone(), record.created(), record.revision());
                        return Ok(Deleted::Marked(Arc::new(marked)));
                    }
                    let change = Change::Update(record.revision(), body);
                    let written = self.write(kind, key.clone(), change, options).await;
                    written.map(Deleted::Marked)
                }
            };
            match written {
                Err(error) if is_race(&error) && tries > 0 => {}
                other => return other,
            }
        }
    }
}
