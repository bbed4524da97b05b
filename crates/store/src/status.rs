//! Errors in Kubernetes' wording: a reason, a message for people, and the fields at fault.
//!
//! One [`Error`] serves the whole path from decoding to the store, so that a controller and a
//! client over HTTP get the same error. It holds everything a `Status` body needs; the server only
//! encodes it. No object was changed when one is returned.

use std::fmt::{self, Write as _};

use serde_json::Value;

use crate::object::Key;
use crate::objects;
use crate::registry::Kind;

/// The end of the message for a write that was made from an older version.
pub(crate) const STALE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// The class of a refusal; each has its HTTP status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The request makes no sense as it is.
    BadRequest,
    /// The credentials are not valid.
    Unauthorized,
    /// The caller may not do this, or it may not be done now.
    Forbidden,
    /// There is no such object or path.
    NotFound,
    /// The path does not take this verb.
    MethodNotAllowed,
    /// None of the formats the client accepts can be made.
    NotAcceptable,
    /// There is such an object already.
    AlreadyExists,
    /// The object changed since the caller saw it, or a precondition does not hold.
    Conflict,
    /// The thing asked for is gone for good.
    Gone,
    /// The history asked for is no longer kept: list again.
    Expired,
    /// The body is too large.
    RequestEntityTooLarge,
    /// The body is in a format the server does not read.
    UnsupportedMediaType,
    /// The object breaks rules of its kind; the causes name the fields.
    Invalid,
    /// Too much is asked at once: retry later.
    TooManyRequests,
    /// A fault of ours.
    InternalError,
    /// The server cannot do it at the moment.
    ServiceUnavailable,
    /// No capacity is free at the moment: retry a little later.
    SystemBusy,
    /// It did not happen in time.
    Timeout,
    /// The disk is full: deletions still work.
    InsufficientStorage,
    /// The request did not arrive in time.
    RequestTimeout,
    /// The head of the request is too large.
    RequestHeaderFieldsTooLarge,
}

impl Reason {
    /// The HTTP status code.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Gone | Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::InternalError => 500,
            Self::ServiceUnavailable | Self::SystemBusy => 503,
            Self::Timeout => 504,
            Self::InsufficientStorage => 507,
            Self::RequestTimeout => 408,
            Self::RequestHeaderFieldsTooLarge => 431,
        }
    }

    /// The word clients compare.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Expired => "Expired",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Invalid => "Invalid",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::SystemBusy => "SystemBusy",
            Self::Timeout => "Timeout",
            Self::InsufficientStorage => "InsufficientStorage",
            Self::RequestTimeout => "RequestTimeout",
            Self::RequestHeaderFieldsTooLarge => "RequestHeaderFieldsTooLarge",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One particular of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Its class, as `FieldValueInvalid`.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
    /// The path of the field, as `spec.size`; empty if it is about no field.
    pub field: String,
}

/// The object and the fields that a refusal is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The name of the object.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Its kind or resource, as Kubernetes gives it for the reason.
    pub kind: String,
    /// Its identity, if that was at issue.
    pub uid: String,
    /// Particulars.
    pub causes: Vec<Cause>,
}

/// A refusal, ready to become a Kubernetes `Status`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Its class.
    pub reason: Reason,
    /// The message, in Kubernetes' wording.
    pub message: String,
    /// The object and the fields it is about.
    pub details: Box<Details>,
    /// After how many seconds a retry may help.
    pub retry_after: Option<u32>,
}

