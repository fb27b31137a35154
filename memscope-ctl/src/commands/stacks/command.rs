//! `stacks`: which stacks, functions, files or lines allocated it.

use super::summed;
use super::table;
use super::view::View;
use crate::client::Client;
use crate::commands::each::{documents_by, each};
use crate::commands::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Fleet, of_processes};
use crate::moment::in_order;
use crate::output::{self, no_json};
use crate::process::Processes;
use crate::session::Session;
use clap::ValueEnum;
use memscope_proto::v1;
use serde_json::{Value, json};

/// Show whose memory it is: which stacks, functions, files or lines allocated it.
///
/// Frames stand innermost first; those of libraries that are left out are counted. Of sums, exclusive
/// is where the innermost frame is the one named, inclusive where it is anywhere in the stack.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl stacks --pid 4242                        the stacks that hold most
  memscope-ctl stacks --pid 4242 --from -5m             those that grew most in five minutes
  memscope-ctl stacks --pid 4242 --by function --cumulative
  memscope-ctl stacks --pid 4242 --by line --metric peak --device 0
  memscope-ctl stacks --pid 4242 --limit 0 --json | jq '.rows[0].frames'")]
pub(crate) struct Stacks {
    #[command(flatten)]
    pub(crate) processes: Processes,
    /// By what to sum up [default: stack, with --fleet line]
    #[arg(long, value_enum)]
    pub(crate) by: Option<By>,
    #[command(flatten)]
    pub(crate) view: View,
    /// Sums in order of the inclusive column.
    #[arg(long)]
    pub(crate) cumulative: bool,
    /// At most so many rows, 0 for as many as an answer takes [default: 10]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,
    /// At most so many lines of each stack, 0 for all its frames [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) frames: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Each stack for itself.
    Stack,
    /// Function: name and file.
    Function,
    /// File.
    File,
    /// The program's own line: what a library's function allocates belongs to the line that called it.
    Line,
    /// Any line, also of libraries.
    AnyLine,
}

impl By {
    /// The grouping as a request carries it.
    pub(crate) fn wire(self) -> v1::StackGrouping {
        match self {
            By::Stack => v1::StackGrouping::Stack,
            By::Function => v1::StackGrouping::Function,
            By::File => v1::StackGrouping::File,
            By::Line => v1::StackGrouping::OwnLine,
            By::AnyLine => v1::StackGrouping::Line,
        }
    }
}

impl Run for Stacks {
    fn check(&self, _: &Session) -> Result<(), Failure> {
        in_order(self.view.from.as_ref(), self.view.at.as_ref())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let ask = async |pid| {
            let question = self.question(pid, By::Stack, self.limit());
            client
                .ask(question, async |mut rpc, request| rpc.stacks(request).await)
                .await
        };
        let show = |answer: &_| table::text(answer, self.frames());
        let json = session.global.json;
        let (_, exit) = each(&client, &self.processes, json, ask, show, document).await?;
        Ok(exit.unwrap_or(Exit::Done))
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let ask = async |asking: &fleet::Asking<'_>| {
            let stacks = async |pid| {
                let limit = match self.limit() {
                    0 => 0,
                    limit => limit.saturating_mul(EACH).max(OF_EACH),
                };
                let call = async |mut rpc: crate::client::Rpc, request| rpc.stacks(request).await;
                asking.ask(self.question(pid, By::Line, limit), call).await
            };
            of_processes(asking, &self.processes, stacks).await
        };
        let replies = fleet.ask(ask).await.any()?;
        let (rows, lines) = (self.limit() as usize, self.frames());
        let text = |replies: &_| summed::text(replies, self.cumulative, rows, lines);
        let documents = |told: &_| documents_by(told, document);
        fleet::show_processes(&replies, &self.processes, session, text, documents)
    }
}

/// Times the shown rows that each process of a fleet is asked for: what is small in one may be large in all.
const EACH: u32 = 5;
/// Rows that each process is asked for at least.
const OF_EACH: u32 = 50;
/// Rows that are shown where no number is asked for.
const ROWS: u32 = 10;
/// Lines of each stack that are shown where no number is asked for.
const LINES: usize = 8;

impl Stacks {
    /// Whether any option is given that says how the table is to be made; the processes are none.
    pub(crate) fn has_options(&self) -> bool {
        self.by.is_some()
            || self.cumulative
            || self.limit.is_some()
            || self.frames.is_some()
            || self.view.is_given()
    }

    fn limit(&self) -> u32 {
        self.limit.unwrap_or(ROWS)
    }

    fn frames(&self) -> usize {
        self.frames.unwrap_or(LINES)
    }

    fn question(&self, pid: u32, by: By, limit: u32) -> v1::StacksRequest {
        v1::StacksRequest {
            pid,
            at: self.view.at.clone(),
            from: self.view.from.clone(),
            view: Some(self.view.wire()),
            by: self.by.unwrap_or(by).wire().into(),
            cumulative: self.cumulative,
            limit,
        }
    }
}

/// `diff --by stack` between two moments: what each stack holds more or less.
pub(in crate::commands) async fn grown(
    client: &Client,
    pid: u32,
    between: Between,
    session: &Session,
) -> Result<Exit, Failure> {
    let question = v1::StacksRequest {
        pid,
        at: between.to,
        from: between.from,
        view: Some(v1::StackView {
            metric: v1::StackMetric::Growth.into(),
            unit: v1::StackUnit::Bytes.into(),
            device: None,
        }),
        by: v1::StackGrouping::Stack.into(),
        cumulative: false,
        limit: u32::try_from(between.limit).unwrap_or(u32::MAX),
    };
    let answer = client
        .ask(question, async |mut rpc, request| rpc.stacks(request).await)
        .await?;
    if session.global.json {
        output::json(&document(&answer)?)?;
    } else {
        output::text(&table::text(&answer, FRAMES))?;
    }
    Ok(Exit::Done)
}

/// Largest number of lines that `diff` shows of a stack.
const FRAMES: usize = 12;

/// Two moments, and the largest number of rows.
pub(in crate::commands) struct Between {
    pub(in crate::commands) from: Option<v1::Moment>,
    pub(in crate::commands) to: Option<v1::Moment>,
    pub(in crate::commands) limit: usize,
}

/// The answer as JSON, with complete frames in each row: on the wire, frames and names are indices into tables.
pub(in crate::commands) fn document(answer: &v1::StacksResponse) -> Result<Value, Failure> {
    // Unknown is null in JSON.
    let string = |place: u32| answer.strings.get(place as usize).filter(|s| !s.is_empty());
    let frame = |place: &u32| {
        let frame = answer.frames.get(*place as usize);
        frame.map(|frame| {
            json!({
                "kind": frame.kind().to_string(),
                "name": string(frame.name),
                "file": string(frame.file),
                "line": (frame.line > 0).then_some(frame.line),
            })
        })
    };
    let mut document = serde_json::to_value(answer).map_err(no_json)?;
    let Some(fields) = document.as_object_mut() else {
        return Ok(document);
    };
    fields.remove("strings");
    fields.remove("frames");
    let rows = fields.get_mut("rows").and_then(Value::as_array_mut);
    for (made, row) in rows.into_iter().flatten().zip(&answer.rows) {
        made["frames"] = row.frames.iter().map(frame).collect();
    }
    let groups = fields.get_mut("groups").and_then(Value::as_array_mut);
    for (made, group) in groups.into_iter().flatten().zip(&answer.groups) {
        made["frame"] = group.frame.as_ref().and_then(frame).unwrap_or_default();
    }
    Ok(document)
}
