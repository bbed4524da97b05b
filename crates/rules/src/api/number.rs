//! Whole numbers in JSON, which some clients write as fractions.

use serde_json::Value;

/// A whole number, also when written with a fraction of zero.
#[must_use]
pub fn whole(value: &Value) -> Option<i64> {
    // Beyond this value a float cannot represent every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let fraction = || value.as_f64().filter(|one| one.fract() == 0.0 && one.abs() <= EXACT);
    value.as_i64().or_else(|| fraction().map(|one| one as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_without_fraction_are_whole_numbers() {
        for (value, expected) in [
            (json!(7), Some(7)),
            (json!(1e12), Some(1_000_000_000_000)),
            (json!(-1.0), Some(-1)),
            (json!(0.5), None),
            (json!(1e300), None),
            (json!(u64::MAX), None),
            (json!("7"), None),
            (json!(true), None),
        ] {
            assert_eq!(whole(&value), expected, "{value}");
        }
    }
}
