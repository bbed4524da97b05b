//! Amounts with a suffix: `100m`, `1.5Gi`, `2e3`.
//!
//! A quantity is kept exactly, in billionths, together with the family of suffixes it was written
//! in. It is written back in canonical form: no fraction, the largest suffix that leaves a whole
//! number. Two quantities are equal if they are the same amount, however they were written.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Add, Sub};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One, in billionths.
const ONE: i128 = 1_000_000_000;

const DECIMAL: [(&str, u32); 10] = [
    ("n", 0),
    ("u", 3),
    ("m", 6),
    ("", 9),
    ("k", 12),
    ("M", 15),
    ("G", 18),
    ("T", 21),
    ("P", 24),
    ("E", 27),
];

const BINARY: [(&str, u32); 7] =
    [("", 0), ("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// The family of suffixes a quantity was written in.
#[derive(Clone, Copy, Debug)]
enum Family {
    Decimal,
    Binary,
    Exponent,
}

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct QuantityError;

/// An amount with a suffix, as `100m` or `1.5Gi`.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    billionths: i128,
    family: Family,
}

impl Quantity {
    /// A whole number of bytes, written with binary suffixes.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        Self { billionths: i128::from(bytes) * ONE, family: Family::Binary }
    }

    /// A whole number, written with decimal suffixes.
    #[must_use]
    pub fn whole(number: i64) -> Self {
        Self { billionths: i128::from(number) * ONE, family: Family::Decimal }
    }

    /// A number of thousandths, as processors are counted.
    #[must_use]
    pub fn milli(thousandths: i64) -> Self {
        Self { billionths: i128::from(thousandths) * (ONE / 1000), family: Family::Decimal }
    }

    /// The amount as a whole number, rounded up; cut off at the ends of the range.
    #[must_use]
    pub fn value(self) -> i64 {
        let whole =
            self.billionths.div_euclid(ONE) + i128::from(self.billionths.rem_euclid(ONE) != 0);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// The amount in thousandths, rounded up; cut off at the ends of the range.
    #[must_use]
    pub fn milli_value(self) -> i64 {
        const MILLI: i128 = ONE / 1000;
        let whole =
            self.billionths.div_euclid(MILLI) + i128::from(self.billionths.rem_euclid(MILLI) != 0);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.billionths == 0
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { billionths: self.billionths.saturating_add(other.billionths), family: self.family }
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { billionths: self.billionths.saturating_sub(other.billionths), family: self.family }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.billionths == other.billionths
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.billionths.cmp(&other.billionths)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.billionths.hash(state);
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end =
            unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (digits, suffix) = unsigned.split_at(end);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(QuantityError);
        }
        let (family, scale) = scale(suffix)?;
        let billionths = scaled(whole, fraction, scale);
        Ok(Self { billionths: if negative { -billionths } else { billionths }, family })
    }
}

/// The factor of a unit in billionths: ten to a power, times two to a power.
#[derive(Clone, Copy)]
struct Scale {
    ten: i32,
    two: u32,
}

fn scale(suffix: &str) -> Result<(Family, Scale), QuantityError> {
    if let Some((_, ten)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        let ten = i32::try_from(*ten).map_err(|_| QuantityError)?;
        return Ok((Family::Decimal, Scale { ten, two: 0 }));
    }
    if let Some((_, two)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Ok((Family::Binary, Scale { ten: 9, two: *two }));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError)?;
    let exponent: i32 = exponent.parse().map_err(|_| QuantityError)?;
    let ten = exponent.clamp(-100, 100) + 9;
    Ok((Family::Exponent, Scale { ten, two: 0 }))
}

