//! `marks`: the moments of a process that have a name.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::process::Process;
use crate::render::table::{Column, table};
use crate::render::{coverage, heading};
use crate::session::Session;
use crate::units::{self, grouped, moment, plain};
use memscope_proto::v1;

/// List the moments of a process that have a name: each is a moment wherever one is asked for.
///
/// Marks are made with mark, by the program (memscope's library, NVTX, mstx, record_function) or, with --all, by PyTorch
/// itself. Of each name the last 64 are kept, at most 1,024 of each origin; beneath the list stands how many there were.
/// mark:NAME is right after the last mark of that name, mark:NAME#2 after the second one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl marks --pid 4242
  memscope-ctl diff --pid 4242 --from 'mark:new data set'
  memscope-ctl pool --pid 4242 --from 'mark:epoch#1' --at 'mark:epoch#2'")]
pub(crate) struct Marks {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Also those that PyTorch makes by itself: steps of optimizers, backward passes.
    #[arg(long)]
    pub(crate) all: bool,
    /// Show so many of the last ones, 0 for all that are kept.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) last: u32,
}

impl Run for Marks {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let question = v1::MarksRequest {
            pid: client.choose(self.process.pid()).await?,
            limit: self.last,
            include_framework: self.all,
        };
        let answer = client
            .ask(question, async |mut rpc, request| rpc.marks(request).await)
            .await?;
        session.show(&answer, |answer| text(answer, self.all))
    }
}

fn text(answer: &v1::MarksResponse, all: bool) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    text.push('\n');
    if answer.marks.is_empty() {
        text.push_str("No mark to show.\n");
    } else {
        text.push_str(&rows(&answer.marks));
    }
    text.push_str(&counts(answer, all));
    text.push_str(&coverage(&answer.coverage));
    text
}

fn rows(marks: &[v1::NamedMoment]) -> String {
    let head = [
        Column::Right("TIME"),
        Column::Left("NAME"),
        Column::Right("#"),
        Column::Left("KIND"),
        Column::Left("MADE WITH"),
        Column::Right("THREAD"),
        Column::Right("STEP"),
        Column::Right("EVENT"),
    ];
    let rows = marks.iter().map(|mark| {
        vec![
            mark.time_unix_ns.map_or_else(units::unknown, moment),
            plain(&mark.name) + if mark.cut { "…" } else { "" },
            mark.nth.map_or_else(units::unknown, grouped),
            match mark.kind() {
                v1::MarkKind::Begin => "range".to_owned(),
                kind => kind.to_string(),
            },
            mark.source().to_string(),
            mark.tid.map_or_else(String::new, |tid| tid.to_string()),
            mark.step.map_or_else(units::unknown, grouped),
            mark.event.unwrap_or_default().sequence.to_string(),
        ]
    });
    table(&head, rows.collect())
}

/// How many there were, where the list is not all of them.
fn counts(answer: &v1::MarksResponse, all: bool) -> String {
    let mut text = String::new();
    for of in &answer.counts {
        let who = match of.origin() {
            v1::MarkOrigin::People => "from outside",
            v1::MarkOrigin::Program => "by the program",
            v1::MarkOrigin::Framework => "by PyTorch itself",
            v1::MarkOrigin::Unspecified => continue,
        };
        let shown = answer
            .marks
            .iter()
            .filter(|mark| mark.origin() == of.origin())
            .count() as u64;
        if of.count == shown {
            continue;
        }
        let hidden = of.origin() == v1::MarkOrigin::Framework && !all;
        text.push_str(&format!(
            "{} were made {who}; {} are kept, {shown} shown{}\n",
            grouped(of.count),
            grouped(of.kept),
            if hidden { " (--all shows them)" } else { "" }
        ));
    }
    text
}
