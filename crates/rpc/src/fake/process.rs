//! One process that a test makes up.

use memscope_ledger::report::ProcessSummary;
use memscope_proto::v1;

/// What the fake knows of one process.
#[derive(Clone, Debug)]
pub struct FakeProcess {
    /// The process that every answer is about.
    pub process: ProcessSummary,
    /// What limits every answer.
    pub coverage: Vec<v1::CoverageNote>,
    /// Answer to `stats`.
    pub devices: Vec<v1::DeviceStats>,
    /// Answer to `leaks`.
    pub groups: Vec<v1::LeakGroup>,
    /// What it says is too young.
    pub young: Option<v1::YoungGrowth>,
    /// What it says was given back.
    pub given_back: Vec<v1::GivenBack>,
    /// Size of the snapshot: segments, blocks in each, trace entries.
    pub snapshot: (usize, usize, usize),
    /// Number of plain stacks in the answer to `stacks`, which has others besides.
    pub stacks: usize,
}
