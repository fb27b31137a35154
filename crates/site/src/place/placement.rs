//! Where the probes of a function stand, or why none may.

/// Where the probes stand, in bytes from the function's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The entry probe.
    pub entry_offset: u64,
    /// The return probe, if one is wanted.
    pub return_offset: Option<u64>,
    /// The kernel emulates the instruction.
    pub emulated: bool,
    /// Bytes pushed since the entry (always 0 with stack arguments or a return probe).
    pub pushed: u32,
    /// One sentence: which instruction, and why this one.
    pub reason: String,
}

/// Why no probe may stand anywhere in the function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The bytes are no instruction.
    #[error("its first bytes are no instruction")]
    NotCode,
    /// A breakpoint stands there in the file itself.
    #[error("its first instruction is a breakpoint")]
    Breakpoint,
    /// The kernel refuses probes on this instruction.
    #[error("the kernel allows no probe on its first instruction ({0})")]
    Forbidden(String),
    /// Code of this machine cannot be read yet.
    #[error("code of this machine ({0}) cannot be read yet")]
    Unsupported(&'static str),
}

/// On an instruction that is a direct call: all of them are emulated.
pub(crate) fn on_call() -> Placement {
    Placement {
        entry_offset: 0,
        return_offset: None,
        emulated: true,
        pushed: 0,
        reason: "on the call itself, emulated".to_owned(),
    }
}
