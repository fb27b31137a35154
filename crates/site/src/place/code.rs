//! What is known of a function before a place in it is looked for: its code, the machine, and what the probe needs.

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
