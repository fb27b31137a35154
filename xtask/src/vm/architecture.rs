//! What differs between the architectures of machines.

use std::path::PathBuf;

use anyhow::Result;

use crate::setup::tool::{Tool, Version};
use crate::{aarch64, live};

/// An architecture of machines that can be simulated.
pub struct Architecture {
    /// Its name in options.
    pub name: &'static str,
    /// Debian's name of it.
    pub debian: &'static str,
    /// The simulator of its machines.
    pub simulator: Tool,
    /// QEMU's name of the machine.
    pub machine: &'static str,
    /// What the processor is: the newest that QEMU knows.
    pub cpu: &'static str,
    /// The serial console.
    pub console: &'static str,
    /// Folder of libraries below `/usr/lib`.
    pub libraries: &'static str,
    /// The C compiler.
    pub cc: &'static str,
    /// Its option that protects calls and returns as distributions do it, so that the walk of stacks meets such code.
    pub protection: &'static str,
    /// The program that removes debugging information.
    pub strip: &'static str,
    /// Option of `cargo xtask setup` that installs what is needed.
    pub setup: &'static str,
}

pub const X86_64: Architecture = Architecture {
    name: "x86_64",
    debian: "amd64",
    simulator: Tool {
        name: "QEMU for x86-64",
        why: "it simulates machines of x86-64",
        programs: &["qemu-system-x86_64"],
        ask: &["--version"],
        least: Version(7, 0),
        packages: &["qemu-system-x86"],
    },
    machine: "q35",
    cpu: "max",
    console: "ttyS0",
    libraries: "x86_64-linux-gnu",
    cc: "cc",
    protection: "-fcf-protection",
    strip: "strip",
    setup: "--vm",
};

pub const AARCH64: Architecture = Architecture {
    name: "aarch64",
    debian: "arm64",
    simulator: Tool {
        name: "QEMU for aarch64",
        why: "it simulates machines of aarch64",
        programs: &["qemu-system-aarch64"],
        ask: &["--version"],
        least: Version(7, 0),
        packages: &["qemu-system-arm"],
    },
    machine: "virt",
    // The processor signs return addresses where code asks for it.
    cpu: "max,pauth-impdef=on",
    console: "ttyAMA0",
    libraries: "aarch64-linux-gnu",
    cc: aarch64::CC,
    protection: "-mbranch-protection=standard",
    strip: "aarch64-linux-gnu-strip",
    setup: "--aarch64",
};

impl Architecture {
    pub const ALL: [&'static Architecture; 2] = [&X86_64, &AARCH64];

    /// Builds daemon and client for it, and returns their folder.
    pub fn build(&self) -> Result<PathBuf> {
        if self.name == std::env::consts::ARCH {
            return live::programs(live::Build::Checked);
        }
        aarch64::build(&aarch64::Options {
            package: vec!["memscope-daemon".to_owned(), "memscope-ctl".to_owned()],
            ..aarch64::Options::default()
        })
    }
}
