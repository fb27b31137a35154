//! `events`: prints events as they happen.

use super::each::whole;
use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::{Came, Fleet};
use crate::output;
use crate::session::Session;
use memscope_proto::v1;

/// Print events as they happen, one JSON object a line.
///
/// Findings that stand are told first. Ends with exit code 6 when --timeout is given and no event comes within it. A reader that is too slow misses events; `missed` says how many just before an event.
#[derive(Debug, clap::Args)]
pub(crate) struct Events {
    /// Only events of this process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// Only events of these kinds, as `kind` in the output names them: finding, oom, mark, coverage, attached, exited, …
    ///
    /// Then the others are not sent at all, and a reader that waits for something rare does not miss it. Marks that PyTorch makes by itself
    /// (steps of optimizers, backward passes), and the ends of record_function, are framework_mark: `mark` alone leaves them out.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<String>,
    /// End after so many; with exit code 3 if the daemon ends before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

impl Run for Events {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let question = self.question();
        let mut stream = client
            .ask(question, async |mut rpc, request| rpc.events(request).await)
            .await?;
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            // The stream ends when the daemon ends.
            let patience = session.global.patience();
            let Some(event) = client.next_within(&mut stream, patience).await? else {
                break;
            };
            output::json_line(&event)?;
            left -= 1;
        }
        self.came(left)?;
        Ok(Exit::Done)
    }

    const FLEET: bool = true;

    /// The events of all nodes as they come, each with its node.
    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let mut left = self.count.unwrap_or(u64::MAX);
        let (mut exit, mut any) = (Exit::Done, false);
        let print = |came: Came| {
            match came {
                Came::Event(node, event) => {
                    let mut document = whole(&event)?;
                    document["node"] = node.into();
                    output::json_line(&document)?;
                    left -= 1;
                    any = true;
                }
                Came::Ended(node, None) => {
                    any = true;
                    exit = Exit::Partly;
                    output::complain_of(&node.name, &ended());
                }
                Came::Ended(node, Some(failure)) => {
                    output::complain_of(&node.name, &failure);
                    exit = Exit::Partly;
                }
            }
            Ok(left > 0)
        };
        let patience = session.global.patience();
        fleet
            .events(&self.question(), patience, None, print)
            .await?;
        self.came(left)?;
        match any || exit == Exit::Done {
            true => Ok(exit),
            false => Ok(Exit::Unreachable),
        }
    }
}

/// What is said of a node whose daemon has ended while the others are followed.
fn ended() -> Failure {
    Failure::Refused {
        exit: Exit::Partly,
        code: "ended".to_owned(),
        what: "the daemon ended, and this node is not followed any more".to_owned(),
        hint: Some("when it runs again, run this command again".to_owned()),
    }
}

impl Events {
    /// Refuses an end before as many events came as were asked for.
    fn came(&self, left: u64) -> Result<(), Failure> {
        if self.count.is_none() || left == 0 {
            return Ok(());
        }
        Err(Failure::Refused {
            exit: Exit::Unreachable,
            code: "ended".to_owned(),
            what: "the daemon ended before so many events came".to_owned(),
            hint: Some(
                "ask again when it runs; look at its log: journalctl -u memscoped".to_owned(),
            ),
        })
    }

    fn question(&self) -> v1::EventsRequest {
        v1::EventsRequest {
            pid: self.pid,
            kinds: self.kind.clone(),
        }
    }
}
