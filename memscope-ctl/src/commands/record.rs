//! `record`: the journal as one file.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::file::{Target, recorded_to};
use crate::session::Session;
use crate::units;
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
}

impl Run for Record {
    const CLEANS_UP: bool = true;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let mut target = Target::open(Some(&self.output))?;
        recorded_to(&client, &mut target).await?;
        let bytes = target.bytes();
        target.finish()?;
        let file = self.output.display().to_string();
        session.show(&Recorded { file, bytes }, |recorded| {
            let (file, size) = (&recorded.file, units::exact_bytes(Some(bytes)));
            format!("Wrote {file}, {size}.\nAsk it: memscope-ctl --recording {file} leaks\n")
        })
    }
}
