//! What an instruction does, as far as it matters here.

/// Where the code goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    /// A direct call.
    Call(u64),
    /// A call of what is known at run time only.
    OtherCall,
    /// A jump that may or may not be taken.
    MayJump(u64),
    Jump(u64),
    /// It does not come back here.
    End,
}

/// What an instruction does, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// Puts something into a register.
    Set {
        register: u8,
        value: Value,
    },
    /// Puts something into two.
    SetTwo(u8, u8),
    /// Writes to the stack: which base register, how far from it, how many bytes, and what.
    Store {
        base: u8,
        at: i64,
        bytes: i64,
        value: Value,
    },
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    Constant(u64),
    /// What the register holds.
    Of(u8),
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decoded {
    pub(super) bytes: usize,
    pub(super) flow: Flow,
    pub(super) effect: Effect,
    /// Number of the register with the second argument.
    pub(super) second: u8,
    /// Registers from this number on keep their values over a call.
    pub(super) kept_from: u8,
}
