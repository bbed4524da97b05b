//! Paths and queries.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes one value of a query or one segment of a path.
#[must_use]
pub fn encode(value: &str) -> String {
    utf8_percent_encode(value, RESERVED).to_string()
}

/// `path?a&b`, without the parts that are empty.
#[must_use]
pub fn with_query(path: &str, parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_and_empty_parts_left_out() {
        assert_eq!(with_query("/api", &["", "a=1", "b=2", ""]), "/api?a=1&b=2");
        assert_eq!(with_query("/api", &["", ""]), "/api");
        assert_eq!(encode("a=b,c in (d)"), "a%3Db%2Cc%20in%20%28d%29");
        assert_eq!(encode("é/a-b_c.d~e"), "%C3%A9%2Fa-b_c.d~e");
    }
}
