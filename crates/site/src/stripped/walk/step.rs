//! What a decoded instruction does, as far as the walk needs it.

/// Where execution goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// A direct call of the function at this address.
    Call(u64),
    /// A call whose target is known only at run time.
    OtherCall,
    /// A jump to this address that may or may not be taken.
    MayJump(u64),
    Jump(u64),
    /// Execution does not go on at a place that is known: a return, a jump through a register, or a trap.
    End,
}

/// What an instruction does to registers and the stack, as far as the walk needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// Writes a register.
    Set {
        register: u8,
        value: Value,
    },
    /// Writes unknown values to two registers.
    SetTwo(u8, u8),
    /// Writes to the stack, at the offset `at` from the register `base`.
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
    /// The value that this register holds.
    Of(u8),
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) bytes: usize,
    pub(crate) flow: Flow,
    pub(super) effect: Effect,
    /// Number of the register with the second argument.
    pub(super) second: u8,
    /// Registers from this number on keep their values across a call.
    pub(super) kept_from: u8,
}
