//! `holders`: which Python objects keep the memory of a process alive.

mod every;
pub(in crate::commands) mod table;

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::process::Process;
use crate::session::Session;
use crate::units::parse_timeout;
use every::Again;
use memscope_proto::v1;
use std::time::Duration;
use table::rows;

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
        let question = v1::HoldersRequest {
            pid: client.choose(self.process.pid()).await?,
            addresses: self.address.clone(),
            // A table is cut here: what is said beneath it is of all rows, and with --every any of them may change.
            limit: if json { self.limit.unwrap_or(0) } else { 0 },
            alike: self.alike,
        };
        if let Some(interval) = self.every {
            let again = Again {
                interval,
                count: self.count,
                limit: self.limit,
                json,
            };
            again.ask(&client, question).await?;
            return Ok(Exit::Done);
        }
        let answer = client
            .ask(question, async |mut rpc, request| {
                rpc.holders(request).await
            })
            .await?;
        session.show(&answer, |answer| table::text(answer, rows(self.limit)))
    }
}
