//! `holders`: which Python objects keep the memory of a process alive.

mod every;

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::process::Process;
use crate::render::table::{Column, table};
use crate::render::{coverage, name};
use crate::session::Session;
use crate::units::{bytes, grouped, moment, parse_timeout, plain};
use memscope_proto::v1::{self, HolderOrigin, HolderVia};
use std::time::Duration;

/// Rows that a table shows where no number is asked for.
const ROWS: u32 = 30;

/// Show which Python objects keep device memory alive: the variable, the list, the attribute.
///
/// The process's objects are read from its memory, while it goes on and without stopping it; nothing is loaded into it. Each block gets the
/// shortest way from a module or a local variable to a tensor that has it: as its memory, as its gradient, or saved by the autograd graph
/// that made the tensor. Elements are counted together: `trainer.history[*]`. What is held by nothing but itself waits for Python's garbage
/// collector, and `gc.collect()` frees it. Each way is read twice, and a block whose way was not the same is counted as unsure.
///
/// CPython 3.9 to 3.15, with the GIL. A recording has no objects that could be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl holders --pid 4242
  memscope-ctl holders --pid 4242 --every 30s                what grows, and by how much
  memscope-ctl holders --pid 4242 --address 0x7f3a5c000000   the whole way to one block
  memscope-ctl holders --pid 4242 --json | jq '.holders[] | {path, length, blocks}'")]
pub(crate) struct Holders {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Show only what holds the blocks in which these addresses lie (commas between them). The whole way is shown if it is one.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = address)]
    pub(crate) address: Vec<u64>,
    /// With --address: also what holds all other blocks of the same size that the same stack allocated.
    #[arg(long, requires = "address")]
    pub(crate) alike: bool,
    /// Largest number of rows; 0 for all. A table shows 30 if it is not given, JSON all.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,
    /// Read again and again, with so much time from one reading to the next, and show which holders changed: how many blocks and bytes there
    /// are more or fewer, and by how much a list grew. With --json a line for each reading, with all holders.
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub(crate) every: Option<Duration>,
    /// With --every: read so many times, then end.
    #[arg(long, value_name = "N", requires = "every", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

pub(crate) fn address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "an address is a number, in hexadecimal with 0x before it".to_owned())
}

impl Run for Holders {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let json = session.global.json;
        let mut question = v1::HoldersRequest {
            pid: client.choose(self.process.pid()).await?,
            addresses: self.address.clone(),
            limit: self.limit.unwrap_or(if json { 0 } else { ROWS }),
            alike: self.alike,
        };
        if let Some(interval) = self.every {
            if !json {
                question.limit = 0;
            }
            every::again(self, &client, question, interval, json).await?;
            return Ok(Exit::Done);
        }
        let answer = client
            .ask(question, async |mut rpc, request| {
                rpc.holders(request).await
            })
            .await?;
        session.show(&answer, text)
    }
}

fn text(answer: &v1::HoldersResponse) -> String {
    let process = answer.process.as_ref();
    let mut text = format!(
        "{}  as of {}\n",
        process.map_or_else(|| format!("pid {}", answer.pid), name),
        moment(answer.as_of)
    );
    let garbage = answer.garbage.unwrap_or_default();
    if garbage.count > 0 {
        text.push_str(&format!(
            "\n{} wait for Python's garbage collector; `gc.collect()` in the process frees them\n",
            amount(garbage)
        ));
    }
    let head = [
        Column::Left("HELD BY"),
        Column::Left("AS"),
        Column::Right("BLOCKS"),
        Column::Right("SIZE"),
        Column::Left("CONTAINER"),
    ];
    let rows = answer.holders.iter().map(|holder| {
        let blocks = holder.blocks.unwrap_or_default();
        vec![
            plain(&holder.path),
            via(holder.via()).to_owned(),
            grouped(blocks.count),
            bytes(blocks.bytes),
            container(holder),
        ]
    });
    text.push('\n');
    text.push_str(&table(&head, rows.collect()));
    if answer.more > 0 {
        text.push_str(&format!("and {} more (--limit 0 shows all)\n", answer.more));
    }
    text.push_str(&sums(answer));
    if let [only] = answer.holders.as_slice() {
        text.push_str(&way(only));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn amount(amount: v1::Amount) -> String {
    let blocks = if amount.count == 1 { "block" } else { "blocks" };
    format!(
        "{} {blocks} ({})",
        grouped(amount.count),
        bytes(amount.bytes)
    )
}

/// The numbers below the table.
fn sums(answer: &v1::HoldersResponse) -> String {
    let all = answer.blocks.unwrap_or_default();
    let mut text = format!("\n{} were looked at", amount(all));
    let unheld = answer.unheld.unwrap_or_default();
    if unheld.count > 0 {
        text.push_str(&format!(
            "; of {} no holder was found (C++ code holds them, or they were in use)",
            amount(unheld)
        ));
    }
    let unsure = answer.holders.iter().filter_map(|holder| holder.unsure);
    let (count, size) = unsure.fold((0, 0), |sum, one| (sum.0 + one.count, sum.1 + one.bytes));
    if count > 0 {
        let unsure = v1::Amount { count, bytes: size };
        text.push_str(&format!(
            "; the way to {} changed while it was read",
            amount(unsure)
        ));
    }
    text.push_str(&format!(
        ". {} objects, {:.1} s.\n",
        grouped(answer.objects),
        answer.duration_ns as f64 / 1e9
    ));
    text
}

const fn via(via: HolderVia) -> &'static str {
    match via {
        HolderVia::Tensor => "tensor",
        HolderVia::Gradient => "gradient",
        HolderVia::Graph => "autograd graph",
        HolderVia::Unspecified => "",
    }
}

/// `list of 50`
fn container(holder: &v1::Holder) -> String {
    let from = match holder.origin() {
        HolderOrigin::Garbage => return "waits for the collector".to_owned(),
        HolderOrigin::Outside => "not from a name; ",
        HolderOrigin::Named | HolderOrigin::Unspecified => "",
    };
    match (&holder.kind, holder.length) {
        (Some(kind), Some(length)) => format!("{from}{} of {}", plain(kind), grouped(length)),
        (Some(kind), None) => format!("{from}{}", plain(kind)),
        (None, _) => from.trim_end_matches("; ").to_owned(),
    }
}

/// The way to a block, a step in a line.
fn way(holder: &v1::Holder) -> String {
    let mut text = format!("\nThe way to the block at {:#x}:\n", holder.example_address);
    for step in &holder.way {
        let part = match step.part.as_str() {
            "" => "(part of it)".to_owned(),
            part => plain(part),
        };
        let length = step
            .length
            .map_or_else(String::new, |n| format!(" of {}", grouped(n)));
        let place = match step.file.as_str() {
            "" => String::new(),
            file => format!("  {}:{}", plain(file), step.line),
        };
        text.push_str(&format!("  {part}  {}{length}{place}\n", plain(&step.kind)));
    }
    text
}