impl Error {
    /// A refusal that is about no object in particular.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), details: Box::default(), retry_after: None }
    }

    /// 400 with a message.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 500 with a message.
    #[must_use]
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(Reason::InternalError, format!("Internal error occurred: {message}"))
    }

    fn about(reason: Reason, kind: &Kind, name: &str, message: String) -> Self {
        let details = Details {
            name: name.to_owned(),
            group: kind.group.to_owned(),
            kind: kind.plural.to_owned(),
            ..Details::default()
        };
        Self { reason, message, details: Box::new(details), retry_after: None }
    }

    /// There is no such object.
    #[must_use]
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {} not found", kind.resource(), quoted(name));
        Self::about(Reason::NotFound, kind, name, message)
    }

    /// There is such an object already.
    #[must_use]
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {} already exists", kind.resource(), quoted(name));
        Self::about(Reason::AlreadyExists, kind, name, message)
    }

    /// No free name was found for a `generateName`.
    #[must_use]
    pub fn name_not_generated(kind: &Kind, name: &str) -> Self {
        let mut error = Self::already_exists(kind, name);
        error.message += ", the server was not able to generate a unique name for the object";
        error.retry_after = Some(1);
        error
    }

    /// A precondition does not hold.
    #[must_use]
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {}: {why}", kind.resource(), quoted(name));
        Self::about(Reason::Conflict, kind, name, message)
    }

    /// The object changed since the caller saw it.
    #[must_use]
    pub fn stale(kind: &Kind, name: &str) -> Self {
        Self::conflict(kind, name, STALE)
    }

    /// It may not be done.
    #[must_use]
    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{} {} is forbidden: {why}", kind.resource(), quoted(name));
        Self::about(Reason::Forbidden, kind, name, message)
    }

    /// The object breaks rules of its kind.
    #[must_use]
    pub fn invalid(kind: &Kind, name: &str, violations: Vec<Violation>) -> Self {
        let mut message = if kind.group.is_empty() {
            kind.kind.to_owned()
        } else {
            format!("{}.{}", kind.kind, kind.group)
        };
        let _ = write!(message, " {} is invalid: ", quoted(name));
        if let [violation] = violations.as_slice() {
            let _ = write!(message, "{violation}");
        } else {
            let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
            let _ = write!(message, "[{}]", all.join(", "));
        }
        let mut error = Self::about(Reason::Invalid, kind, name, message);
        error.details.kind = kind.kind.to_owned();
        error.details.causes = violations.into_iter().map(Violation::into_cause).collect();
        error
    }

    /// The error for an object of `kind` that the store returned.
    #[must_use]
    pub fn from_store(kind: &Kind, name: &str, error: objects::Error) -> Self {
        match error {
            objects::Error::AlreadyExists { .. } => Self::already_exists(kind, name),
            objects::Error::NotFound { .. } => Self::not_found(kind, name),
            objects::Error::Conflict { .. } => Self::stale(kind, name),
            objects::Error::Fenced { .. } => Self::conflict(kind, name, &error.to_string()),
            objects::Error::Expired { requested, oldest } => Self::new(
                Reason::Expired,
                format!("too old resource version: {requested} ({oldest})"),
            ),
            objects::Error::TooNew { requested, current } => {
                let message =
                    format!("Too large resource version: {requested}, current: {current}");
                let mut error = Self::new(Reason::Timeout, format!("Timeout: {message}"));
                error.retry_after = Some(1);
                error.details.causes.push(Cause {
                    reason: "ResourceVersionTooLarge",
                    message: "Too large resource version".to_owned(),
                    field: String::new(),
                });
                error
            }
            objects::Error::TooLarge { size, limit, .. } => Self::about(
                Reason::RequestEntityTooLarge,
                kind,
                name,
                format!("Request entity too large: {size} bytes, the limit is {limit}"),
            ),
            objects::Error::Busy { .. } => {
                let mut busy = Self::new(Reason::TooManyRequests, error.to_string());
                busy.retry_after = Some(1);
                busy
            }
            objects::Error::Full { reason } => {
                Self::about(Reason::InsufficientStorage, kind, name, reason)
            }
            objects::Error::Refused { reason, message } => Self::about(reason, kind, name, message),
            objects::Error::Unavailable { .. } | objects::Error::Closed => {
                let mut unavailable = Self::new(Reason::ServiceUnavailable, error.to_string());
                unavailable.retry_after = Some(1);
                unavailable
            }
        }
    }

    /// Whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    /// Whether the object exists already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.reason == Reason::AlreadyExists
    }

    /// Whether the caller's version was out of date.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.reason == Reason::Conflict
    }
}

