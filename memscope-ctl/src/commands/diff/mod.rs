//! `diff`: what came and what went between two moments, or between two files.

mod table;

use super::run::Run;
use super::stacks::command::{self, Between};
use crate::failure::{Exit, Failure};
use crate::files::{self, SnapshotFile};
use crate::moment::in_order;
use crate::process::ProcessOption;
use crate::session::Session;
use clap::ValueEnum;
use memscope_diff::{MatchedBy, StackDiff};
use memscope_proto::v1::{self, Moment};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Show what came and what went between two moments, or between two files.
///
/// A file is a pickle of torch.cuda.memory._snapshot(), a snapshot of memscope's as pickle or JSON, or
/// a recording (its last moment). For files no daemon is needed. Blocks are told apart one by one where
/// both files say that they are of one process, else counted by device, stream and size.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl diff --pid 4242 --from -5m              since five minutes ago
  memscope-ctl diff --pid 4242 --from -2h --to -1h     in the hour before the last
  memscope-ctl diff before.pickle after.pickle         between two snapshots, PyTorch's or memscope's
  memscope-ctl diff before.pickle after.pickle --by stack")]
pub(crate) struct Diff {
    /// Two snapshots or recordings.
    #[arg(num_args = 2, value_names = ["FILE", "FILE"], conflicts_with_all = ["from", "to"])]
    pub(crate) files: Vec<PathBuf>,
    /// The files are of one process, although they do not say so: pickles of PyTorch's own do not.
    #[arg(long, requires = "files", conflicts_with = "from")]
    pub(crate) same_process: bool,
    #[command(flatten)]
    pub(crate) process: ProcessOption,
    /// The first moment, from the journal: an age (-5m), a time (2026-11-20T08:30:00Z, or nanoseconds
    /// since 1970), event:NUMBER, step:NUMBER, mark:NAME, or peak (peak:DEVICE).
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true, required_unless_present = "files")]
    pub(crate) from: Option<Moment>,
    /// The second; now, if it is not given.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) to: Option<Moment>,
    /// By what to sum up.
    #[arg(long, value_enum, default_value_t = DiffBy::Size)]
    pub(crate) by: DiffBy,
    /// At most so many groups, or stacks, 0 for all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffBy {
    /// Device, stream and size.
    Size,
    /// The stack that allocated it. Between moments of a process the same as `stacks --from`.
    Stack,
}

impl Run for Diff {
    /// At its end, a memscoped that replays one of the files must be stopped.
    const CLEANS_UP: bool = true;

    fn check(&self, session: &Session) -> Result<(), Failure> {
        if !self.files.is_empty() && session.global.recording.is_some() {
            return Err(Failure::Usage {
                what: "--recording and two files are three things to compare".into(),
                hint: "name the recording as one of the files".into(),
            });
        }
        in_order(self.from.as_ref(), self.to.as_ref())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        if let [before, after] = &self.files[..] {
            return self.of_files(before, after, session).await;
        }
        let client = session.client().await?;
        let pid = client.choose(self.process.pid).await?;
        if self.by == DiffBy::Stack {
            let between = Between {
                from: self.from.clone(),
                to: self.to.clone(),
                limit: self.limit,
            };
            return command::grown(&client, pid, between, session).await;
        }
        let question = v1::DiffRequest {
            pid,
            from: self.from.clone(),
            to: self.to.clone(),
        };
        let answer = client
            .ask(question, async |mut rpc, request| rpc.diff(request).await)
            .await?;
        session.show(&answer, |answer| table::moments(answer, self.limit))
    }
}

/// The JSON document about the difference of two files; unknown values are null.
#[derive(Serialize)]
struct FilesDiff<'a> {
    from: FileFacts,
    to: FileFacts,
    matched_by: MatchedBy,
    devices: &'a [v1::DeviceDiff],
    groups: &'a [v1::GroupDiff],
    stacks: &'a [StackDiff<&'a [std::sync::Arc<str>]>],
    coverage: &'a [v1::CoverageNote],
}

#[derive(Serialize)]
struct FileFacts {
    file: String,
    pid: Option<u32>,
    as_of: Option<u64>,
}

impl FileFacts {
    fn of(kept: &SnapshotFile) -> FileFacts {
        FileFacts {
            file: kept.path.display().to_string(),
            pid: kept.image.map(|image| image.pid),
            as_of: kept.as_of_ns,
        }
    }
}

impl Diff {
    async fn of_files(
        &self,
        before: &Path,
        after: &Path,
        session: &Session,
    ) -> Result<Exit, Failure> {
        let (pid, timeout) = (self.process.pid, session.global.timeout());
        let before = files::read(before, pid, timeout).await?;
        let after = files::read(after, pid, timeout).await?;
        let (matched_by, compared) = files::compare(&before, &after, self.same_process);
        let coverage = files::limits(&before, &after, &compared);
        if session.global.strict {
            let has_stacks = self.by == DiffBy::Stack || session.global.json;
            let kinds: &[&str] = match has_stacks {
                true => &["totals", "blocks", "stacks"],
                false => &["totals", "blocks"],
            };
            crate::failure::not_exact(&coverage, kinds)?;
        }
        let diff = FilesDiff {
            from: FileFacts::of(&before),
            to: FileFacts::of(&after),
            matched_by,
            devices: &compared.devices,
            groups: &compared.groups,
            stacks: &compared.stacks,
            coverage: &coverage,
        };
        session.show(&diff, |_| {
            let by_stack = self.by == DiffBy::Stack;
            table::files(
                &before,
                &after,
                (matched_by, &compared),
                &coverage,
                self.limit,
                by_stack,
            )
        })
    }
}
