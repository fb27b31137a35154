//! How stacks of compiled code are unwound: there is a rule for each return address that was seen. While a rule is
//! not known yet, a piece of the stack is sent over the ring to user space.

use crate::RecordHeader;

/// Most rules that the table holds at a time, for all processes together.
pub const RULES_MOST: u32 = 1 << 20;
/// Most frames of compiled code in one stack; deeper stacks are cut off at the outer end.
pub const MOST_NATIVE: usize = 1024;

/// Number of address bits in the key of a rule. The bits above them hold the low bits of the process's handle.
pub const RULE_ADDRESS_BITS: u32 = 47;

/// Kind of a rule: the canonical frame address is the stack pointer plus the offset.
pub const RULE_SP: u8 = 1;
/// Kind of a rule: the canonical frame address is the frame pointer plus the offset.
pub const RULE_BP: u8 = 2;
/// Kind of a rule: the canonical frame address is the word stored at the frame pointer plus the offset.
pub const RULE_BP_DEREF: u8 = 3;
/// Kind of a rule: this is the outermost frame, which has no caller.
pub const RULE_END: u8 = 4;
/// Kind of a rule: the walk cannot go on, since there is no unwind information about this code, or none that a rule
/// can express.
pub const RULE_STOP: u8 = 5;

/// How to get from a frame to the frame of its caller. The caller's stack pointer is the canonical frame address.
///
/// On x86-64 the return address lies in the word below the canonical frame address. On aarch64 it lies in the frame
/// record, right after the caller's frame pointer, or it is stored alone ([`Rule::return_only`]).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule(pub u64);

impl Rule {
    /// Packs a rule into a word. `kind` is one of `RULE_*`, and `offset` is added to its register to find the
    /// canonical frame address. `bp` says where the caller's frame pointer (on aarch64: the frame record) is stored, in
    /// bytes from the canonical frame address; on x86-64, 0 says that the frame pointer was not changed. On x86-64
    /// `bp_from_bp` says that `bp` counts from the frame pointer instead; on aarch64 the same bit means
    /// [`Rule::return_only`].
    pub const fn new(kind: u8, offset: i32, bp: i16, bp_from_bp: bool) -> Rule {
        Rule(
            kind as u64
                | (bp_from_bp as u64) << 8
                | (bp as u16 as u64) << 16
                | (offset as u32 as u64) << 32,
        )
    }

    /// Kind of the rule: one of `RULE_*`.
    #[inline(always)]
    pub const fn kind(self) -> u8 {
        self.0 as u8
    }

    /// Offset in bytes that is added to the register to find the canonical frame address.
    #[inline(always)]
    pub const fn offset(self) -> i64 {
        (self.0 >> 32) as u32 as i32 as i64
    }

    /// Where the caller's frame pointer (on aarch64: the frame record) is stored, as an offset in bytes. On x86-64, 0
    /// without [`Rule::bp_from_bp`] means that the frame pointer is still in its register.
    #[inline(always)]
    pub const fn bp(self) -> i64 {
        (self.0 >> 16) as u16 as i16 as i64
    }

    /// On aarch64: only the return address is stored at [`Rule::bp`], and the frame pointer was not changed.
    #[inline(always)]
    pub const fn return_only(self) -> bool {
        self.0 & 0x100 != 0
    }

    /// On x86-64: [`Rule::bp`] counts from the frame pointer instead of the canonical frame address.
    #[inline(always)]
    pub const fn bp_from_bp(self) -> bool {
        self.0 & 0x100 != 0
    }
}

/// Key of the rule for a return address of the process with this handle.
#[inline(always)]
pub const fn rule_key(handle: u32, address: u64) -> u64 {
    (handle as u64) << RULE_ADDRESS_BITS | (address & ((1 << RULE_ADDRESS_BITS) - 1))
}

/// Whether the rules of two processes would be taken for each other's: a key has room for only a part of the handle.
pub const fn share_rules(one: u32, other: u32) -> bool {
    rule_key(one, 0) == rule_key(other, 0)
}

/// Number of a [`StackCopyRecord`]: a copied piece of a stack, beginning at the first frame whose rule is not known.
pub const KIND_STACK_COPY: u16 = 10;
/// Size of a page in bytes, as the copies count pages.
pub const STACK_PAGE: usize = 4096;
/// Number of pages that one copy has room for.
pub const STACK_COPY_PAGES: usize = 5;

/// `header.flags` of a stack: the first frame of compiled code is the function that was just entered, with its exact
/// address. Without this flag it is a return address, as all other frames are.
pub const STACK_AT_ENTRY: u8 = 4;
/// `header.flags` of a stack: a [`StackCopyRecord`] with the same identity comes before it. The outer frames of
/// compiled code are found by unwinding that copy.
pub const STACK_UNFINISHED: u8 = 8;

/// A copied piece of a stack, sent when the rule of a frame is not known yet. `header.stack` is the identity of the
/// stack whose outer part this is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StackCopyRecord {
    /// Header that all records have.
    pub header: RecordHeader,
    /// Return address whose rule is missing.
    pub pc: u64,
    /// Stack pointer of the frame at `pc`.
    pub sp: u64,
    /// Frame pointer of the frame at `pc`.
    pub bp: u64,
    /// Address from which `bytes` was copied: the start of the page that `sp` lies in.
    pub base: u64,
    /// Number of bytes of `bytes` that could be read.
    pub len: u64,
    /// Contents of the stack from `base` on.
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
