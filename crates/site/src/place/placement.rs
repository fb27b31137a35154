//! Where the probes of a function stand, or why it cannot have one.

/// Where the probes stand. Offsets are in bytes from the function's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Offset of the entry probe.
    pub entry_offset: u64,
    /// Offset of the return probe, if one is wanted.
    pub return_offset: Option<u64>,
    /// Whether the kernel emulates the instruction at the entry probe.
    pub emulated: bool,
    /// Bytes pushed on the stack between the entry and the probe (always 0 with stack arguments or a return probe).
    pub pushed: u32,
    /// Which instruction was chosen, and why, in words for users.
    pub reason: String,
}

/// Why no probe may stand anywhere in the function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The first bytes are not an instruction.
    #[error("its first bytes are no instruction")]
    NotCode,
    /// The first instruction in the file is a breakpoint.
    #[error("its first instruction is a breakpoint")]
    Breakpoint,
    /// The kernel refuses probes on the first instruction. The text says why.
    #[error("the kernel allows no probe on its first instruction ({0})")]
    Forbidden(String),
    /// Code of this machine cannot be read yet. The text describes the machine.
    #[error("code of this machine ({0}) cannot be read yet")]
    Unsupported(&'static str),
}

/// The placement of a probe on an instruction that is a direct call. The kernel emulates all direct calls.
pub(crate) fn on_call() -> Placement {
    Placement {
        entry_offset: 0,
        return_offset: None,
        emulated: true,
        pushed: 0,
        reason: "on the call itself, emulated".to_owned(),
    }
}
