//! Writes sizes for people: `512 B`, `36 KiB`, `89.99 GiB`.

/// A number of bytes with the largest binary unit that fits, rounded down to two decimals: what is
/// shown as free is free. Whole numbers have no decimals.
#[must_use]
pub fn format(bytes: u64) -> String {
    const UNITS: [(u32, &str); 6] =
        [(60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = UNITS.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let hundredths = (u128::from(bytes) * 100) >> shift;
    match (hundredths / 100, hundredths % 100) {
        (whole, 0) => format!("{whole} {unit}"),
        (whole, part) => format!("{whole}.{part:02} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_rounded_down_to_two_decimals() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (10 << 30, "10 GiB"),
            ((100 << 30) - 1, "99.99 GiB"),
            (500_107_862_016, "465.76 GiB"),
            (u64::MAX, "15.99 EiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(super::format(bytes), expected);
        }
    }
}
