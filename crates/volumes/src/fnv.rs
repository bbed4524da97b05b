//! The FNV-1a hash with 128 bits, for short names that are the same on every machine.

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// The hash of these parts, with a zero byte between them.
#[must_use]
pub(crate) fn fnv1a_128(parts: &[&[u8]]) -> u128 {
    let mut hash = OFFSET;
    let mut add = |byte: u8| hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            add(0);
        }
        part.iter().copied().for_each(&mut add);
    }
    hash
}
