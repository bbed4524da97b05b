//! What the engine does in a second, measured.

pub mod server;
