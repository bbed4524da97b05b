//! How a value is written to a disk or to etcd: with a checksum that covers its key and itself.
//!
//! A stored value is the value's own text, a line feed, `#`, a digit for the algorithm, and the
//! checksum:
//!
//! ```text
//! {"apiVersion":"v1","kind":"ConfigMap",…}
//! #1a3f09c2e
//! ```
//!
//! So it stays text that `sqlite3` and `etcdctl` show as it is, and every backend writes the same.
//! Algorithm 1 is CRC-32 (IEEE) over the collection, the path and the value: a flipped bit, a
//! value cut short and a value that turned up under another key are all noticed. A CRC protects
//! from accidents, not from an attacker.
//!
//! With encryption at rest a stored value is sealed instead ([`crate::seal`]): it begins with a byte
//! 1, and its tag takes the place of the checksum.
//!
//! Older versions wrote the text alone. It is read as it is: it begins with `{` and has no last
//! line of this shape. A stored value whose last line was damaged cannot be parsed, so it never
//! passes for an old one.

use std::borrow::Cow;

use crate::object::Key;
use crate::seal::{self, Sealer};

/// Separates the value from its checksum.
const MARK: &[u8] = b"\n#";
/// The digit of the algorithm.
const CRC32: u8 = b'1';
/// `MARK`, the algorithm, and eight hexadecimal digits.
const TRAILER: usize = MARK.len() + 1 + 8;

/// Why a stored value is not to be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// It is not what was written, or not where it was written.
    #[error("{key}: checksum is {found}, expected {expected}; the stored value is damaged")]
    Checksum {
        /// Where it was found.
        key: Key,
        /// The checksum of what is there.
        found: String,
        /// The checksum written with it.
        expected: String,
    },
    /// It is encrypted and cannot be opened.
    #[error("{key}: the stored value is encrypted and cannot be opened: {reason}")]
    Sealed {
        /// Where it was found.
        key: Key,
        /// Why.
        reason: String,
    },
    /// It begins like no value of any version.
    #[error("{key}: the stored value is damaged: it does not begin like a value")]
    Unrecognised {
        /// Where it was found.
        key: Key,
    },
    /// It was written by a newer Mainstay.
    #[error(
        "{key}: the stored value has checksum algorithm {algorithm:?}, which this version does not know; use a newer mainstay"
    )]
    Newer {
        /// Where it was found.
        key: Key,
        /// The unknown algorithm.
        algorithm: char,
    },
}

/// Encodes values for storage, and decodes them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Codec {
    sealer: Sealer,
}

impl Codec {
    /// A codec that encrypts with the keys of `sealer`.
    #[must_use]
    pub fn sealing(sealer: Sealer) -> Self {
        Self { sealer }
    }

    /// Encrypts and decrypts values.
    #[must_use]
    pub fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// The bytes to store under `key` for `value`, which begins with `{`.
    #[must_use]
    pub fn encode(&self, key: &Key, value: &[u8]) -> Vec<u8> {
        if let Some(sealed) = self.sealer.seal(key, value) {
            return sealed;
        }
        let mut stored = Vec::with_capacity(value.len() + TRAILER);
        stored.extend_from_slice(value);
        stored.extend_from_slice(MARK);
        stored.push(CRC32);
        stored.extend_from_slice(&hex(checksum(key, value)));
        stored
    }

    /// The value that was stored under `key`, borrowed where it need not be changed.
    ///
    /// # Errors
    /// [`ValueError`] if it is not as it was written. A value of an older version, which has no
    /// checksum, is given back as it is.
    pub fn decode<'a>(&self, key: &Key, stored: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
        if stored.first() == Some(&seal::SEALED) {
            let opened = self.sealer.open(key, stored);
            let opened = opened.map_err(|reason| ValueError::Sealed { key: key.clone(), reason });
            return opened.map(Cow::Owned);
        }
        if stored.first() != Some(&b'{') {
            return Err(ValueError::Unrecognised { key: key.clone() });
        }
        let Some((value, algorithm, expected)) = split(stored) else {
            return Ok(Cow::Borrowed(stored));
        };
        if algorithm != CRC32 {
            return Err(ValueError::Newer { key: key.clone(), algorithm: algorithm.into() });
        }
        let found = hex(checksum(key, value));
        if found != expected {
            let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
            let (found, expected) = (text(&found), text(expected));
            return Err(ValueError::Checksum { key: key.clone(), found, expected });
        }
        Ok(Cow::Borrowed(value))
    }
}

