//! Which operations a descriptor implements, read from its `impl` block.
//!
//! The four operations of [`Descriptor`] have default bodies that return [`NotImplemented`]. An
//! operation that the `impl` block writes itself returns another type, so comparing the two types
//! tells them apart, without calling anything: an operation cannot be implemented and yet forgotten,
//! nor missing and yet called.

use std::any::TypeId;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::BitAnd;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use super::{Context, Descriptor, Known, OperationError, RetrievedBy, ValueOf};
use crate::key::Key;

/// Which operations a descriptor implements.
///
/// ```
/// use mainstay_graph::Abilities;
///
/// let abilities = Abilities::ALL.without_update().without_retrieve();
/// assert!(abilities.create && !abilities.update && !abilities.retrieve);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// Without it, creating a value is an error that is not retried.
    pub create: bool,
    /// Without it, every change of a value is a deletion and a creation.
    pub update: bool,
    /// Without it, deleting a value is an error that is not retried.
    pub delete: bool,
    /// Without it, a refresh leaves the descriptor's values as they are.
    pub retrieve: bool,
}

impl Abilities {
    /// Every operation.
    pub const ALL: Self = Self { create: true, update: true, delete: true, retrieve: true };

    /// The operations that the `impl` block of a descriptor contains.
    pub fn of<D: Descriptor>() -> Self {
        Self {
            create: creates::<D, _>(D::create),
            update: updates::<D, _>(D::update),
            delete: deletes::<D, _>(D::delete),
            retrieve: retrieves::<D, _>(D::retrieve),
        }
    }

    /// The same without creation.
    #[must_use]
    pub const fn without_create(self) -> Self {
        Self { create: false, ..self }
    }

    /// The same without updates: every change deletes and creates.
    #[must_use]
    pub const fn without_update(self) -> Self {
        Self { update: false, ..self }
    }

    /// The same without deletion.
    #[must_use]
    pub const fn without_delete(self) -> Self {
        Self { delete: false, ..self }
    }

    /// The same without retrieval.
    #[must_use]
    pub const fn without_retrieve(self) -> Self {
        Self { retrieve: false, ..self }
    }
}

impl BitAnd for Abilities {
    type Output = Self;

    /// The operations that both have.
    fn bitand(self, other: Self) -> Self {
        Self {
            create: self.create && other.create,
            update: self.update && other.update,
            delete: self.delete && other.delete,
            retrieve: self.retrieve && other.retrieve,
        }
    }
}

/// The result of an operation that a descriptor does not implement.
pub(super) struct NotImplemented<T> {
    operation: &'static str,
    result: PhantomData<fn() -> T>,
}

impl<T> NotImplemented<T> {
    pub(super) fn new(operation: &'static str) -> Self {
        Self { operation, result: PhantomData }
    }
}

impl<T> Future for NotImplemented<T> {
    type Output = Result<T, OperationError>;

    fn poll(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let reason = format!("{} is not implemented", self.operation);
        Poll::Ready(Err(OperationError::permanent(reason)))
    }
}

/// Whether a function that returns `R` is not a default body whose result is `T`.
fn is_own<T: 'static, R: 'static>() -> bool {
    TypeId::of::<R>() != TypeId::of::<NotImplemented<T>>()
}

fn creates<D: Descriptor, R: 'static>(
    _: impl FnOnce(&'static D, &'static Context, &'static Key, &'static ValueOf<D>) -> R,
) -> bool {
    is_own::<D::Metadata, R>()
}

fn updates<D: Descriptor, R: 'static>(
    _: impl FnOnce(
        &'static D,
        &'static Context,
        &'static Key,
        &'static ValueOf<D>,
        &'static ValueOf<D>,
        Option<&'static D::Metadata>,
    ) -> R,
) -> bool {
    is_own::<Option<D::Metadata>, R>()
}

fn deletes<D: Descriptor, R: 'static>(
    _: impl FnOnce(
        &'static D,
        &'static Context,
        &'static Key,
        &'static ValueOf<D>,
        Option<&'static D::Metadata>,
    ) -> R,
) -> bool {
    is_own::<(), R>()
}

fn retrieves<D: Descriptor, R: 'static>(
    _: impl FnOnce(
        &'static D,
        &'static Context,
        &'static [Known<'static, ValueOf<D>, D::Metadata>],
    ) -> R,
) -> bool {
    is_own::<RetrievedBy<D>, R>()
}
