//! Refuses answers that are not exact, for callers who want only exact ones.
//!
//! Owns: the caller's wish (the request's metadata), and the refusal. Refuses: to judge what a coverage note makes
//! inexact; the ledger's table does that.

use crate::Refusal;
use memscope_ledger::{Answer, inexact};
use memscope_proto::{STRICT, v1};
use tonic::Request;

/// Whether the caller wants only an exact answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strict(bool);

impl Strict {
    /// Reads the wish from the metadata of a request.
    pub(crate) fn of<T>(request: &Request<T>) -> Strict {
        let said = request.metadata().get(STRICT);
        Strict(said.is_some_and(|value| value == "1"))
    }

    /// Refuses an answer that is not exact because of these notes, if only an exact one is wanted.
    pub(crate) fn check(self, answer: Answer, notes: &[v1::CoverageNote]) -> Result<(), Refusal> {
        if !self.0 {
            return Ok(());
        }
        let spoilt: Vec<String> = inexact(answer, notes)
            .into_iter()
            .map(|note| format!("{}: {}", note.code, note.text))
            .collect();
        if spoilt.is_empty() {
            return Ok(());
        }
        Err(Refusal::NotExact {
            why: spoilt.join("; "),
        })
    }

    /// Refuses an answer in which the main thing that was asked for is not known, if only an exact one is wanted.
    /// `unknown` says why it is not known; `None`: it is.
    pub(crate) fn known(self, unknown: Option<&str>) -> Result<(), Refusal> {
        match unknown {
            Some(why) if self.0 => Err(Refusal::NotExact {
                why: why.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}
