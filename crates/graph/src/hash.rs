//! Maps and sets that hash quickly.
//!
//! Keys are short, their numbers are shorter, and every operation looks several of them up. The hash
//! folds eight bytes at a time by a multiplication; its seed differs in every process, so that a user
//! cannot choose keys that collide. Numbers of keys are assigned and read in about the same order:
//! neighbours stay neighbours in a table, so that a walk through a large graph reads memory in order.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Quick>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, Quick>;

/// Makes hashers that begin at the seed of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quick(u64);

impl Default for Quick {
    fn default() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        Self(*SEED.get_or_init(|| RandomState::new().build_hasher().finish()))
    }
}

impl BuildHasher for Quick {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding(self.0)
    }
}

pub(crate) struct Folding(u64);

impl Folding {
    fn fold(&mut self, word: u64) {
        const FACTOR: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        let product = u128::from(self.0 ^ word).wrapping_mul(FACTOR);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last) ^ bytes.len() as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.fold(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        const TAG: u64 = 0x7F << 57;
        let number = u64::from(number);
        // Different numbers stay different in the low bits, also if they are far apart; the high
        // bits distinguish numbers that share a bucket.
        let tag = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) & TAG;
        self.0 ^= (number ^ (number >> 11)) | tag;
    }

    fn write_u64(&mut self, number: u64) {
        self.fold(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.fold(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_little_are_spread_evenly() {
        let quick = Quick(7);
        for low in [0, 57] {
            let mut buckets = [0_usize; 128];
            for number in 0..12_800 {
                let hash = quick.hash_one(format!("interface/{number:06}"));
                buckets[(hash >> low & 127) as usize] += 1;
            }
            assert!(buckets.iter().all(|count| (50..200).contains(count)), "{buckets:?}");
        }
        assert_ne!(quick.hash_one("ab"), quick.hash_one("ab\0"));
        assert_ne!(quick.hash_one(1_u32), quick.hash_one(2_u32));
    }

    #[test]
    fn numbers_share_no_place_whether_they_are_near_or_far_apart() {
        let quick = Quick(7);
        for step in [1, 2, 16, 100, 1024, 2048, 4096] {
            let mut places = [0_usize; 1024];
            for number in 0..1024_u32 {
                places[(quick.hash_one(number * step) & 1023) as usize] += 1;
            }
            assert!(places.iter().all(|count| *count <= 8), "step {step}: {places:?}");
        }
        let place = |number: u32| quick.hash_one(number) & 1023;
        let near = (0..1023).filter(|number| place(*number).abs_diff(place(number + 1)) < 16);
        assert!(near.count() > 900);
    }
}