/// Whether a stored value carries a checksum. Values of older versions do not.
#[must_use]
pub fn has_checksum(stored: &[u8]) -> bool {
    stored.first() != Some(&b'{') || split(stored).is_some()
}

/// The value, the algorithm and the digits of the checksum; `None` if there is no such last line.
fn split(stored: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let (value, trailer) = stored.split_at_checked(stored.len().checked_sub(TRAILER)?)?;
    let (algorithm, digits) = trailer.strip_prefix(MARK)?.split_first()?;
    Some((value, *algorithm, digits))
}

/// The checksum of a value and its key.
pub(crate) fn checksum(key: &Key, value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.resource().as_str().as_bytes());
    hasher.update(b"\0");
    hasher.update(key.path().as_bytes());
    hasher.update(b"\0");
    hasher.update(value);
    hasher.finalize()
}

fn hex(sum: u32) -> [u8; 8] {
    let mut digits = [0; 8];
    // Four bytes are always eight digits.
    let _ = hex::encode_to_slice(sum.to_be_bytes(), &mut digits);
    digits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::object::{Body, Resource};

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(&Resource::new("", "configmaps"), Some("default"), name)
    }

    #[test]
    fn values_of_older_versions_are_read_as_they_are() {
        for old in [&b"{}"[..], b"{\"a\":1}", b"{\"metadata\":{\"resourceVersion\":\"\"}}\n33"] {
            assert_eq!(Codec::default().decode(&key("a"), old).as_deref(), Ok(old));
            assert!(!has_checksum(old));
        }
    }

    #[test]
    fn a_stored_value_is_text_whose_last_line_is_the_checksum() {
        let stored = Codec::default().encode(&key("a"), b"{\"a\":1}");
        assert_eq!(std::str::from_utf8(&stored), Ok("{\"a\":1}\n#1fcf7ee1f"));
        assert!(has_checksum(&stored));
    }

    #[test]
    fn a_value_under_another_key_is_noticed() {
        let stored = Codec::default().encode(&key("a"), b"{\"a\":1}");
        let error = Codec::default().decode(&key("b"), &stored).unwrap_err();
        assert!(error.to_string().starts_with("configmaps \"default/b\": checksum is "), "{error}");
    }

    #[test]
    fn an_unknown_algorithm_asks_for_a_newer_version() {
        let error = Codec::default().decode(&key("a"), b"{}\n#701234567").unwrap_err();
        assert_eq!(error, ValueError::Newer { key: key("a"), algorithm: '7' });
    }

    fn body(text: &str) -> Body {
        let object = serde_json::json!({"data": {"text": text}});
        Body::new(object.as_object().unwrap())
    }

    /// Whether a stored value is refused: here or, as a value of an older version, where it is
    /// parsed.
    fn is_refused(codec: &Codec, stored: &[u8]) -> bool {
        codec.decode(&key("a"), stored).map_or(true, |read| Body::from_stored(&read).is_none())
    }

    #[test]
    fn a_checksum_of_decimal_digits_with_a_damaged_mark_does_not_pass_for_an_old_value() {
        let codec = Codec::default();
        let stored = (0..10_000).find_map(|n| {
            let stored = codec.encode(&key("a"), &body(&n.to_string()).to_stored());
            stored[stored.len() - 8..].iter().all(u8::is_ascii_digit).then_some(stored)
        });
        let mut stored = stored.unwrap();
        let mark = stored.len() - TRAILER + 1;
        stored[mark] ^= 1 << 4;
        assert_eq!(stored[mark], b'3', "the last line is a number now");
        assert!(is_refused(&codec, &stored));
    }

    proptest! {
        #[test]
        fn a_value_comes_back_and_no_flipped_bit_passes_for_it(
            text in "\\PC{0,80}", bit in any::<prop::sample::Index>(),
        ) {
            let codec = Codec::default();
            let value = body(&text).to_stored();
            let mut stored = codec.encode(&key("a"), &value);
            let read = codec.decode(&key("a"), &stored).unwrap();
            prop_assert_eq!(&*read, &value[..]);
            let bit = bit.index(stored.len() * 8);
            stored[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(is_refused(&codec, &stored));
        }
    }
}
