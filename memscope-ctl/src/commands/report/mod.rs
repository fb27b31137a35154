//! `report`: writes what one sends on: a page, and what other analysers make of the same memory.

mod folder;
mod live;
mod names;

use super::run::Run;
use crate::commands::export::private_folder;
use crate::failure::{Exit, Failure, not_exact};
use crate::files;
use crate::progress::Progress;
use crate::session::Session;
use crate::units::{moment, plain};
use folder::Folder;
use memscope_report::{Figures, Report as Made, RuleSets};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most files on one side of a report.
const MOST_FILES: usize = 4096;
/// Kinds of numbers of which a report consists.
const KINDS: [&str; 6] = [
    "totals", "blocks", "layout", "segments", "history", "stacks",
];

/// Write a report that one sends on: a page, plots, and what other analysers make of the same memory.
///
/// Of a traced process (--pid), of a recording (--recording), or of PyTorch's snapshots, one of each rank. Makes a folder
/// DIR/TIME_NAME, and DIR/latest points to the newest. In it are report.html (needs no network and no script);
/// analysis_report.txt and five plots as torchtitan's memory analysis has them; memory_profile.json and .pb and a folder
/// for XProf; and mosaic's peak.json. Nothing in a pickle is run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl report --pid 4242 -o reports
  memscope-ctl report rank0.pickle rank1.pickle -o reports --name step-200
  memscope-ctl report new.pickle -o reports --against old.pickle
  memscope-ctl --recording run.mscope report -o reports")]
pub(crate) struct Report {
    /// Pickles of torch.cuda.memory._snapshot(), one of each rank. The rank's number is taken from the name (rank3…), else they
    /// are counted.
    #[arg(value_name = "FILE", conflicts_with = "pid")]
    pub(crate) files: Vec<PathBuf>,
    /// The process; may be left out while only one is traced, or in the recording.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// Folder in which the report's folder is made.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Name of the report; without it, a part of the path that contains lbs, batch or iteration, else the file's name or the process.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Compare with another run: its pickles, one of each rank.
    #[arg(long, value_name = "OTHER", num_args = 1..)]
    pub(crate) against: Vec<PathBuf>,
}

/// What was written.
#[derive(Serialize)]
struct Written {
    folder: String,
    files: Vec<String>,
    bytes: u64,
}

impl Run for Report {
    /// At its end, the folder that is not complete must be deleted.
    const CLEANS_UP: bool = true;

