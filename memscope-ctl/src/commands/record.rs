//! `record`: the journal as one file.

use super::export::{HISTORY, damaged, unread};
use super::run::Run;
use crate::failure::{Exit, Failure, not_exact};
use crate::file::{Target, recorded_to};
use crate::output;
use crate::session::Session;
use crate::units;
use memscope_proto::v1::CoverageNote;
use serde::Serialize;
use std::path::PathBuf;

/// Write all that the journal has up to now to one file, a recording: for root.
///
/// A recording answers every question, on any machine, without the process and without its files:
/// memscope-ctl --recording FILE leaks. The journal is bounded (memscoped --journal-mib); what is older is not in it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo memscope-ctl record -o run.mscope
  memscope-ctl --recording run.mscope leaks
  memscope-ctl --recording run.mscope snapshot --at step:120 -o s.pickle")]
pub(crate) struct Record {
    /// The file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Serialize)]
struct Recorded {
    file: String,
    bytes: u64,
    warnings: Vec<String>,
}

impl Run for Record {
    const CLEANS_UP: bool = true;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let mut target = Target::open(Some(&self.output))?;
        let warnings = recorded_to(&client, &mut target).await?;
        if session.global.strict {
            let notes: Vec<CoverageNote> = damaged(&warnings).collect();
            not_exact(&notes, &[HISTORY])?;
        }
        let bytes = target.bytes();
        let is_printed = target.is_stdout();
        target.finish()?;
        if is_printed {
            // The recording itself went where this would go.
            if !warnings.is_empty() {
                output::note(unread(&warnings).trim_end());
            }
            return Ok(Exit::Done);
        }
        let file = self.output.display().to_string();
        let recorded = Recorded {
            file,
            bytes,
            warnings,
        };
        session.show(&recorded, |recorded| {
            let (file, size) = (&recorded.file, units::exact_bytes(Some(bytes)));
            let unread = unread(&recorded.warnings);
            format!(
                "Wrote {file}, {size}.\n{unread}Ask it: memscope-ctl --recording {file} leaks\n"
            )
        })
    }
}
