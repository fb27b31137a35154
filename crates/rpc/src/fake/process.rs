//! A process that a test makes up.

use memscope_ledger::report::{ProcessSummary, StackRow};
use memscope_proto::v1;

/// What the fake daemon knows of one process.
#[derive(Clone, Debug)]
pub struct FakeProcess {
    /// The process that every answer is about.
    pub process: ProcessSummary,
    /// Coverage notes of every answer.
    pub coverage: Vec<v1::CoverageNote>,
    /// Devices in the answer to `stats`.
    pub devices: Vec<v1::DeviceStats>,
    /// Groups in the answer to `leaks`.
    pub groups: Vec<v1::LeakGroup>,
    /// Growth that is too young to be judged, in the answer to `leaks`.
    pub young: Option<v1::YoungGrowth>,
    /// Memory that was given back, in the answer to `leaks`.
    pub given_back: Vec<v1::GivenBack>,
    /// Size of the snapshot: number of segments, of blocks in each segment, and of trace entries.
    pub snapshot: (usize, usize, usize),
    /// Number of plain stacks in the answer to `stacks`, which also has those of [`super::hard`].
    pub stacks: usize,
    /// Further stacks in that answer.
    pub more_stacks: Vec<StackRow>,
    /// The steps, oldest first, by device.
    pub steps: Vec<v1::StepRow>,
}
