//! What of memscope works on this machine, and why not.
//!
//! Owns: the checks of kernel, privileges and surroundings, and the list of the processes that
//! could be traced. Refuses: loading or attaching anything (the daemon tries that itself), and
//! changing anything.

mod kernel;
mod machine;
mod privileges;
mod processes;
mod socket;
mod surroundings;

pub(crate) use machine::Machine;
pub(crate) use processes::{DeviceProcess, Scan, scan};

use serde::Serialize;
use std::path::Path;

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
    fn new(
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

    fn todo(mut self, todo: impl Into<String>) -> Self {
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

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Checks, in the order of what depends on what.
    pub(crate) checks: Vec<Check>,
    /// Processes with device libraries.
    pub(crate) scan: Scan,
}

impl Report {
    /// The worst status of all checks.
    #[must_use]
    pub(crate) fn worst(&self) -> Status {
        let worst = self.checks.iter().map(|check| check.status).max();
        worst.unwrap_or(Status::Ok)
    }
}

/// Looks at everything. `socket` is where a daemon is expected to listen, if that matters.
#[must_use]
pub(crate) fn examine(machine: &Machine, role: Role, socket: Option<&Path>) -> Report {
    let mut checks = kernel::checks(machine);
    checks.extend(privileges::checks(machine, role));
    checks.extend(surroundings::checks(machine));
    let scan = scan(machine);
    checks.push(processes::check(&scan));
    if let Some(path) = socket {
        checks.push(socket::check(path));
    }
    Report { checks, scan }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn examines_this_machine() {
        let report = examine(&Machine::here(), Role::Client, None);
        assert!(report.checks.iter().any(|check| check.name == "kernel"));
        for check in &report.checks {
            assert!(
                !check.found.is_empty() && !check.means.is_empty(),
                "{check:?}"
            );
            assert!(
                check.status == Status::Ok || check.todo.is_some(),
                "{check:?}"
            );
        }
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["checks"][0]["status"].is_string());
    }
}
