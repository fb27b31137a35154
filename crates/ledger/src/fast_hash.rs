//! A fast hasher for addresses and small numbers.
//!
//! Owns: the mixing of integer keys. Refuses: protection against keys that an attacker chose: the keys are addresses
//! that a driver chose, and every map here is bounded by the number of live entries.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map over integers.
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FoldHasher>>;

/// A hash set of integers.
pub(crate) type FastSet<K> = HashSet<K, BuildHasherDefault<FoldHasher>>;

/// Multiplies to 128 bits and folds the halves together: addresses end in many zero bits, and the
/// fold brings the high bits down to the low ones, by which the table chooses a bucket.
#[derive(Clone, Copy, Default)]
pub(crate) struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value ^ 0x2545_f491_4f6c_dd1d)
            * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }

    fn write_i32(&mut self, value: i32) {
        self.write_u64(u64::from(value as u32));
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
