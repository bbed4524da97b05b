//! Moments as Kubernetes writes them: RFC 3339 in UTC, to the second or to the microsecond.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment to the second, as `2026-03-01T12:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Timestamp);

impl Time {
    /// The moment, cut off to the second.
    #[must_use]
    pub fn new(moment: Timestamp) -> Self {
        Self(Timestamp::from_second(moment.as_second()).unwrap_or(moment))
    }

    /// The moment.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl From<Timestamp> for Time {
    fn from(moment: Timestamp) -> Self {
        Self::new(moment)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(Self::new)
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

/// A moment to the microsecond, as `2026-03-01T12:00:00.000000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime(Timestamp);

impl MicroTime {
    /// The moment, cut off to the microsecond.
    #[must_use]
    pub fn new(moment: Timestamp) -> Self {
        Self(Timestamp::from_microsecond(moment.as_microsecond()).unwrap_or(moment))
    }

    /// The moment.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl From<Timestamp> for MicroTime {
    fn from(moment: Timestamp) -> Self {
        Self::new(moment)
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(Self::new)
    }
}

impl JsonSchema for MicroTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "MicroTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_to_the_second_and_micro_times_to_the_microsecond() {
        let moment: Timestamp = "2026-03-01T12:00:00.123456789Z".parse().unwrap();
        assert_eq!(Time::new(moment).to_string(), "2026-03-01T12:00:00Z");
        assert_eq!(MicroTime::new(moment).to_string(), "2026-03-01T12:00:00.123456Z");
        let whole: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        assert_eq!(MicroTime::new(whole).to_string(), "2026-03-01T12:00:00.000000Z");
    }

    #[test]
    fn times_with_an_offset_are_read_as_utc() {
        let time: Time = serde_json::from_str("\"2026-03-01T14:00:00.5+02:00\"").unwrap();
        assert_eq!(time.to_string(), "2026-03-01T12:00:00Z");
        assert!(serde_json::from_str::<Time>("\"yesterday\"").is_err());
    }
}