    fn check(&self, session: &Session) -> Result<(), Failure> {
        if !self.files.is_empty() && session.global.recording.is_some() {
            return Err(Failure::Usage {
                what: "--recording and files are two things to report on".into(),
                hint: "leave out one of them".into(),
            });
        }
        if self.files.len().max(self.against.len()) > MOST_FILES {
            return Err(Failure::Usage {
                what: format!("more than {MOST_FILES} files are too many for one report"),
                hint: "report on fewer ranks".into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let rules = RuleSets::new().map_err(cannot_make)?;
        let progress = Progress::of("reading");
        let strict = session.global.strict;
        let folder = Folder::make(&self.output)?;
        let (mut made, mut names) = match &self.files[..] {
            [] => self.of_process(session, &rules, &folder, &progress).await?,
            files => {
                let ranks = of_files(files, &rules, Some(&folder), &progress, strict).await?;
                (self.report(files, ranks), Vec::new())
            }
        };
        names.extend(made.ranks.iter().filter_map(space_of));
        if !self.against.is_empty() {
            let others = of_files(&self.against, &rules, None, &progress, strict).await?;
            let name = names::of_files(&self.against);
            for file in made.compare(&name, &others).map_err(cannot_make)? {
                folder.write(&file)?;
                names.push(file.0);
            }
        }
        progress.now("drawing".to_owned());
        for file in memscope_report::files(&made).map_err(cannot_make)? {
            folder.write(&file)?;
            names.push(file.0);
        }
        let bytes = folder.bytes();
        let stamp = memscope_units::in_utc(now_ns(), "%Y%m%d_%H%M%S");
        let path = folder.finish(&format!("{stamp}_{}", made.name))?;
        drop(progress);
        names.sort();
        let written = Written {
            folder: path.display().to_string(),
            files: names,
            bytes,
        };
        session.show(&written, |written| {
            let files: Vec<String> = written
                .files
                .iter()
                .map(|name| format!("  {name}\n"))
                .collect();
            format!("Wrote {}\n{}", plain(&written.folder), files.concat())
        })
    }
}

impl Report {
    /// The report of a traced process, or of one of a recording.
    async fn of_process(
        &self,
        session: &Session,
        rules: &RuleSets,
        folder: &Folder,
        progress: &Progress,
    ) -> Result<(Made, Vec<String>), Failure> {
        let client = session.client().await?;
        let pid = client.choose(self.pid).await?;
        progress.now("taking a snapshot".to_owned());
        let room = private_folder()?;
        let (picture, notes) = live::picture(&client, pid, room.path()).await?;
        if session.global.strict {
            // The daemon has judged the snapshot by what it has of the moment alone.
            not_exact(&notes, &KINDS)?;
        }
        progress.now("asking what leaks".to_owned());
        let live = live::answers(&client, pid).await?;
        let source = match &session.global.recording {
            Some(recording) => format!("process {pid} of the recording {}", recording.display()),
            None => format!("process {pid}"),
        };
        if let Some(space) = memscope_report::space(0, &picture, rules) {
            folder.write(&(space_name(0), space))?;
        }
        let figures = Figures::of(0, source, &picture, rules);
        let from = session.global.recording.as_deref();
        let name = from.map_or_else(|| format!("pid{pid}"), |path| names::of_files(&[path]));
        let mut made = self.report::<&Path>(&[], vec![figures]);
        made.name = self.name.as_deref().map_or(name, names::safe);
        made.live = Some(live);
        Ok((made, Vec::new()))
    }

    fn report<P: AsRef<Path>>(&self, files: &[P], ranks: Vec<Figures>) -> Made {
        let name = self.name.as_deref().map(names::safe);
        let sources = match ranks.len() {
            1 => "one process".to_owned(),
            count => format!("{count} ranks"),
        };
        Made {
            name: name.unwrap_or_else(|| names::of_files(files)),
            made: format!("Of {sources}, made {}.", moment(now_ns())),
            made_by: format!("memscope-ctl {} report.", env!("CARGO_PKG_VERSION")),
            ranks,
            live: None,
            compared: None,
        }
    }
}

/// Reads pickles, one after the other, so that only one is in memory. Writes the events of each for XProf.
async fn of_files(
    files: &[PathBuf],
    rules: &RuleSets,
    folder: Option<&Folder>,
    progress: &Progress,
    strict: bool,
) -> Result<Vec<Figures>, Failure> {
    let mut ranks = Vec::new();
    for (place, (path, rank)) in files.iter().zip(names::ranks(files)).enumerate() {
        progress.now(format!("reading file {} of {}", place + 1, files.len()));
        let (picture, notes) = files::picture(path).await?;
        if strict {
            not_exact(&notes, &KINDS)?;
        }
        if let Some(folder) = folder
            && let Some(space) = memscope_report::space(rank, &picture, rules)
        {
            folder.write(&(space_name(rank), space))?;
        }
        let source = path.display().to_string();
        ranks.push(Figures::of(rank, source, &picture, rules));
    }
    ranks.sort_by_key(|rank| rank.rank);
    Ok(ranks)
}

/// Where XProf looks for the events of a machine, below the folder that it is started with.
fn space_name(rank: u64) -> String {
    format!("xprof/plugins/profile/memscope/rank{rank}.xplane.pb")
}

fn space_of(rank: &Figures) -> Option<String> {
    (!rank.profiles.is_empty()).then(|| space_name(rank.rank))
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

fn cannot_make(source: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::Output {
        what: "the report cannot be made".into(),
        source: std::io::Error::other(source),
    }
}
