//! The part of etcd's v3 protocol that the store speaks, written out by hand so that no protobuf
//! compiler is needed. Field numbers are etcd's; fields the store never reads are left out.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::etcd) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(in crate::etcd) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::etcd) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(in crate::etcd) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(in crate::etcd) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(in crate::etcd) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::etcd) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::etcd) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(in crate::etcd) limit: i64,
    #[prost(int64, tag = "4")]
    pub(in crate::etcd) revision: i64,
    #[prost(bool, tag = "9")]
    pub(in crate::etcd) count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::etcd) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::etcd) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(in crate::etcd) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::etcd) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::etcd) value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::etcd) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::etcd) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::etcd) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::etcd) range_end: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::etcd) struct DeleteRangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::etcd) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::etcd) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub(in crate::etcd) request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::etcd) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct ResponseOp {
    #[prost(oneof = "Response", tags = "1, 2, 3")]
    pub(in crate::etcd) response: Option<Response>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(in crate::etcd) enum CompareResult {
    Equal = 0,
    Less = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(in crate::etcd) enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
}

/// A condition on the revision at which a key, or each key of a range, was created or last
/// changed, whichever the target says (0: there is no such key).
#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub(in crate::etcd) result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub(in crate::etcd) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(in crate::etcd) key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    pub(in crate::etcd) create_revision: Option<i64>,
    /// Part of a oneof in etcd, where presence matters, so it is written even when it is 0.
    #[prost(int64, optional, tag = "6")]
    pub(in crate::etcd) mod_revision: Option<i64>,
    /// Empty: this key alone.
    #[prost(bytes = "vec", tag = "64")]
    pub(in crate::etcd) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::etcd) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::etcd) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::etcd) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::etcd) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(in crate::etcd) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::etcd) responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::etcd) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub(in crate::etcd) revision: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::etcd) struct CompactionResponse {}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::etcd) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::etcd) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(in crate::etcd) start_revision: i64,
    #[prost(bool, tag = "8")]
    pub(in crate::etcd) fragment: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct WatchRequest {
    /// The only member of etcd's oneof that is needed.
    #[prost(message, optional, tag = "1")]
    pub(in crate::etcd) create: Option<WatchCreateRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(in crate::etcd) enum EventType {
    Put = 0,
    Delete = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub(in crate::etcd) r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub(in crate::etcd) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::etcd) header: Option<ResponseHeader>,
    #[prost(bool, tag = "3")]
    pub(in crate::etcd) created: bool,
    #[prost(bool, tag = "4")]
    pub(in crate::etcd) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(in crate::etcd) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(in crate::etcd) cancel_reason: String,
    /// More of the same revision follows in the next message.
    #[prost(bool, tag = "7")]
    pub(in crate::etcd) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(in crate::etcd) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(in crate::etcd) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::etcd) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::etcd) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(in crate::etcd) token: String,
}
