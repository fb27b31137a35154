//! `uses`: which operators used the blocks at an address.

use clap::ArgGroup;
use memscope_dump::Reader;
use memscope_dump::uses::{Life, uses};
use serde::Serialize;
use std::path::PathBuf;

use super::super::export::Made;
use super::super::holders::address;
use super::super::run::Run;
use super::{Exported, from_one, of_rows, rows_of, table};
use crate::failure::{Exit, Failure};
use crate::render::table::{Column, table as columns};
use crate::session::Session;
use crate::units::{bytes, duration, grouped, plain, unknown};
use memscope_units::moment_ms;
use std::time::Duration;

/// Show which operators used the blocks at an address, and when these came and went.
///
/// Of a process that was attached with --accesses, of a recording of it (--recording), or of a dump of msMemScope's. An
/// operator that another one calls counts as a part of that one. Where a block was written last before it had wrong
/// contents is the operator to look at.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("of").required(true).args(["pid", "dump"])))]
#[command(after_help = "Examples:
  sudo memscope-ctl uses 0x7f3a5c000000 --pid 4242
  memscope-ctl uses 0x7f3a5c000000 --dump memscope_dump_20251120.csv

Exit codes: 0 done; 1 nothing is recorded of a block at this address, or the file cannot be read.")]
pub(crate) struct Uses {
    /// An address of the device: as tensor.data_ptr() gives it, or any other one in the block.
    #[arg(value_name = "ADDRESS", value_parser = address)]
    pub(crate) address: u64,
    /// This process, since it was attached last, as far as the journal reaches back. For root.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// A dump: memscope_dump_*.csv or .db.
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,
    /// Show so many blocks, and of each so many uses, the latest ones; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}

#[derive(Serialize)]
struct Document {
    address: String,
    lost_records: Option<u64>,
    known_from_unix_ns: Option<u64>,
    warnings: Vec<String>,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    pid: Option<u32>,
    device: String,
    pool: String,
    ptr: String,
    size_bytes: u64,
    came_unix_ns: u64,
    from_before: bool,
    went_unix_ns: Option<u64>,
    stack: Vec<String>,
    uses: Vec<Use>,
}

#[derive(Serialize)]
struct Use {
    time_unix_ns: u64,
    operator: String,
    access: String,
}

impl Run for Uses {
    /// The private folder with the recording must be deleted.
    const CLEANS_UP: bool = true;

    fn check(&self, session: &Session) -> Result<(), Failure> {
        from_one(self.dump.is_some(), session)
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let address = self.address;
        let (lives, made) = match &self.dump {
            Some(file) => {
                let file = file.clone();
                let look = move || uses(Reader::open(&file)?, address, false);
                (of_rows(look).await?, None)
            }
            None => {
                let exported = Exported::of(session, self.pid, false).await?;
                let files = exported.files();
                let look = move || uses(rows_of(files)?, address, true);
                (of_rows(look).await?, Some(exported.made))
            }
        };
        if lives.is_empty() {
            return Err(self.no_block());
        }
        let document = Document {
            address: format!("{:#x}", self.address),
            lost_records: made.as_ref().map(|made| made.lost_records),
            known_from_unix_ns: made.as_ref().and_then(|made| made.known_from_unix_ns),
            warnings: made
                .as_ref()
                .map_or_else(Vec::new, |made| made.warnings.clone()),
            blocks: lives.iter().map(block).collect(),
        };
        session.show(&document, |_| self.text(&lives, made.as_ref()))?;
        Ok(Exit::Done)
    }
}

fn block(life: &Life) -> Block {
    Block {
        pid: life.pid,
        device: life.device.to_string(),
        pool: life.pool.clone(),
        ptr: format!("{:#018x}", life.ptr),
        size_bytes: life.size,
        came_unix_ns: life.came_ns,
        from_before: life.shadow,
        went_unix_ns: life.went_ns,
        stack: life.stack.lines().map(str::to_owned).collect(),
        uses: life
            .uses
            .iter()
            .map(|one| Use {
                time_unix_ns: one.time_ns,
                operator: one.operator.to_string(),
                access: one.access.to_string(),
            })
            .collect(),
    }
}

impl Uses {
    /// The refusal where no block was at the address, whether operators were followed or not.
    fn no_block(&self) -> Failure {
        let what = format!("no block at {:#x}", self.address);
        let (what, more) = match self.pid {
            Some(pid) => (
                format!("{what} of process {pid} is recorded"),
                "; of blocks that were freed before it was attached last, or before the journal begins, nothing is known",
            ),
            None => (format!("{what} is in the dump"), ""),
        };
        Failure::Refused {
            exit: Exit::Failed,
            code: "no_block".to_owned(),
            what,
            hint: Some(format!(
                "tensor.data_ptr() gives the address of a tensor{more}"
            )),
        }
    }

    fn text(&self, lives: &[Life], made: Option<&Made>) -> String {
        let shown = match self.limit {
            0 => usize::MAX,
            limit => limit,
        };
        let mut text = String::new();
        let earlier = lives.len().saturating_sub(shown);
        if earlier > 0 {
            text.push_str(&format!(
                "{} earlier blocks at this address left out (--limit 0 shows all)\n\n",
                grouped(earlier as u64)
            ));
        }
        for life in lives.iter().skip(earlier) {
            text.push_str(&of_life(life, shown));
            text.push('\n');
        }
        let lost = made.map_or(0, |made| made.lost_records);
        if lost > 0 {
            text.push_str(&format!(
                "{} records were lost: uses may be missing.\n",
                grouped(lost)
            ));
        }
        text.push_str(&made.map_or_else(String::new, Made::unread));
        text
    }
}

fn of_life(life: &Life, shown: usize) -> String {
    let came = moment_ms(life.came_ns);
    let came = match life.shadow {
        true => format!("there before {came}"),
        false => format!("came {came}"),
    };
    let went = match life.went_ns {
        Some(went) => format!("freed {} later", since(life.came_ns, went)),
        None => "not freed since".to_owned(),
    };
    let line = match table::line(&life.stack) {
        line if line.is_empty() => unknown(),
        line => plain(&line),
    };
    let mut text = format!(
        "{:#x}, {} in {} on device {}: {came}, {went}, allocated at {line}\n",
        life.ptr,
        bytes(life.size),
        life.pool,
        life.device
    );
    if life.uses.is_empty() {
        text.push_str("  used by no operator that was followed\n");
        return text;
    }
    let earlier = life.uses.len().saturating_sub(shown);
    let rows = life.uses.iter().skip(earlier).map(|one| {
        vec![
            since(life.came_ns, one.time_ns),
            one.access.to_ascii_lowercase(),
            plain(&one.operator),
        ]
    });
    let head = [
        Column::Right("AFTER"),
        Column::Left("ACCESS"),
        Column::Left("OPERATOR"),
    ];
    text.push_str(&columns(&head, rows.collect()));
    if earlier > 0 {
        text.push_str(&format!(
            "{} earlier uses left out (--limit 0 shows all)\n",
            grouped(earlier as u64)
        ));
    }
    text
}

fn since(from_ns: u64, to_ns: u64) -> String {
    duration(Duration::from_nanos(to_ns.saturating_sub(from_ns)))
}
