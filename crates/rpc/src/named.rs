//! Turns the moment in a request into one that the daemon knows; `mark:NAME` becomes the mark's event.
//!
//! Owns: the translation from a mark's name to its event. Refuses: to keep marks; the ledger does.

use crate::Refusal;
use crate::asked::{Asked, asked};
use crate::daemon::Moment;
use crate::refusal::invalid;
use memscope_ledger::find_mark;
use memscope_proto::v1;

/// The moment that is asked for, `None` for now. `marks` fetches the marks of the process; it is called only where the
/// moment is named by a mark.
pub(crate) async fn moment(
    pid: u32,
    at: Option<v1::Moment>,
    marks: impl AsyncFnOnce() -> Result<v1::MarksResponse, Refusal>,
) -> Result<Option<Moment>, Refusal> {
    let name = match asked(at)? {
        Asked::Now => return Ok(None),
        Asked::At(moment) => return Ok(Some(moment)),
        Asked::Mark(name) => name,
    };
    match find_mark(&marks().await?.marks, &name) {
        Ok(mark) => Ok(Some(Moment::Event(mark.event.unwrap_or_default().sequence))),
        Err(why) => Err(invalid(
            format!("{name:?} {why}, of process {pid}"),
            format!("`memscope-ctl marks --pid {pid} --all` lists those that are kept"),
        )),
    }
}
