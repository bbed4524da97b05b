//! Conditions of transactions that depend on data keys and on the registered servers.

use crate::cache::State;
use crate::seal::data_keys;

use super::super::layout::Layout;
use super::super::proto::{Compare, CompareResult, CompareTarget};
use super::super::roster;
use super::super::version::number;

/// The condition that no data key has changed since `state`.
pub(super) fn no_key_changed(layout: &Layout, state: &State) -> Compare {
    let (key, range_end) = layout.range(&data_keys());
    Compare {
        result: CompareResult::Less.into(),
        target: CompareTarget::Mod.into(),
        key,
        create_revision: None,
        mod_revision: Some(number(state.revision) + 1),
        range_end,
    }
}

/// The condition under which a server with a key file writes values in the clear: no data key has
/// changed since `state`, which was loaded before the values were encoded. So no value in the clear
/// follows the transaction that puts a data key into use. `None` if values are sealed, or if there
/// is no key file: then no data key is put into use while this server runs.
pub(in crate::etcd) fn condition_in_the_clear(layout: &Layout, state: &State) -> Option<Compare> {
    let clear = layout.sealer().has_keys() && !layout.sealer().seals();
    clear.then(|| no_key_changed(layout, state))
}

/// The condition that no server has registered since `state`.
pub(super) fn no_server_since(layout: &Layout, state: &State) -> Compare {
    let (key, range_end) = layout.range(&roster::records());
    Compare {
        result: CompareResult::Less.into(),
        target: CompareTarget::Create.into(),
        key,
        create_revision: Some(number(state.revision) + 1),
        mod_revision: None,
        range_end,
    }
}
