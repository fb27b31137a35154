//! Where in a function a probe may stand.
//!
//! A probe on an instruction that the kernel emulates costs a twelfth of one on an instruction that
//! it must single-step. So the first emulated instruction of the entry block is taken, if it is
//! proved that the arguments are still in their registers there and that nothing jumps to it a
//! second time. Where that proof fails the function's first instruction is taken, which is always
//! right and sometimes slow. On aarch64 that is always so: see `aarch64`.
//!
//! A return probe replaces the word at the stack pointer, so it may stand only where that is the
//! return address: where nothing was pushed yet. (On aarch64 it replaces the link register.)

mod aarch64;
mod x86_64;

/// What the probe needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// A return probe too.
    pub returns: bool,
    /// Arguments on the stack.
    pub stack: bool,
}

impl Wants {
    /// The stack pointer must be the entry's.
    pub const fn stack_kept(self) -> bool {
        self.returns || self.stack
    }
}

/// The code of one function.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Bytes from the entry on; the whole function where `whole`.
    pub bytes: &'a [u8],
    /// `bytes` is the whole function, by its symbol's size.
    pub whole: bool,
    /// Address of the entry in the file's own numbering.
    pub address: u64,
    /// Addresses of other symbols of the file (any order); those inside the function are entries
    /// of their own.
    pub entries: &'a [u64],
}

/// Which instructions the running kernel emulates under a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// `push` of a register (Linux 4.16 on).
    pub push: bool,
    /// `nop` of several bytes (Linux 6.16 on); `nop` of one byte is emulated by all.
    pub long_nop: bool,
    /// aarch64's `nop` (Linux 6.13 on).
    pub arm_nop: bool,
}

impl Emulation {
    /// By the version of the kernel.
    pub const fn of_kernel(major: u32, minor: u32) -> Emulation {
        Emulation {
            push: major > 4 || (major == 4 && minor >= 16),
            long_nop: major > 6 || (major == 6 && minor >= 16),
            arm_nop: major > 6 || (major == 6 && minor >= 13),
        }
    }

    /// Of the running kernel; of the oldest, where its version is not understood.
    pub fn of_this_kernel() -> Emulation {
        let name = rustix::system::uname();
        let release = name.release().to_string_lossy();
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map(|digits| digits.parse::<u32>().unwrap_or(0));
        let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Emulation::of_kernel(major, minor)
    }
}

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

/// Machines that files may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// Another: its ELF number.
    Other(u16),
}

impl Machine {
    /// From an ELF header.
    pub const fn from_elf(machine: u16) -> Machine {
        match machine {
            62 => Machine::X86_64,
            183 => Machine::Aarch64,
            other => Machine::Other(other),
        }
    }
    /// The machine that this program was built for.
    pub const fn this() -> Machine {
        if cfg!(target_arch = "x86_64") {
            Machine::X86_64
        } else if cfg!(target_arch = "aarch64") {
            Machine::Aarch64
        } else {
            Machine::Other(0)
        }
    }
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

/// Finds the place for the probes of a function.
pub fn place(
    machine: Machine,
    code: &Code<'_>,
    wants: Wants,
    emulation: Emulation,
) -> Result<Placement, PlaceError> {
    match machine {
        Machine::X86_64 => x86_64::place(code, wants, emulation),
        Machine::Aarch64 => aarch64::place(code, wants, emulation),
        Machine::Other(_) => Err(PlaceError::Unsupported("neither x86-64 nor aarch64")),
    }
}
