//! The result of one check: what was found, what that means, and what to do about it.

use serde::Serialize;

/// Outcome of a check, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Everything is as it should be.
    Ok,
    /// Something does not work, or costs more; everything else works.
    Warn,
    /// Tracing does not work at all.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Stable name of the check, for programs.
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    /// What the check found.
    pub(crate) found: String,
    /// Consequence of the finding for tracing.
    pub(crate) means: String,
    /// Suggestion for the user, where something can be done.
    pub(crate) todo: Option<String>,
}

impl Check {
    pub(super) fn new(
        name: &'static str,
        status: Status,
        found: impl Into<String>,
        means: impl Into<String>,
    ) -> Self {
        Check {
            name,
            status,
            found: found.into(),
            means: means.into(),
            todo: None,
        }
    }

    pub(super) fn todo(mut self, todo: impl Into<String>) -> Self {
        self.todo = Some(todo.into());
        self
    }
}

/// On whose behalf the checks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The daemon, or a user who could start it: a privilege that is missing is a failure.
    Daemon,
    /// Anybody else: a missing privilege is only a warning, because the daemon needs it and they do not.
    Client,
}
