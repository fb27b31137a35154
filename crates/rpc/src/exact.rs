//! Whether an answer is exact, for those who want no other.
//!
//! Owns: the wish of the one who asks, and the refusal. Refuses: to judge notes; the ledger's table does.

use crate::Refusal;
use memscope_ledger::{Answer, inexact};
use memscope_proto::{STRICT, v1};
use tonic::Request;

/// Whether only an exact answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strict(bool);

impl Strict {
    /// What the metadata of a request says.
    pub(crate) fn of<T>(request: &Request<T>) -> Strict {
        let said = request.metadata().get(STRICT);
        Strict(said.is_some_and(|value| value == "1"))
    }

    /// Refuses an answer that is not exact, if only an exact one is wanted.
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

    /// Refuses where what was asked for is not known at all: `unknown` says why.
    pub(crate) fn known(self, unknown: Option<&str>) -> Result<(), Refusal> {
        match unknown {
            Some(why) if self.0 => Err(Refusal::NotExact {
                why: why.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}
