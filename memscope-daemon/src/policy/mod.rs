//! The policy: which processes are attached by themselves, and how much of them is watched.
//!
//! Owns: the entries `[[attach]]` of the configuration file, and whether a process matches one. The first entry that matches decides.
//! Refuses: to look at processes ([`candidate`] does) and to attach them, which the tracer does.

mod candidate;
mod labels;
mod words;

pub use candidate::{Candidate, Places};
pub use words::PolicyError;

use memscope_rpc::AttachOptions;
use memscope_units::fits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest number of entries. Each of them is compared with every program that is started on the machine.
pub const MOST_ENTRIES: usize = 64;

/// All entries, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The entries. The first one that matches a process decides about it.
    pub entries: Vec<Entry>,
}

/// One entry: a process that fulfils all of its conditions is attached, or left alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is called in `memscope-ctl status`; empty: nothing.
    pub name: String,
    /// The conditions.
    pub conditions: Conditions,
    /// How much of the processes is watched; `None`: they are left alone.
    pub options: Option<AttachOptions>,
}

/// Conditions on a process. Each list that is not empty must have a pattern (`*` stands for any text) that fits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Real user ids.
    pub users: Vec<u32>,
    /// Paths of control groups. A process in a group below one of them matches, too.
    pub cgroup: Vec<String>,
    /// Jobs as `memscope-ctl ps` shows them (`slurm:42.0`).
    pub job: Vec<String>,
    /// Names of jobs, as schedulers have them.
    pub job_name: Vec<String>,
    /// Names or ids of containers.
    pub container: Vec<String>,
    /// Kubernetes' namespaces, as the machine names them.
    pub namespace: Vec<String>,
    /// Names of Kubernetes' pods, as the machine names them.
    pub pod: Vec<String>,
    /// Labels of Kubernetes' pods: a pattern for each key, all of which must fit.
    pub pod_labels: BTreeMap<String, String>,
    /// Names of programs: the short name, that of the executable file, or that by which it was started.
    pub command: Vec<String>,
    /// Command lines, with one space between the words.
    pub arguments: Vec<String>,
    /// File names of libraries that are mapped.
    pub library: Vec<String>,
}

impl Policy {
    /// The entry that decides about a process, and its place; `None`: nothing is said about it.
    #[must_use]
    pub fn decide(&self, candidate: &Candidate) -> Option<(usize, &Entry)> {
        let mut entries = self.entries.iter().enumerate();
        entries.find(|(_, entry)| entry.conditions.are_met_by(candidate))
    }

    /// Whether something else of a process than its program and its user counts, which can change while it runs: what it maps, or
    /// its control group.
    #[must_use]
    pub fn looks_at_what_changes(&self) -> bool {
        let mut entries = self.entries.iter().map(|entry| &entry.conditions);
        entries.any(|conditions| conditions.need_a_library() || conditions.look_at_the_group())
    }

    /// Whether the control group of a process counts, or what others say of it, which can change while it does not run.
    #[must_use]
    pub fn looks_at_groups(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.conditions.look_at_the_group())
    }

    /// Whether nobody is attached by itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.options.is_none())
    }
}

impl Conditions {
    /// Whether a process fulfils all conditions now. Those that cost the most to look at come last.
    #[must_use]
    pub fn are_met_by(&self, candidate: &Candidate) -> bool {
        let facts = candidate.facts();
        let one_of = |patterns: &[String], values: &[Option<&str>]| {
            let mut values = values.iter().flatten();
            patterns.is_empty()
                || values.any(|value| patterns.iter().any(|pattern| fits(pattern, value)))
        };
        let [uid, ..] = facts.uids;
        let by_facts = (self.users.is_empty() || self.users.contains(&uid))
            && (self.cgroup.is_empty()
                || facts
                    .cgroup
                    .as_deref()
                    .is_some_and(|group| self.cgroup.iter().any(|path| is_in(path, group))))
            && (self.arguments.is_empty()
                || one_of(&self.arguments, &[Some(&facts.cmdline.join(" "))]))
            && (self.command.is_empty() || one_of(&self.command, &candidate.names()));
        if !by_facts {
            return false;
        }
        if self.need_the_workload() {
            let workload = candidate.workload();
            let machine = candidate.container();
            let namespace = machine.and_then(|names| names.namespace.as_deref());
            let pod = machine.and_then(|names| names.pod.as_deref());
            let container = [
                workload.container.as_deref(),
                workload.container_id.as_deref(),
            ];
            let is_met = one_of(&self.job, &[workload.job.as_deref()])
                && one_of(&self.job_name, &[workload.job_name.as_deref()])
                && one_of(&self.container, &container)
                && one_of(&self.namespace, &[namespace])
                && one_of(&self.pod, &[pod])
                && (self.pod_labels.is_empty() || self.labels_fit(candidate));
            if !is_met {
                return false;
            }
        }
        !self.need_a_library() || candidate.maps(&self.library)
    }

    fn labels_fit(&self, candidate: &Candidate) -> bool {
        let labels = candidate.labels();
        let mut wanted = self.pod_labels.iter();
        wanted.all(|(key, pattern)| labels.get(key).is_some_and(|value| fits(pattern, value)))
    }

    /// Whether a process fulfils the conditions only when it has mapped a library. Without any condition that is one of a device:
    /// what uses no device is of no interest.
    #[must_use]
    pub fn need_a_library(&self) -> bool {
        !self.library.is_empty() || *self == Conditions::default()
    }

    fn look_at_the_group(&self) -> bool {
        !self.cgroup.is_empty() || self.need_the_workload()
    }

    fn need_the_workload(&self) -> bool {
        let lists = [
            &self.job,
            &self.job_name,
            &self.container,
            &self.namespace,
            &self.pod,
        ];
        !self.pod_labels.is_empty() || lists.iter().any(|list| !list.is_empty())
    }
}

impl Entry {
    /// The entry in the words of `status`.
    #[must_use]
    pub fn scope(&self) -> String {
        let Conditions {
            users,
            cgroup,
            job,
            job_name,
            container,
            namespace,
            pod,
            pod_labels,
            command,
            arguments,
            library,
        } = &self.conditions;
        let mut parts = Vec::new();
        let users: Vec<String> = users.iter().map(u32::to_string).collect();
        for (what, patterns) in [
            ("uid", &users),
            ("cgroup", cgroup),
            ("job", job),
            ("job-name", job_name),
            ("container", container),
            ("namespace", namespace),
            ("pod", pod),
            ("command", command),
            ("arguments", arguments),
            ("library", library),
        ] {
            if !patterns.is_empty() {
                parts.push(format!("{what}={}", patterns.join("|")));
            }
        }
        parts.extend(
            pod_labels
                .iter()
                .map(|(key, value)| format!("{key}={value}")),
        );
        if parts.is_empty() {
            parts.push("all".to_owned());
        }
        match self.name.as_str() {
            "" => format!("policy: {}", parts.join(" ")),
            name => format!("policy {name}: {}", parts.join(" ")),
        }
    }
}

/// Whether a control group is one that fits the pattern, or below such a one.
fn is_in(pattern: &str, group: &str) -> bool {
    let mut path = group;
    loop {
        if fits(pattern, path) {
            return true;
        }
        match path.rsplit_once('/') {
            Some((outer, _)) => path = outer,
            None => return false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
