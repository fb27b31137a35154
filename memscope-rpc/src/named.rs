//! Moments that are asked for, those with a name included.
//!
//! Owns: which event a name means. Refuses: to know marks; the ledger keeps them.

use crate::asked::{Asked, asked};
use crate::daemon::Moment;
use crate::service::invalid;
use crate::{Daemon, Refusal};
use memscope_ledger::report::ProcessSummary;
use memscope_proto::v1;

/// The moment that is asked for, `None` for now. `may_see` is asked about the process whose marks are looked through.
pub(crate) async fn moment(
    daemon: &dyn Daemon,
    pid: u32,
    at: Option<v1::Moment>,
    may_see: impl Fn(&ProcessSummary) -> Result<(), Refusal>,
) -> Result<Option<Moment>, Refusal> {
    let name = match asked(at)? {
        Asked::Now => return Ok(None),
        Asked::At(moment) => return Ok(Some(moment)),
        Asked::Mark(name) => name,
    };
    let report = daemon.marks(pid).await?;
    may_see(&report.process)?;
    match report.find(&name) {
        Ok(mark) => Ok(Some(Moment::Event(mark.event.sequence))),
        Err(why) => Err(invalid(
            format!("{name:?} {why}, of process {pid}"),
            format!("`memscope-ctl marks --pid {pid} --all` lists those that are kept"),
        )),
    }
}