/// The amount in billionths, rounded up, cut off where it grows beyond all use.
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    /// Kubernetes caps amounts at 2⁶³ − 1; this leaves room for sums.
    const CAP: i128 = (i64::MAX as i128) * ONE;
    let fraction = fraction.trim_end_matches('0');
    let mut digits = whole.trim_start_matches('0').to_owned();
    digits.push_str(fraction);
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    let fraction_length = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let mut exponent = scale.ten.saturating_sub(fraction_length);
    let mut rounded = false;
    // More digits than a number holds: those past the point of interest only matter for rounding.
    let kept = if digits.len() > 28 {
        let dropped = i32::try_from(digits.len() - 28).unwrap_or(i32::MAX);
        exponent = exponent.saturating_add(dropped);
        rounded = digits[28..].bytes().any(|digit| digit != b'0');
        &digits[..28]
    } else {
        digits
    };
    let Ok(number) = kept.parse::<i128>() else {
        return CAP;
    };
    let Some(mut number) = number.checked_mul(1_i128 << scale.two.min(20)) else {
        return CAP;
    };
    let mut two = scale.two.saturating_sub(20);
    while exponent < 0 && number > 0 {
        // Binary scale first while there is room, so that a fraction of a Gi stays exact.
        if two > 0 && number < i128::MAX >> 8 {
            number <<= 1;
            two -= 1;
            continue;
        }
        rounded |= number % 10 != 0;
        number /= 10;
        exponent += 1;
    }
    while two > 0 {
        number = number.saturating_mul(2);
        two -= 1;
    }
    while exponent > 0 && number < CAP {
        number = number.saturating_mul(10);
        exponent -= 1;
    }
    (number + i128::from(rounded)).min(CAP)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.billionths == 0 {
            return f.write_str("0");
        }
        match self.family {
            Family::Binary if self.billionths.abs() >= 1024 * ONE => {
                let whole = self.billionths.div_euclid(ONE)
                    + i128::from(self.billionths.rem_euclid(ONE) != 0);
                let fits = |(_, two): &&(&str, u32)| whole % (1_i128 << two) == 0;
                let (suffix, two) = BINARY.iter().rev().find(fits).unwrap_or(&BINARY[0]);
                write!(f, "{}{suffix}", whole >> two)
            }
            Family::Exponent => {
                let fits = |(_, ten): &&(&str, u32)| self.billionths % 10_i128.pow(*ten) == 0;
                let (_, ten) = DECIMAL.iter().rev().find(fits).unwrap_or(&DECIMAL[0]);
                write!(f, "{}", self.billionths / 10_i128.pow(*ten))?;
                match i64::from(*ten) - 9 {
                    0 => Ok(()),
                    exponent => write!(f, "e{exponent}"),
                }
            }
            Family::Binary | Family::Decimal => {
                let fits = |(_, ten): &&(&str, u32)| self.billionths % 10_i128.pow(*ten) == 0;
                let (suffix, ten) = DECIMAL.iter().rev().find(fits).unwrap_or(&DECIMAL[0]);
                write!(f, "{}{suffix}", self.billionths / 10_i128.pow(*ten))
            }
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity::whole(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity::whole(i64::try_from(number).unwrap_or(i64::MAX)))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"format": "quantity", "x-kubernetes-int-or-string": true})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_have_one_canonical_form() {
        for (text, canonical) in [
            ("0", "0"),
            ("0.0", "0"),
            ("1", "1"),
            ("+5", "5"),
            ("-1.5", "-1500m"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("1Ki", "1Ki"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1e3", "1e3"),
            ("1.5e3", "1500"),
            ("9E", "9E"),
            ("1E3", "1e3"),
            ("0.0000000001", "1n"),
            ("64Gi", "64Gi"),
            (".5", "500m"),
            ("5.", "5"),
        ] {
            let quantity: Quantity = text.parse().unwrap();
            assert_eq!(quantity.to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in ["", ".", "1.2.3", "1KB", "one", "1e", "1ki", "--1", "1 Gi", "Gi"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_compare_by_amount() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(quantity("1Ki"), quantity("1024"));
        assert!(quantity("1Ki") > quantity("1k"));
        assert!(quantity("999m") < quantity("1"));
        assert_eq!(quantity("1.1").value(), 2);
        assert_eq!(quantity("1.1").milli_value(), 1100);
        assert_eq!(quantity("999999999999999999999E").value(), i64::MAX);
    }

    proptest! {
        #[test]
        fn the_canonical_form_means_the_same(
            number in 0_u64..1_000_000_000,
            fraction in 0_u32..1000,
            suffix in prop::sample::select(vec![
                "n", "u", "m", "", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3",
            ]),
        ) {
            let text = format!("{number}.{fraction:03}{suffix}");
            let quantity: Quantity = text.parse().unwrap();
            let again: Quantity = quantity.to_string().parse().unwrap();
            // A binary quantity is written as a whole number, maybe without a suffix.
            if suffix.ends_with('i') {
                prop_assert_eq!(quantity.value(), again.value());
            } else {
                prop_assert_eq!(quantity, again);
                prop_assert_eq!(again.to_string(), quantity.to_string());
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+0-9.eEinumkKMGTP]{0,60}") {
            let _ = text.parse::<Quantity>().map(|quantity| quantity.to_string());
        }
    }
}
