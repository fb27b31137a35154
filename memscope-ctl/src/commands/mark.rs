//! `mark`: names the present moment of a process.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::process::ProcessOption;
use crate::session::Session;
use memscope_proto::v1;

/// Name the present moment of a process, for its recording and for steps.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl mark --pid 4242 'before the evaluation'
  memscope-ctl mark --pid 4242 --step          a step ends here, and the next one begins")]
pub(crate) struct Mark {
    #[command(flatten)]
    pub(crate) process: ProcessOption,
    /// A step ends with it, and the next one begins.
    #[arg(long)]
    pub(crate) step: bool,
    /// The name, at most 128 bytes.
    #[arg(value_name = "NAME", required_unless_present = "step")]
    pub(crate) name: Option<String>,
}

impl Run for Mark {
    const NO_RECORDING: Option<(&'static str, &'static str)> = Some((
        "a recording has no present moment to mark",
        "leave out --recording",
    ));

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let pid = client.choose(self.process.pid).await?;
        let question = v1::MarkRequest {
            pid,
            name: self.name.clone().unwrap_or_default(),
            step: self.step,
        };
        let answer = client
            .ask(question, async |mut rpc, request| rpc.mark(request).await)
            .await?;
        session.show(&answer, |answer| {
            let event = answer.event.unwrap_or_default().sequence;
            format!("Marked process {pid} at event {event}.\n")
        })
    }
}
