//! The input of the search for a place in a function: its code, the machine, the kernel, and what the probe needs.

/// What the probes of a function need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Whether there is a return probe as well.
    pub returns: bool,
    /// Whether arguments are read from the stack.
    pub stack: bool,
}

impl Wants {
    /// Whether the stack pointer at the probe must be the same as at the function's entry.
    pub const fn stack_kept(self) -> bool {
        self.returns || self.stack
    }
}

/// The code of one function.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Bytes of the code from the entry on.
    pub bytes: &'a [u8],
    /// Whether `bytes` is the whole function, by the size of its symbol.
    pub whole: bool,
    /// Address of the entry in the file's own numbering.
    pub address: u64,
    /// Addresses of other symbols of the file, in any order. Where one lies inside the function, the function can be
    /// entered there as well.
    pub entries: &'a [u64],
}

/// Which instructions the running kernel emulates under a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// `push` of a register (from Linux 4.16 on).
    pub push: bool,
    /// `nop` of several bytes (from Linux 6.16 on); every kernel emulates `nop` of one byte.
    pub long_nop: bool,
    /// aarch64's `nop` (from Linux 6.13 on).
    pub arm_nop: bool,
}

impl Emulation {
    /// What a kernel of this version emulates.
    pub const fn of_kernel(major: u32, minor: u32) -> Emulation {
        Emulation {
            push: major > 4 || (major == 4 && minor >= 16),
            long_nop: major > 6 || (major == 6 && minor >= 16),
            arm_nop: major > 6 || (major == 6 && minor >= 13),
        }
    }

    /// What the running kernel emulates. If its version is not understood, the oldest kernel is assumed.
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

/// Machine that a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// Another machine, with its number in ELF headers.
    Other(u16),
}

impl Machine {
    /// The machine with this number in ELF headers (`e_machine`).
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
