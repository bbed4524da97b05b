//! How commands reach the rule engine: its path at a server, and its catalog.

pub(crate) use mainstay_server::engines::{SURFACE, open_catalog};
