//! The command line of the benchmarks.

use clap::Args;

/// What to measure.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Allocations and frees in one run
    #[arg(long, default_value_t = 40_000)]
    pub pairs: u32,

    /// How often each way is measured
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,

    /// What readings cost at level `read`, instead: time and bytes by number of blocks, and the
    /// process's speed
    #[arg(long)]
    pub readings: bool,

    /// What writing a long trace to a file takes, instead: time and memory, against PyTorch's own snapshot
    #[arg(long, conflicts_with = "readings")]
    pub export: bool,

    /// What stacks cost at several depths, instead: beside an empty probe and PyTorch's own recorder
    #[arg(long, conflicts_with_all = ["readings", "export"])]
    pub stacks: bool,

    /// On this machine's GPU instead of the simulated one, with the PyTorch in $MEMSCOPE_TORCH_VENV
    #[arg(long)]
    pub real_device: bool,

    /// Entries of that trace
    #[arg(long, default_value_t = 1_000_000)]
    pub events: u32,
}
