//! The identity of a stack, which is a hash of its frames.

use memscope_common::{STACK_FIRST, STACK_MASK};

const K1: u64 = 0x9e37_79b9_7f4a_7c15;

const K2: u64 = 0xd6e8_feb8_6659_fd93;

/// Adds a word to a hash.
#[inline(always)]
pub fn mix(hash: u64, value: u64) -> u64 {
    let hash = hash.wrapping_add(value).wrapping_mul(K2);
    hash ^ (hash >> 32)
}

/// Makes an identity from a hash.
#[inline(always)]
pub fn finish(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 29)).wrapping_mul(K1);
    let hash = (hash ^ (hash >> 32)) & STACK_MASK;
    if hash < STACK_FIRST {
        hash + STACK_FIRST
    } else {
        hash
    }
}
