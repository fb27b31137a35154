//! The command line of the benchmarks.

use clap::Args;

/// What to measure.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only these parts, and the page to standard output: process, step, daemon, questions, life, readings, export
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Of --only: put what was measured into docs/benchmarks.md, beside the other parts that are there
    #[arg(long, requires = "only", conflicts_with = "against")]
    pub write: bool,

    /// The programs of another commit as well, in turn in the same run: prints what became of each number
    #[arg(long, value_name = "COMMIT")]
    pub against: Option<String>,

    /// Allocations and frees in one run
    #[arg(long, default_value_t = 6_000)]
    pub pairs: u32,

    /// How often each thing is measured
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,

    /// On this machine's GPU instead of the simulated one, with the PyTorch in $MEMSCOPE_TORCH_VENV
    #[arg(long)]
    pub real_device: bool,

    /// Entries of the trace that is exported
    #[arg(long, default_value_t = 1_000_000)]
    pub events: u32,
}
