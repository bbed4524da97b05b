//! The options of a write, and its result.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::admission::{Admission, Proposed};
use crate::apply::Writer;
use crate::object::Record;
use crate::objects::Fence;
use crate::status::Error;
use crate::strategy::{Subresource, Validation};

/// How a write is done.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Everything but the writing.
    pub dry_run: bool,
    /// How unknown fields are treated.
    pub validation: Validation,
    /// The writer's name for `metadata.managedFields`; no holder is noted if it is empty.
    pub manager: String,
    /// Whether an applier takes over fields that others hold.
    pub force: bool,
    /// Paths of fields that occurred twice in the body.
    pub duplicates: Vec<String>,
    /// The lease under which it is written; wins over that of [`Resources::fenced`](super::Resources::fenced).
    pub fence: Option<Fence>,
    /// Judges the write on the object as it would be stored; without one, everything is admitted.
    pub admission: Option<Arc<dyn Admission>>,
}

impl WriteOptions {
    pub(super) fn writer(
        &self,
        subresource: Option<Subresource>,
        now: jiff::Timestamp,
    ) -> Writer<'_> {
        Writer { manager: &self.manager, subresource, now }
    }

    pub(super) async fn touch(&self, stored: &Map<String, Value>) -> Result<(), Error> {
        match &self.admission {
            None => Ok(()),
            Some(admission) => admission.touch(stored).await,
        }
    }

    pub(super) async fn admit(
        &self,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) -> Result<(), Error> {
        match &self.admission {
            None => Ok(()),
            Some(admission) => admission.admit(Proposed { old, new }).await,
        }
    }
}

/// How a write came about, which decides who is noted as the holder of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The writer holds the fields that changed.
    Update,
    /// The configuration says it already.
    Apply,
}

/// The effect of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The object is new.
    Created,
    /// The object changed.
    Changed,
    /// The object was so already: nothing was written.
    Unchanged,
    /// The last finalizer went, and the object with it.
    Removed,
}

/// A write that went well.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object as it is now.
    pub record: Arc<Record>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// The effect.
    pub effect: Effect,
}

/// A deletion that went well.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// The object is gone; this is what it last was.
    Removed(Arc<Record>),
    /// Finalizers hold it back; it goes when they are gone.
    Marked(Arc<Record>),
}

impl Deleted {
    /// The object.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        match self {
            Self::Removed(record) | Self::Marked(record) => record,
        }
    }
}
