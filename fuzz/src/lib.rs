//! Laws of the store's pure parts as functions of any bytes; those of the server stand beside its
//! code, in `mainstay_server::laws`. A law that is broken panics, which is what the fuzzer hunts.

mod apply;
mod selectors;

pub use apply::apply_merge;
pub use selectors::{field_selector, label_selector};

use std::sync::{Arc, LazyLock};

use mainstay_store::registry::{Kind, Registry, builtin};

/// A built-in kind.
fn kind(plural: &str) -> &'static Arc<Kind> {
    static REGISTRY: LazyLock<Registry> =
        LazyLock::new(|| Registry::new(builtin()).expect("the built-in kinds agree"));
    REGISTRY.iter().find(|kind| kind.plural == plural).expect("it is built in")
}
