//! Protobuf messages of `prost` as values, without serde.
//!
//! [`proto_value!`](crate::proto_value) makes a message a [`ValueType`](crate::ValueType), so that a
//! [`Model`](crate::Model) can have it as its value as it can have a type that serde knows; both kinds
//! may be registered in one engine. The messages are shown, journalled and sent in the JSON mapping of
//! protobuf: enum values by name, fields in camel case, unset fields left out. Field names as in the
//! `.proto` file are read too, unknown fields are refused.
//!
//! The descriptor of the messages is the encoded `FileDescriptorSet` that `protoc` writes with
//! `--descriptor_set_out` (and `--include_imports`), and `prost-build` with
//! `file_descriptor_set_path`. The example `proto_values` is a whole program.

use std::sync::OnceLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::Value as Json;

/// The descriptor of one message. Used by [`proto_value!`](crate::proto_value).
#[derive(Debug)]
pub struct Schema {
    name: &'static str,
    descriptors: &'static [u8],
    message: OnceLock<Result<MessageDescriptor, String>>,
}

impl Schema {
    /// The message with this full name in an encoded `FileDescriptorSet`.
    pub const fn new(name: &'static str, descriptors: &'static [u8]) -> Self {
        Self { name, descriptors, message: OnceLock::new() }
    }

    /// The message as JSON.
    ///
    /// # Errors
    /// Fails if the descriptor does not fit the message.
    pub fn to_json<M: Message>(&self, message: &M) -> Result<Json, String> {
        let bytes = message.encode_to_vec();
        let message = DynamicMessage::decode(self.message()?, bytes.as_slice());
        let message = message.map_err(|error| self.problem(&error))?;
        serde_json::to_value(&message).map_err(|error| self.problem(&error))
    }

    /// Reads a message from JSON.
    ///
    /// # Errors
    /// Fails if the JSON does not fit the message; the text names the field.
    pub fn from_json<M: Message + Default>(&self, json: Json) -> Result<M, String> {
        let message = DynamicMessage::deserialize(self.message()?, json);
        let message = message.map_err(|error| self.problem(&error))?;
        message.transcode_to().map_err(|error| self.problem(&error))
    }

    fn message(&self) -> Result<MessageDescriptor, String> {
        self.message.get_or_init(|| self.find()).clone()
    }

    fn find(&self) -> Result<MessageDescriptor, String> {
        let pool = DescriptorPool::decode(self.descriptors);
        let pool = pool.map_err(|error| format!("the descriptor of {}: {error}", self.name))?;
        let found = pool.get_message_by_name(self.name);
        found.ok_or_else(|| format!("the descriptor has no message {}", self.name))
    }

    fn problem(&self, error: &dyn std::fmt::Display) -> String {
        format!("{}: {error}", self.name)
    }
}

/// Makes a message of `prost` a [`ValueType`](crate::ValueType): the Rust type, its full name, and the
/// bytes of the encoded `FileDescriptorSet`.
///
/// ```ignore
/// mainstay_graph::proto_value!(Interface, "switch.v1.Interface", include_bytes!("switch.pb"));
/// ```
#[macro_export]
macro_rules! proto_value {
    ($message:ty, $name:expr, $descriptors:expr) => {
        const _: () = {
            static SCHEMA: $crate::proto::Schema = $crate::proto::Schema::new($name, $descriptors);

            impl $crate::ValueType for $message {
                fn to_json(&self) -> ::std::result::Result<$crate::proto::JsonValue, String> {
                    SCHEMA.to_json(self)
                }

                fn from_json(
                    json: $crate::proto::JsonValue,
                ) -> ::std::result::Result<Self, String> {
                    SCHEMA.from_json(json)
                }

                fn weight(&self) -> usize {
                    $crate::proto::weight(self)
                }
            }
        };
    };
}

#[doc(hidden)]
pub use serde_json::Value as JsonValue;

/// The number of bytes that an encoded message takes.
#[doc(hidden)]
pub fn weight(message: &impl Message) -> usize {
    message.encoded_len()
}
