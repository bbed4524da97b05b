//! Writing protobuf messages: the little of it that anything here needs.

/// A message under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// The bytes written so far.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }

    /// A whole number; negative ones are sent as their two's complement.
    pub(crate) fn number(&mut self, field: u32, number: i64) {
        self.varint(u64::from(field) << 3);
        self.varint(number.cast_unsigned());
    }

    /// A yes or no.
    pub(crate) fn flag(&mut self, field: u32, flag: bool) {
        self.number(field, i64::from(flag));
    }

    /// A number with a fraction.
    pub(crate) fn double(&mut self, field: u32, number: f64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Bytes, or a text.
    pub(crate) fn bytes(&mut self, field: u32, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A message within.
    pub(crate) fn message(&mut self, field: u32, message: Self) {
        self.bytes(field, message.0);
    }
}
