//! Checks which parts of memscope work on this machine, and why others do not.
//!
//! Owns: the checks of kernel, privileges and surroundings, and the list of the processes that
//! could be traced. Refuses: loading or attaching anything (the daemon tries that itself), and
//! changing anything.

mod check;
mod kernel;
mod machine;
mod privileges;
mod processes;
mod socket;
mod surroundings;

pub(crate) use check::{Check, Role, Status};
pub(crate) use machine::Machine;
#[cfg(test)]
pub(crate) use processes::Library;
pub(crate) use processes::{DeviceProcess, Scan, scan};

use serde::Serialize;
use std::path::Path;

/// Results of all checks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Checks, ordered so that each comes after those that it depends on.
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

/// Runs all checks. `socket` is the path at which a daemon should listen; without it this is not checked.
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
