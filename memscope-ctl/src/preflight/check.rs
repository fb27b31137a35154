//! One check: what was found, what that means, and what to do about it.

use serde::Serialize;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// Something will not work or costs more; the rest does.
    Warn,
    /// Nothing will work.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Stable name.
    pub(crate) name: &'static str,
    /// How it went.
    pub(crate) status: Status,
    /// What was found.
    pub(crate) found: String,
    /// What that means.
    pub(crate) means: String,
    /// What to do, where something can be done.
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

/// Who wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The daemon: a privilege that it lacks is a failure.
    Daemon,
    /// Anybody else: a privilege that they lack is one that the daemon needs.
    Client,
}
