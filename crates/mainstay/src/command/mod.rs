//! One module a command: its flags, and what it does.

pub(crate) mod agent;
pub(crate) mod apply;
pub(crate) mod backup;
pub(crate) mod capacity;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod disks;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod graph;
pub(crate) mod logs;
pub(crate) mod plan;
pub(crate) mod reference;
pub(crate) mod restore;
pub(crate) mod rules;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod transfer_worker;
pub(crate) mod up;
pub(crate) mod version;
pub(crate) mod wait;
pub(crate) mod watch;
pub(crate) mod world;
