//! Options of `stacks` and `flamegraph`: what is counted, in which unit, and at which moments.

use clap::ValueEnum;
use memscope_proto::v1::{self, Moment};

/// What is shown of the stacks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct View {
    /// What to count; live unless --from is given, then growth.
    #[arg(long, value_enum)]
    metric: Option<Metric>,
    /// In what to count it [default: bytes]
    #[arg(long, value_enum)]
    unit: Option<Unit>,
    /// Only this device.
    #[arg(long, value_name = "ORDINAL", value_parser = clap::value_parser!(i32).range(0..))]
    device: Option<i32>,
    /// Compare with this earlier moment, from the journal: an age (-5m), a time
    /// (2026-11-20T08:30:00Z, or nanoseconds since 1970), event:NUMBER, step:NUMBER, mark:NAME, or peak (peak:DEVICE).
    #[arg(
        long,
        value_name = "MOMENT",
        value_parser = crate::moment::parse,
        allow_hyphen_values = true,
        required_if_eq("metric", "growth")
    )]
    pub(crate) from: Option<Moment>,
    /// Describe this moment; now, if it is not given.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) at: Option<Moment>,
}

impl View {
    /// Whether any of the options is given.
    pub(crate) fn is_given(&self) -> bool {
        self.metric.is_some()
            || self.unit.is_some()
            || self.device.is_some()
            || self.from.is_some()
            || self.at.is_some()
    }

    /// The options as a request carries them.
    pub(crate) fn wire(&self) -> v1::StackView {
        let metric = match (self.metric, &self.from) {
            (Some(Metric::Live), _) | (None, None) => v1::StackMetric::Live,
            (Some(Metric::Peak), _) => v1::StackMetric::Peak,
            (Some(Metric::Allocated), _) => v1::StackMetric::Allocated,
            (Some(Metric::Growth), _) | (None, Some(_)) => v1::StackMetric::Growth,
        };
        let unit = match self.unit {
            None | Some(Unit::Bytes) => v1::StackUnit::Bytes,
            Some(Unit::Count) => v1::StackUnit::Count,
        };
        v1::StackView {
            metric: metric.into(),
            unit: unit.into(),
            device: self.device,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// What lives.
    Live,
    /// What lived when the device's allocated bytes were largest since the attach.
    Peak,
    /// Everything that came since the attach, freed or not.
    Allocated,
    /// What lives less what lived at the moment --from.
    Growth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    /// Bytes of the blocks, as the allocator rounds them.
    Bytes,
    /// Number of blocks.
    Count,
}
