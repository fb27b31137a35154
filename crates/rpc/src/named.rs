//! Moments that are asked for, those with a name included.
//!
//! Owns: which event a name means. Refuses: to know marks; the ledger keeps them.

use crate::Refusal;
use crate::asked::{Asked, asked};
use crate::daemon::Moment;
use crate::refusal::invalid;
use memscope_ledger::find_mark;
use memscope_proto::v1;

/// The moment that is asked for, `None` for now. `marks` is asked where it has a name, for the marks of the process.
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
