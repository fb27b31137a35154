//! `check-leaks`, `inefficient`, `uses`, `compare` and `import`: work on msMemScope's files. `inefficient` and `uses` also ask a running
//! daemon.

mod args;
mod table;
mod uses;

pub(crate) use args::{CheckLeaks, Compare, Import, Inefficient};
pub(crate) use uses::Uses;

use super::export::{self, ExportFormat, Made};
use super::run::Run;
use crate::apart::apart;
use crate::failure::{Exit, Failure};
use crate::file::Target;
use crate::output;
use crate::recording::{NOT_MADE, made_by_memscoped};
use crate::session::Session;
use crate::signals::interrupted;
use args::{CompareLevel, InefficientType};
use memscope_dump::compare::{self, CompareError, Level, Side};
use memscope_dump::inefficient::{self, Kind, Question};
use memscope_dump::leaks::{self, LeaksError};
use memscope_dump::{DumpError, Format, Reader, Row, Writer};
use std::error::Error;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit for an alignment, the same as msMemScope's.
const PATIENCE: Duration = Duration::from_secs(60);

/// Error message and suggestion of all four commands if `--recording` is given.
const NO_RECORDING: Option<(&str, &str)> = Some((
    "a recording is no dump of msMemScope's",
    "leave out --recording",
));

/// Refuses a file of msMemScope's beside a recording, and another moment than the end of a recording.
fn from_one(is_file: bool, session: &Session) -> Result<(), Failure> {
    let from_both = is_file && session.global.recording.is_some();
    let Some((what, hint)) = NO_RECORDING.filter(|_| from_both) else {
        return export::at_the_end(session);
    };
    Err(Failure::Usage {
        what: what.to_owned(),
        hint: hint.to_owned(),
    })
}

fn refused(code: &str, error: &dyn Error, hint: &str) -> Failure {
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        what.push_str(&format!(": {next}"));
        cause = next.source();
    }
    Failure::Refused {
        exit: Exit::Failed,
        code: code.to_owned(),
        what,
        hint: Some(hint.to_owned()),
    }
}

fn no_dump(error: DumpError) -> Failure {
    refused("no_dump", &error, error.hint())
}

impl Run for CheckLeaks {
    const NO_RECORDING: Option<(&'static str, &'static str)> = NO_RECORDING;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let rows = Reader::open(&self.file).map_err(no_dump)?;
        let report = leaks::offline_leaks(&self.file, rows, &self.mark, self.start_index)
            .map_err(no_dump)?;
        report.require(&self.mark).map_err(|error| {
            let hint = match error {
                LeaksError::UnknownMark { .. } => "name one of them with --mark",
                LeaksError::StartBeyondEnd { .. } => "begin earlier with --start-index",
                _ => "collect again, with at least three marks of that name on each device",
            };
            refused("no_marks", &error, hint)
        })?;
        let document = table::leaks_document(self, &report);
        output::although_closed(session.show(&document, |_| table::leaks(&report)))?;
        let leaked = table::leaked_blocks(&report) > 0;
        Ok(if leaked && self.exit_code {
            Exit::Growing
        } else {
            Exit::Done
        })
    }
}

fn kind(kind: InefficientType) -> Kind {
    match kind {
        InefficientType::EarlyAllocation => Kind::EarlyAllocation,
        InefficientType::LateDeallocation => Kind::LateDeallocation,
        InefficientType::TemporaryIdleness => Kind::TemporaryIdleness,
    }
}

impl Run for Inefficient {
    /// The private folder with the recording must be deleted.
    const CLEANS_UP: bool = true;

