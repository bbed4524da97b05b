//! The `Status` that a server answers when it refuses a request.

use std::fmt;

use serde::Deserialize;

/// An answer that is not a success.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The reason, as one word.
    pub reason: String,
    /// The reason, for people.
    pub message: String,
    /// More about it.
    pub details: Option<Details>,
}

/// More about a refusal.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    /// The fields that are wrong.
    pub causes: Option<Vec<Cause>>,
    /// When a busy server wants to be asked again.
    pub retry_after_seconds: Option<u64>,
}

/// One field that is wrong.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// The reason, as one word.
    pub reason: String,
    /// The path of the field.
    pub field: String,
    /// The reason, for people.
    pub message: String,
}

impl Status {
    /// Reads an error body; of a body that is not a `Status` the first line is the message.
    #[must_use]
    pub fn parse(code: http::StatusCode, body: &[u8]) -> Self {
        let mut status = serde_json::from_slice::<Self>(body)
            .ok()
            .filter(|status| !status.message.is_empty() || !status.reason.is_empty())
            .unwrap_or_else(|| Self { message: excerpt(body), ..Self::default() });
        status.code = code.as_u16();
        if status.message.is_empty() {
            status.message = code
                .canonical_reason()
                .map_or_else(|| format!("the server answered {code}"), str::to_owned);
        }
        status
    }

    /// From the object of an `ERROR` event in a watch.
    #[must_use]
    pub fn from_event(object: serde_json::Value) -> Self {
        serde_json::from_value(object).unwrap_or_else(|_| Self {
            message: "the server ended the watch with an unknown error".to_owned(),
            ..Self::default()
        })
    }

    /// The object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// The requested version has been compacted away: list again.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.code == 410
    }

    /// The fields that another manager owns with another value, each with a message.
    pub fn conflicts(&self) -> impl Iterator<Item = (&str, &str)> {
        let causes = self.details.iter().flat_map(|details| details.causes.iter().flatten());
        causes
            .filter(|cause| cause.reason == "FieldManagerConflict")
            .map(|cause| (cause.field.as_str(), cause.message.as_str()))
    }

    /// The request itself is invalid: sending it again does not help.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        matches!(self.code, 400 | 413 | 415 | 422)
    }
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        let causes =
            self.details.as_ref().and_then(|details| details.causes.as_deref()).unwrap_or_default();
        for cause in causes {
            if !self.message.contains(&cause.message) {
                write!(f, "\n  {}: {}", cause.field, cause.message)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_body_becomes_a_message() {
        let cases = [
            (
                404,
                r#"{"kind":"Status","reason":"NotFound","message":"x not found"}"#,
                "x not found (NotFound)",
            ),
            (
                422,
                r#"{"reason":"Invalid","message":"x is invalid","details":{"causes":[{"field":"spec.a","message":"must be 1"}]}}"#,
                "x is invalid (Invalid)\n  spec.a: must be 1",
            ),
            (502, "<html>\nlong", "<html>"),
            (503, "", "Service Unavailable"),
            (400, "[1]", "[1]"),
        ];
        for (code, body, expected) in cases {
            let code = http::StatusCode::from_u16(code).unwrap();
            assert_eq!(Status::parse(code, body.as_bytes()).to_string(), expected);
        }
    }
}
