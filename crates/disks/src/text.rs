//! Small words about numbers and flags.

/// Whether a flag is off, hence need not be written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

/// A number of bytes as people say it: `10Gi`, `512Mi`, `1.5Ti`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let mut unit = 0;
    let mut divisor = 1_u64;
    while unit + 1 < UNITS.len() && bytes / divisor >= 1024 {
        divisor *= 1024;
        unit += 1;
    }
    let tenths = (u128::from(bytes) * 10 + u128::from(divisor / 2)) / u128::from(divisor);
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if tenth == 0 {
        format!("{whole}{}", UNITS[unit])
    } else {
        format!("{whole}.{tenth}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_formatted_briefly() {
        let cases = [
            (0, "0"),
            (512, "512"),
            (1024, "1Ki"),
            (1536, "1.5Ki"),
            (10 << 30, "10Gi"),
            (500_107_862_016, "465.8Gi"),
            (u64::MAX, "16384Pi"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(super::size(bytes), expected);
        }
    }
}
