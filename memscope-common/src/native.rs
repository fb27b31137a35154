//! How stacks of compiled code are unwound: a rule for each address that was ever returned to, and how
//! a piece of the stack crosses the ring when a rule is not known yet.

use crate::RecordHeader;

/// Rules that are known at a time, of all processes.
pub const RULES_MOST: u32 = 1 << 20;
/// Frames of compiled code that are sent; deeper ones are cut off at the outer end.
pub const MOST_NATIVE: usize = 1024;

/// Bits of an address in the key of a rule; the low bits of the process's handle lie above.
pub const RULE_ADDRESS_BITS: u32 = 47;

/// The canonical frame address is the stack pointer plus an offset.
pub const RULE_SP: u8 = 1;
/// It is the frame pointer plus an offset.
pub const RULE_BP: u8 = 2;
/// It is the word at the frame pointer plus an offset.
pub const RULE_BP_DEREF: u8 = 3;
/// Nothing called this.
pub const RULE_END: u8 = 4;
/// Not to be unwound: no information about this code, or of a kind that is not understood.
pub const RULE_STOP: u8 = 5;

/// How a frame leads to the one that called it. The caller's stack pointer is the canonical frame address.
///
/// On x86-64 the return address lies in the word below it. On aarch64 it lies in the frame record, behind the
/// caller's frame pointer; or alone ([`Rule::return_only`]).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule(pub u64);

impl Rule {
    /// `kind`: `RULE_*`; `bp`: where the caller's frame pointer is kept, in bytes from the canonical frame
    /// address, where 0 says that it was not touched, or from the frame pointer (`bp_from_bp`).
    pub const fn new(kind: u8, offset: i32, bp: i16, bp_from_bp: bool) -> Rule {
        Rule(
            kind as u64
                | (bp_from_bp as u64) << 8
                | (bp as u16 as u64) << 16
                | (offset as u32 as u64) << 32,
        )
    }

    /// `RULE_*`.
    #[inline(always)]
    pub const fn kind(self) -> u8 {
        self.0 as u8
    }

    /// What is added to find the canonical frame address.
    #[inline(always)]
    pub const fn offset(self) -> i64 {
        (self.0 >> 32) as u32 as i32 as i64
    }

    /// Where the caller's frame pointer is kept; 0, unless counted from the frame pointer: in its register.
    #[inline(always)]
    pub const fn bp(self) -> i64 {
        (self.0 >> 16) as u16 as i16 as i64
    }

    /// On aarch64, the place holds the return address alone, and the frame pointer was not touched.
    #[inline(always)]
    pub const fn return_only(self) -> bool {
        self.0 & 0x100 != 0
    }

    /// On x86-64, that place is counted from the frame pointer.
    #[inline(always)]
    pub const fn bp_from_bp(self) -> bool {
        self.0 & 0x100 != 0
    }
}

/// The key of a rule.
#[inline(always)]
pub const fn rule_key(handle: u32, address: u64) -> u64 {
    (handle as u64) << RULE_ADDRESS_BITS | (address & ((1 << RULE_ADDRESS_BITS) - 1))
}

/// A piece of a stack, from the frame on whose rule is not known.
pub const KIND_STACK_COPY: u16 = 10;
/// Bytes of a page.
pub const STACK_PAGE: usize = 4096;
/// Pages that are copied.
pub const STACK_COPY_PAGES: usize = 5;

/// `header.flags` of a stack: the first native frame is the function that was entered, its address exact; otherwise
/// it is an address that will be returned to, as all others are.
pub const STACK_AT_ENTRY: u8 = 4;
/// `header.flags` of a stack: a piece of the stack under the same identity goes before it, from which
/// the outer native frames come.
pub const STACK_UNFINISHED: u8 = 8;

/// See [`KIND_STACK_COPY`]; `header.stack` is the identity of the stack that it is the outer part of.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StackCopyRecord {
    /// Common part.
    pub header: RecordHeader,
    /// The address whose rule is missing.
    pub pc: u64,
    /// Stack pointer there.
    pub sp: u64,
    /// Frame pointer there.
    pub bp: u64,
    /// Where `bytes` begins, the start of the page of `sp`.
    pub base: u64,
    /// How many of `bytes` could be read.
    pub len: u64,
    /// The stack.
    pub bytes: [u8; STACK_COPY_PAGES * STACK_PAGE],
}

const _: () = assert!(core::mem::size_of::<StackCopyRecord>() < u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_holds_what_was_put_into_it() {
        for (kind, offset, bp, from_bp) in [
            (RULE_SP, 8, 0, false),
            (RULE_BP, 16, -16, false),
            (RULE_SP, i32::MAX, i16::MIN, false),
            (RULE_BP_DEREF, -8, 0x7ff8, true),
            (RULE_SP, i32::MIN, -8, true),
        ] {
            let rule = Rule::new(kind, offset, bp, from_bp);
            assert_eq!(rule.kind(), kind);
            assert_eq!(rule.offset(), i64::from(offset));
            assert_eq!(rule.bp(), i64::from(bp));
            assert_eq!(rule.bp_from_bp(), from_bp);
        }
    }
}