    fn check(&self, session: &Session) -> Result<(), Failure> {
        from_one(self.file.is_some(), session)
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let mut question = Question {
            min_size: self.min_size,
            idle_threshold: self.idle_threshold,
            ..Question::default()
        };
        if !self.types.is_empty() {
            question.kinds = self.types.iter().copied().map(kind).collect();
        }
        let (report, made) = match (&self.file, self.pid) {
            (Some(file), _) => {
                let file = file.clone();
                let look = move || {
                    let rows = Reader::open(&file)?;
                    inefficient::inefficient(&file, rows, &question)
                };
                (of_rows(look).await?, None)
            }
            (None, pid) => {
                question.since_start = true;
                let exported = Exported::of(session, pid, true).await?;
                let (folder, files) = (exported.folder.path().to_owned(), exported.files());
                let look = move || inefficient::inefficient(&folder, rows_of(files)?, &question);
                (of_rows(look).await?, Some(exported.made))
            }
        };
        if report.accesses == 0 {
            return Err(match self.pid {
                Some(pid) => no_accesses(pid),
                None => Failure::Refused {
                    exit: Exit::Failed,
                    code: "no_accesses".to_owned(),
                    what: format!("{NO_ACCESS} is in the dump"),
                    hint: Some(
                        "collect again with accesses: msmemscope --events alloc,free,access,launch"
                            .to_owned(),
                    ),
                },
            });
        }
        if let (Some(file), Some(out)) = (&self.file, &self.output) {
            // Signals are awaited here, because a killed program would leave a half-written file beside the output.
            let write = write_marked(file, out, &report.findings);
            tokio::select! {
                biased;
                () = interrupted() => return Ok(Exit::Failed),
                result = write => result.map_err(no_dump)?,
            }
        }
        session.show(
            &table::findings_document(self, &report, made.as_ref()),
            |_| table::findings(self, &report, made.as_ref()),
        )?;
        Ok(Exit::Done)
    }
}

/// What is missing where no operator was followed.
const NO_ACCESS: &str = "no access to a block by an operator";

/// The refusal where a process was attached without its accesses.
fn no_accesses(pid: u32) -> Failure {
    Failure::Refused {
        exit: Exit::Failed,
        code: "no_accesses".to_owned(),
        what: format!("{NO_ACCESS} of process {pid} is recorded"),
        hint: Some(format!(
            "attach it so that they are followed (memscope-ctl detach {pid}; memscope-ctl attach {pid} --accesses), and ask again \
             when it has worked for a while; memscope-ctl stats {pid} says what could not be seen"
        )),
    }
}

/// The rows of a process, in a private folder that is deleted when this is dropped.
struct Exported {
    folder: TempDir,
    made: Made,
}

impl Exported {
    /// Those of a recording, or of what the live daemon has recorded; of one process, or of all. A live process whose operators are not
    /// followed is refused at once if they must be.
    async fn of(
        session: &Session,
        pid: Option<u32>,
        must_be_followed: bool,
    ) -> Result<Exported, Failure> {
        if let (Some(pid), None) = (pid, &session.global.recording) {
            // A process that is not traced is refused as everywhere.
            let stats = session.daemon().await?.stats(pid).await?;
            // To write all its rows may take long.
            let followed = stats.placement.unwrap_or_default().operators;
            if must_be_followed && followed == 0 {
                return Err(no_accesses(pid));
            }
        }
        let folder = export::private_folder()?;
        let format = ExportFormat::MsmemscopeCsv;
        let made = export::files_of(session, format, pid, folder.path()).await?;
        made.exact(session)?;
        Ok(Exported { folder, made })
    }

    /// The files, one of each device.
    fn files(&self) -> Vec<PathBuf> {
        let folders = self.made.folders.iter();
        let files = folders.flat_map(|one| dumps_below(Path::new(one)));
        files.collect()
    }
}

/// All rows, those of one file after those of another one.
fn rows_of(
    files: Vec<PathBuf>,
) -> Result<impl Iterator<Item = Result<Row, DumpError>> + use<>, DumpError> {
    let mut readers = Vec::new();
    for file in files {
        readers.push(Reader::open(&file)?);
    }
    Ok(readers.into_iter().flatten())
}

