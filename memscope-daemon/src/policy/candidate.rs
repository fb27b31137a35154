//! A process that the policy is asked about, looked at as far as the conditions need.

use super::labels;
use memscope_ledger::event::{ContainerNames, ProcessFacts};
use memscope_proto::v1;
use memscope_site::SiteError;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the machine keeps what it knows of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Folder in which kubelet keeps the logs of pods; its names are those of the pods.
    pub pod_logs: PathBuf,
    /// Folder in which kubelet keeps the volumes of pods; labels are in those of the downward API.
    pub pod_volumes: PathBuf,
}

/// A process, with what has been read about it so far.
#[derive(Debug)]
pub struct Candidate<'a> {
    facts: ProcessFacts,
    places: &'a Places,
    container: OnceCell<Option<ContainerNames>>,
    workload: OnceCell<v1::Workload>,
    labels: OnceCell<BTreeMap<String, String>>,
    executable: OnceCell<Option<String>>,
    /// File names of what it maps, those of a device's libraries marked.
    mapped: OnceCell<Vec<(String, bool)>>,
}

impl<'a> Candidate<'a> {
    /// The process with this pid.
    ///
    /// # Errors
    /// If it has ended, or cannot be looked at.
    pub fn of(pid: u32, places: &'a Places) -> Result<Candidate<'a>, SiteError> {
        memscope_site::process::facts(pid).map(|facts| Candidate::with(facts, places))
    }

    /// A process of which these are the facts.
    pub(super) fn with(facts: ProcessFacts, places: &'a Places) -> Candidate<'a> {
        Candidate {
            facts,
            places,
            container: OnceCell::new(),
            workload: OnceCell::new(),
            labels: OnceCell::new(),
            executable: OnceCell::new(),
            mapped: OnceCell::new(),
        }
    }

    /// What was read of it.
    #[must_use]
    pub fn facts(&self) -> &ProcessFacts {
        &self.facts
    }

    /// Its names: the short one, that of its executable file, and that by which it was started.
    pub(super) fn names(&self) -> [Option<&str>; 3] {
        let executable = self.executable.get_or_init(|| {
            let path = std::fs::read_link(format!("/proc/{}/exe", self.facts.pid)).ok()?;
            file_name(&path)
        });
        let started_as = self.facts.cmdline.first();
        [
            Some(&self.facts.comm),
            executable.as_deref(),
            started_as.map(|word| word.rsplit('/').next().unwrap_or(word)),
        ]
    }

    /// What the machine calls its container.
    pub(super) fn container(&self) -> Option<&ContainerNames> {
        let read = || memscope_site::containers::names(&self.facts, &self.places.pod_logs);
        self.container.get_or_init(read).as_ref()
    }

    /// Whose it is.
    pub(super) fn workload(&self) -> &v1::Workload {
        self.workload.get_or_init(|| {
            let mut facts = self.facts.clone();
            facts.container = self.container().cloned();
            facts.workload()
        })
    }

    /// The labels of its pod; none outside of a pod.
    pub(super) fn labels(&self) -> &BTreeMap<String, String> {
        self.labels.get_or_init(|| {
            let uid = self.workload().pod_uid.as_deref();
            uid.map(|uid| labels::of_pod(&self.places.pod_volumes, uid))
                .unwrap_or_default()
        })
    }

    /// Whether it maps a library with one of these names. Without names: one of a device.
    pub(super) fn maps(&self, patterns: &[String]) -> bool {
        let mapped = self
            .mapped
            .get_or_init(|| memscope_site::process::mapped_files(self.facts.pid));
        mapped.iter().any(|(name, is_of_device)| {
            let mut patterns = patterns.iter();
            (patterns.len() == 0 && *is_of_device)
                || patterns.any(|pattern| memscope_units::fits(pattern, name))
        })
    }

    /// As if it mapped files with these names.
    #[cfg(test)]
    pub(super) fn mapping(self, names: &[&str]) -> Candidate<'a> {
        let of_device = |name: &str| memscope_vendors::library(name.as_bytes()).is_some();
        let mapped = names
            .iter()
            .map(|name| ((*name).to_owned(), of_device(name)));
        let _ = self.mapped.set(mapped.collect());
        self
    }
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}
