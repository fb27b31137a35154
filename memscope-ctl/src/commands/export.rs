//! `export`: writes everything that was recorded as msMemScope's files.

use super::run::Run;
use crate::failure::{Exit, Failure, not_exact};
use crate::file::{Target, recorded_to};
use crate::recording::{NOT_MADE, made_by_memscoped};
use crate::session::Session;
use crate::units::{grouped, moment, plain};
use clap::ValueEnum;
use memscope_proto::v1::CoverageNote;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Write msMemScope's files: its folders with a dump for each device.
///
/// All that the journal has, or the recording, as the rows that msMemScope would have written: MALLOC and FREE of the
/// framework's pool (PTA) and of runtime and driver (HAL), marks, steps, launches, out of memory. check-leaks, compare and
/// msMemScope's own tools read them. Of a live daemon: for root.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo memscope-ctl export --format msmemscope-csv -o dumps
  memscope-ctl --recording run.mscope export --format msmemscope-db --pid 4242 -o dumps")]
pub(crate) struct Export {
    /// Format of the files.
    #[arg(long, value_enum)]
    pub(crate) format: ExportFormat,
    /// Only this process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// The folder that the folders come into.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Comma-separated values.
    MsmemscopeCsv,
    /// SQLite.
    MsmemscopeDb,
}

/// The files that memscoped wrote, as it describes them in JSON.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Made {
    pub(crate) folders: Vec<String>,
    rows: u64,
    events_left_out: u64,
    pub(crate) lost_records: u64,
    pub(crate) known_from_unix_ns: Option<u64>,
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

impl Made {
    /// Implements `--strict`: refuses rows that lack what was lost, what is older than the recording, or what cannot be read of it.
    pub(crate) fn exact(&self, session: &Session) -> Result<(), Failure> {
        if !session.global.strict {
            return Ok(());
        }
        let lost = (self.lost_records > 0).then(|| {
            let lost = grouped(self.lost_records);
            note("records_lost", format!("{lost} records were lost"))
        });
        let begins = self.known_from_unix_ns.map(|from| {
            let begin = moment(from);
            note("journal_begins_late", format!("the rows begin at {begin}"))
        });
        let damaged = damaged(&self.warnings);
        let notes: Vec<CoverageNote> = lost.into_iter().chain(begins).chain(damaged).collect();
        not_exact(&notes, &[HISTORY])
    }

    /// What could not be read of the recording, as lines of text.
    pub(crate) fn unread(&self) -> String {
        unread(&self.warnings)
    }
}

fn note(code: &str, text: String) -> CoverageNote {
    CoverageNote {
        code: code.to_owned(),
        text,
        affects: vec![HISTORY.to_owned()],
        lower_bound: true,
    }
}

/// What could not be read of a recording, as notes.
pub(crate) fn damaged(warnings: &[String]) -> impl Iterator<Item = CoverageNote> {
    let warnings = warnings.iter();
    warnings.map(|warning| note("recording_damaged", warning.clone()))
}

/// The same as lines of text.
pub(crate) fn unread(warnings: &[String]) -> String {
    let lines = warnings.iter().map(|warning| {
        format!(
            "A part of what was traced is missing in this: {}\n",
            plain(warning)
        )
    });
    lines.collect()
}

/// The kind of numbers that rows of what happened are.
pub(crate) const HISTORY: &str = "history";

/// Refuses `--as-of`: memscoped writes all rows that a recording has.
pub(crate) fn at_the_end(session: &Session) -> Result<(), Failure> {
    if session.global.as_of.is_none() {
        return Ok(());
    }
    Err(Failure::Usage {
        what: "msMemScope's files are written as of the end of a recording".into(),
        hint: "leave out --as-of".into(),
    })
}

impl Run for Export {
    /// At its end, memscoped must be stopped, and the private folder with the recording deleted.
    const CLEANS_UP: bool = true;

    fn check(&self, session: &Session) -> Result<(), Failure> {
        at_the_end(session)
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let made = files_of(session, self.format, self.pid, &self.output).await?;
        if let Err(refused) = made.exact(session) {
            // What was refused is not left behind.
            for folder in &made.folders {
                std::fs::remove_dir_all(folder).map_err(|source| Failure::Output {
                    what: format!("{folder}, which is not exact, cannot be removed"),
                    source,
                })?;
            }
            return Err(refused);
        }
        session.show(&made, text)
    }
}

/// Writes the files of a recording, or of what the live daemon has recorded, into a folder: of all processes, or of one.
pub(crate) async fn files_of(
    session: &Session,
    format: ExportFormat,
    pid: Option<u32>,
    output: &Path,
) -> Result<Made, Failure> {
    if let Some(recording) = &session.global.recording {
        return dump(recording, format, pid, output).await;
    }
    let client = session.daemon().await?;
    let folder = private_folder()?;
    let file = folder.path().join("recording");
    let mut target = Target::open(Some(&file))?;
    let unread = recorded_to(&client, &mut target).await?;
    target.finish()?;
    let mut made = dump(&file, format, pid, output).await?;
    // What left a gap in the copy may be told already.
    let untold = |warning: &String| !made.warnings.contains(warning);
    let untold: Vec<String> = unread.into_iter().filter(untold).collect();
    made.warnings.extend(untold);
    Ok(made)
}

/// A folder that nobody else can read, and that is deleted when it is dropped.
pub(crate) fn private_folder() -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix("memscope-").tempdir();
    made.map_err(|source| Failure::Output {
        what: "no private folder can be made for the recording".into(),
        source,
    })
}

async fn dump(
    recording: &Path,
    format: ExportFormat,
    pid: Option<u32>,
    output: &Path,
) -> Result<Made, Failure> {
    let format = match format {
        ExportFormat::MsmemscopeCsv => "csv",
        ExportFormat::MsmemscopeDb => "db",
    };
    let mut words: Vec<OsString> = vec!["--replay".into(), recording.into()];
    words.extend(["--dump", format, "--output"].map(OsString::from));
    words.push(output.into());
    if let Some(pid) = pid {
        words.extend(["--pid".into(), pid.to_string().into()]);
    }
    made_by_memscoped(&words, "not_exported", "write the files", NOT_MADE).await
}

fn text(made: &Made) -> String {
    let mut text = String::new();
    for folder in &made.folders {
        text.push_str(&format!("{folder}\n"));
    }
    text.push_str(&format!(
        "{} rows; {} events have none in msMemScope's files.\n",
        grouped(made.rows),
        grouped(made.events_left_out)
    ));
    if made.lost_records > 0 {
        text.push_str(&format!(
            "{} records were lost: of what they told there is no row.\n",
            grouped(made.lost_records)
        ));
    }
    if let Some(from) = made.known_from_unix_ns {
        text.push_str(&format!(
            "The older part of the recording is gone: the rows begin at {}, and blocks that came before it have no row \
             of their coming.\n",
            moment(from)
        ));
    }
    text.push_str(&made.unread());
    text
}