/// Looks at rows, of which there may be many, in a thread of its own.
async fn of_rows<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, DumpError> + Send + 'static,
) -> Result<T, Failure> {
    let looked = apart(look).await.map_err(|source| Failure::Output {
        what: "the dump cannot be read".into(),
        source,
    })?;
    looked.map_err(no_dump)
}

/// The dumps in a folder and the folders in it.
fn dumps_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            found.extend(dumps_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "csv")
            && entry
                .file_name()
                .to_string_lossy()
                .starts_with("memscope_dump")
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Number of rows that are written between two checks for a signal.
const ROWS_PER_LOOK: usize = 10_000;

async fn write_marked(
    from: &Path,
    to: &Path,
    findings: &[inefficient::Finding],
) -> Result<(), DumpError> {
    let rows = Reader::open(from)?;
    let mut writer = Writer::create(to, Format::of(to))?;
    for (number, row) in inefficient::mark_rows(rows, findings).enumerate() {
        writer.write(&row?)?;
        if number % ROWS_PER_LOOK == 0 {
            tokio::task::yield_now().await;
        }
    }
    writer.finish()
}

impl Run for Compare {
    const NO_RECORDING: Option<(&'static str, &'static str)> = NO_RECORDING;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let level = match self.level {
            CompareLevel::Op => Level::Op,
            CompareLevel::Kernel => Level::Kernel,
        };
        let side = |path: &Path| {
            let rows = Reader::open(path)?;
            Side::read(path, rows, level)
        };
        let base = side(&self.base).map_err(no_dump)?;
        let second = side(&self.compare).map_err(no_dump)?;
        let deadline = Instant::now() + PATIENCE;
        let mut go_on = || Instant::now() < deadline;
        let differences = compare::compare(&base, &second, &mut go_on).map_err(|error| {
            let (exit, hint) = match error {
                CompareError::Nothing { .. } => (
                    Exit::Failed,
                    "collect with --events launch, or try the other --level",
                ),
                CompareError::OutOfTime { .. } => (
                    Exit::Timeout,
                    "compare shorter runs, or runs that are more alike",
                ),
                _ => (Exit::Failed, "compare runs that are more alike"),
            };
            Failure::Refused {
                exit,
                code: "not_compared".to_owned(),
                what: error.to_string(),
                hint: Some(hint.to_owned()),
            }
        })?;
        if let Some(path) = &self.output {
            let mut bytes = Vec::new();
            // Writing into memory cannot fail.
            compare::write_csv(&mut bytes, &differences).map_err(output::cannot_print)?;
            let mut target = Target::open(Some(path))?;
            target.write(&bytes)?;
            target.finish()?;
        }
        session.show(&table::differences_document(self, &differences), |_| {
            table::differences(self, &differences)
        })?;
        Ok(Exit::Done)
    }
}

/// Whether a file begins as pickles do. A pipe is none: what is read of it is gone.
fn is_pickle(file: &Path) -> bool {
    if !std::fs::metadata(file).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let mut first = [0];
    let read = std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == [0x80]
}

impl Run for Import {
    const NO_RECORDING: Option<(&'static str, &'static str)> = NO_RECORDING;

    /// At its end, the memscoped that works for it must be stopped.
    const CLEANS_UP: bool = true;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        // The file is opened before memscoped is started, so that a file that is no dump gets the error message for
        // dumps. What memscoped says of a pickle names the file itself.
        if !is_pickle(&self.file) {
            drop(Reader::open(&self.file).map_err(no_dump)?);
        }
        let words: [OsString; 4] = [
            "--import".into(),
            self.file.clone().into(),
            "--output".into(),
            self.output.clone().into(),
        ];
        let what = format!("import {}", self.file.display());
        let made: table::Made = made_by_memscoped(&words, "not_imported", &what, NOT_MADE).await?;
        session.show(&made, |_| table::made(&made))?;
        Ok(Exit::Done)
    }
}
