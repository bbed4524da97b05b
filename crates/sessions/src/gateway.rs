//! The gateway: forwards from an external port to an instance.