/// Which object a key names, as Kubernetes says it in messages about several collections.
#[must_use]
pub fn named(key: &Key) -> String {
    format!("{} {}", key.resource(), quoted(key.name()))
}

/// One broken rule: which field, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The path of the field, as `spec.replicas` or `metadata.labels[a]`.
    pub field: String,
    /// The class of the violation.
    pub class: Class,
    /// The bad value and what would be right.
    pub message: String,
}

/// The class of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The value breaks a rule.
    Invalid,
    /// The value has the wrong type.
    TypeInvalid,
    /// The value is missing.
    Required,
    /// The value occurs twice.
    Duplicate,
    /// The value is none of those allowed.
    NotSupported,
    /// The value must not be set here.
    Forbidden,
    /// The value is too long.
    TooLong,
    /// There are too many values.
    TooMany,
    /// The value names an object that does not exist.
    NotFound,
}

impl Class {
    /// The reason given in `details.causes`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
        }
    }
}

impl Violation {
    fn new(field: impl Into<String>, class: Class, message: String) -> Self {
        Self { field: field.into(), class, message }
    }

    /// The value breaks a rule, which `detail` states.
    #[must_use]
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let message = joined("Invalid value", Some(value), detail);
        Self::new(field, Class::Invalid, message)
    }

    /// The value has the wrong type; `value` is the name of the type it has.
    #[must_use]
    pub fn type_invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        let message = format!("Invalid value: {}: {detail}", quoted(value));
        Self::new(field, Class::TypeInvalid, message)
    }

    /// The value is missing; `detail` may be empty.
    #[must_use]
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, Class::Required, joined("Required value", None, detail))
    }

    /// The value occurs twice in a list that allows it once.
    #[must_use]
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        let message = joined("Duplicate value", Some(value), "");
        Self::new(field, Class::Duplicate, message)
    }

    /// The value is none of `supported`.
    #[must_use]
    pub fn not_supported<S: AsRef<str>>(
        field: impl Into<String>,
        value: &Value,
        supported: &[S],
    ) -> Self {
        let all: Vec<String> = supported.iter().map(|one| quoted(one.as_ref())).collect();
        let detail = format!("supported values: {}", all.join(", "));
        let message = joined("Unsupported value", Some(value), &detail);
        Self::new(field, Class::NotSupported, message)
    }

    /// The value must not be set, for the reason in `detail`.
    #[must_use]
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, Class::Forbidden, joined("Forbidden", None, detail))
    }

    /// The value is longer than `limit` bytes.
    #[must_use]
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        let message = format!("Too long: may not be more than {limit} bytes");
        Self::new(field, Class::TooLong, message)
    }

    /// There are more than `limit` values.
    #[must_use]
    pub fn too_many(field: impl Into<String>, actual: usize, limit: usize) -> Self {
        let message = format!("Too many: {actual}: must have at most {limit} items");
        Self::new(field, Class::TooMany, message)
    }

    /// The value names an object that does not exist.
    #[must_use]
    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self::new(field, Class::NotFound, joined("Not found", Some(value), ""))
    }

    /// The value was set for good when the object was created.
    #[must_use]
    pub fn immutable(field: impl Into<String>, value: &Value) -> Self {
        Self::invalid(field, value, "field is immutable")
    }

    fn into_cause(self) -> Cause {
        Cause { reason: self.class.as_str(), message: self.message, field: self.field }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn joined(head: &str, value: Option<&Value>, detail: &str) -> String {
    let mut text = head.to_owned();
    if let Some(value) = value {
        let _ = write!(text, ": {}", shown(value));
    }
    if !detail.is_empty() {
        let _ = write!(text, ": {detail}");
    }
    text
}

/// A value as it is shown to people: in full unless it is very long.
fn shown(value: &Value) -> String {
    const SHOWN: usize = 1024;
    let mut text = value.to_string();
    if text.len() > SHOWN {
        let end = (0..=SHOWN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// A string in double quotes, with what could confuse a reader escaped.
#[must_use]
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
