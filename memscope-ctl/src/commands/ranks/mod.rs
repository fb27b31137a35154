//! `ranks`: which rank of a job is unlike the others, and which lines make it so.

mod flamegraph;
mod gather;
mod job;
mod table;

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Fleet, Replies};
use crate::output::{self, ErrorBody, no_json};
use crate::session::Session;
use flamegraph::draw;
use gather::{Members, RANKS_MOST, of_node};
use job::{Job, jobs};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Compare the ranks of a job: which one is unlike the others, how sure that is, and which lines make it so.
///
/// Ranks are compared by their peak, what their pools reserve, their floor (the lowest level of the last steps), their growth, and the
/// median time of their steps. Ranks of one job may differ: those that look alike form groups, as the stages of a pipeline do. A rank
/// stands out if no other looks like it while all others have company. Confidence is one minus the chance that ranks with the
/// others' spread bring forth such a rank by themselves, times the number of comparisons; from 0.99 on it is said to stand out. Fewer
/// than eight ranks are too few to judge by distance; a leak that the others do not have is told of two already, from a confidence of
/// 0.8 on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl ranks                                 those of this machine
  memscope-ctl --fleet nodes.txt ranks               those of all nodes
  memscope-ctl --fleet nodes.txt ranks --flamegraph odd.svg
  memscope-ctl --fleet nodes.txt ranks --job slurm:1234.0 --json")]
pub(crate) struct Ranks {
    /// Only this job, as the table names it; without it, each job has a table.
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Also draw what the odd rank holds, beside the rank that is most like it: red has more, blue has less. Written whole or not at
    /// all, and only if a rank stands out by its memory; a name that ends in .folded or .txt gets the numbers as text.
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<PathBuf>,
    /// Exit with 10 when a rank stands out.
    #[arg(long)]
    exit_code: bool,
}

impl Run for Ranks {
    const CLEANS_UP: bool = true;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        if session.global.as_of.is_some() {
            return Err(Failure::Usage {
                what: "ranks are compared as of the end of a recording".into(),
                hint: "leave out --as-of".into(),
            });
        }
        self.fleet(session, &Fleet::of_one(session)?).await
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let (replies, jobs) = gathered(fleet, self.job.as_deref()).await?;
        output::although_closed(match session.global.json {
            true => output::json(&document(&replies, &jobs)?),
            false => {
                let each = replies.answers();
                let each = each.map(|(node, members)| (node, members.not_asked));
                let cut = fleet::not_asked(each, "ranks", RANKS_MOST);
                let refused = fleet::refused(refused(&replies).collect());
                let told = replies.told();
                output::text(&format!(
                    "{}{told}{refused}{cut}",
                    table::text(&jobs, self.job.as_deref())
                ))
            }
        })?;
        if let Some(path) = &self.flamegraph {
            let drawn = draw(fleet, &jobs, path).await?;
            output::note(&match drawn {
                None => "no flame graph is drawn: no rank stands out by its memory".to_owned(),
                Some(drawn) => format!(
                    "rank {} beside rank {} is drawn in {}",
                    drawn.rank,
                    drawn.beside,
                    path.display()
                ),
            });
        }
        if self.exit_code && jobs.iter().any(|job| !job.judgement.odd.is_empty()) {
            return Ok(Exit::Growing);
        }
        Ok(match refused(&replies).next() {
            Some((_, failure)) => failure.exit(),
            None if not_asked(&replies) > 0 => Exit::Partly,
            None => replies.exit(),
        })
    }
}

/// The ranks of which something was refused, by name, and why.
fn refused(replies: &Replies<Members>) -> impl Iterator<Item = (String, &Failure)> {
    let each = replies.answers();
    each.flat_map(|(node, members)| {
        let refused = members.refused.iter();
        refused.map(move |(pid, failure)| (format!("{} pid {pid}", node.name), failure))
    })
}

/// How many ranks were not asked about.
fn not_asked(replies: &Replies<Members>) -> usize {
    let each = replies.answers();
    each.map(|(_, members)| members.not_asked).sum()
}

/// The replies of all nodes, and the jobs that the ranks are of: all, or the wanted one.
async fn gathered(
    fleet: &Fleet,
    wanted: Option<&str>,
) -> Result<(Replies<Members>, Vec<Job>), Failure> {
    let ask = async |asking: &crate::fleet::Asking<'_>| of_node(asking, wanted).await;
    let replies = fleet.ask(ask).await.any()?;
    let jobs = jobs(&replies);
    // Whoever was not heard may have ranks of the job.
    let heard_all = replies.unanswered().next().is_none() && not_asked(&replies) == 0;
    match wanted {
        Some(job) if jobs.is_empty() && heard_all => Err(Failure::Usage {
            what: format!("no traced process belongs to a rank of the job {job}"),
            hint: "without --job, the jobs that there are have tables".into(),
        }),
        _ => Ok((replies, jobs)),
    }
}

/// What the ranks of a fleet answer with `--json`.
pub(super) async fn compared(fleet: &Fleet, wanted: Option<&str>) -> Result<Value, Failure> {
    let (replies, jobs) = gathered(fleet, wanted).await?;
    document(&replies, &jobs)
}

fn document(replies: &Replies<Members>, jobs: &[Job]) -> Result<Value, Failure> {
    let answer = |members: &Members| {
        let each = members.asked.iter().map(|member| {
            let mut told =
                json!({"pid": member.pid, "rank": member.of.rank, "job": member.place.job});
            let mut refused = members.refused.iter();
            if let Some((_, why)) = refused.find(|(pid, _)| *pid == member.pid) {
                told["error"] = serde_json::to_value(ErrorBody::from(why)).map_err(no_json)?;
            }
            Ok(told)
        });
        each.collect()
    };
    let jobs = jobs.iter().map(job::document);
    let jobs = jobs.collect::<Result<Value, Failure>>()?;
    let further = vec![
        ("jobs", jobs),
        ("refused", refused(replies).count().into()),
        ("not_asked", not_asked(replies).into()),
    ];
    replies.document(answer, further)
}
