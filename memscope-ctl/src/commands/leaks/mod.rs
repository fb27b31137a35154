//! `leaks`: which lines of the program keep more and more memory.

pub(in crate::commands) mod table;

pub(crate) use table::headline;

use super::each::{documents, each, whole};
use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Fleet, Replies, Told, of_processes};
use crate::process::Processes;
use crate::session::Session;
use crate::units::{in_nanoseconds, parse_duration};
use memscope_proto::v1;
use std::time::Duration;

/// Show which lines of the program keep more and more memory.
///
/// A line stands for all groups of live blocks that it allocated; --all-groups shows them one by one. A group shares device,
/// stream, size and stack. Where steps are known (see steps --help), its floor is followed from
/// step to step: the lowest number of its blocks that lived within a step, and below which it never fell again. A group
/// grows when that keeps rising for long enough (--sure-after), does not slow down and is not given back: so neither
/// warm-up, optimizer state, caches that fill, evaluations nor saw-teeth count. Without steps, time is the measure.
/// Confidence is the share of such growths that go on, if half of the caches that fill are full after 25 steps.
///
/// What rises and has not been watched for so long is no growth yet, and no reason to say that there is none: the headline then
/// says that it is too early to tell. What grew until it was given back is listed beneath, with what the pool still reserves.
/// Of a process that has ended the answer is as it was before it freed its memory to end.
/// The headline's sums are those of all groups, however many are shown.
///
/// What grows in a running Python program is kept by some object: the list, the dictionary or the variable is named at the end (see
/// holders --help).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl leaks --pid 4242 --min-age 30s
  memscope-ctl leaks --pid 4242 --exit-code; [ $? -eq 10 ] && echo it leaks")]
pub(crate) struct Leaks {
    #[command(flatten)]
    pub(crate) processes: Processes,
    /// Only blocks at least this old.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) min_age: Duration,
    /// Each group of blocks by itself, also those that do not grow.
    #[arg(long)]
    pub(crate) all_groups: bool,
    /// At most so many lines, and groups, 0 for all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,
    /// Steps that a growth must have lasted before it is called one.
    ///
    /// A cache that fills looks the same until it is full. If the device will be full earlier, it is said earlier.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sure_after: u32,
    /// Do not read which Python objects hold what grows. Reading them takes a reader process half a second for a million objects.
    #[arg(long)]
    pub(crate) no_holders: bool,
    /// Exit with 10 when something grows, with 11 when it cannot be told: too early, or nothing was read yet.
    #[arg(long)]
    pub(crate) exit_code: bool,
}

impl Run for Leaks {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let ask = async |pid| client.leaks(self.question(pid, !self.no_holders)).await;
        let show = |answer: &_| table::text(answer, self.all_groups);
        let json = session.global.json;
        let (answers, exit) = each(&client, &self.processes, json, ask, show, whole).await?;
        // Growth in any process decides. A process that could not be asked or judged comes next, because the others
        // being fine does not clear it.
        Ok(if !self.exit_code {
            exit.unwrap_or(Exit::Done)
        } else if answers.iter().any(|answer| answer.growing_groups > 0) {
            Exit::Growing
        } else if let Some(exit) = exit {
            exit
        } else if answers.iter().any(cannot_tell) {
            Exit::CannotTell
        } else {
            Exit::Done
        })
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let ask = async |asking: &fleet::Asking<'_>| {
            let leaks = async |pid| {
                // Objects are not read everywhere at once: that costs each node much, and the line is enough to begin with.
                let call = async |mut rpc: crate::client::Rpc, request| rpc.leaks(request).await;
                asking.ask(self.question(pid, false), call).await
            };
            of_processes(asking, &self.processes, leaks).await
        };
        let replies = fleet.ask(ask).await.any()?;
        let text = |replies: &Replies<Told<v1::LeaksResponse>>| {
            table::of_fleet(replies, self.limit as usize)
        };
        let exit = fleet::show_processes(&replies, &self.processes, session, text, documents)?;
        let answers = || {
            let told = replies.answers().flat_map(|(_, told)| told.answers());
            told.map(|(_, answer)| answer)
        };
        Ok(if !self.exit_code {
            exit
        } else if answers().any(|answer| answer.growing_groups > 0) {
            Exit::Growing
        } else if exit != Exit::Done {
            exit
        } else if answers().any(cannot_tell) {
            Exit::CannotTell
        } else {
            Exit::Done
        })
    }
}

impl Leaks {
    fn question(&self, pid: u32, holders: bool) -> v1::LeaksRequest {
        v1::LeaksRequest {
            pid,
            min_age_ns: in_nanoseconds(self.min_age),
            include_steady: self.all_groups,
            limit: self.limit,
            sure_after_steps: self.sure_after,
            holders,
        }
    }
}

/// Whether nothing can be said about growth yet: it is too early, or nothing has been read.
fn cannot_tell(answer: &v1::LeaksResponse) -> bool {
    answer.young.is_some() || answer.is_unread()
}
