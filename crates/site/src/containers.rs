//! What the machine calls the container of a process.
//!
//! Owns: where the names are found. Kubelet keeps the logs of each pod in a folder whose name has namespace, name and uid of the pod,
//! and links to these logs that have the container's id in their names; podman and CRI-O start a program for each container (`conmon`)
//! with the container's name in its command line. Refuses: to ask Kubernetes or a container engine, which needs rights that a daemon
//! on every node should not have.

use crate::process::{alive, read};
use memscope_ledger::event::{ContainerNames, ProcessFacts};
use std::fs;
use std::path::{Path, PathBuf};

/// Where kubelet keeps the logs of pods.
pub const POD_LOGS: &str = "/var/log/pods";
/// Characters of a container's name that are kept. Whoever starts a container without privileges writes that command line.
const NAME: usize = 256;
/// How many parents of a process are looked at to find the program that watches over its container.
const PARENTS: usize = 32;

/// The names of the container of the process with these facts; `None` if it is in none, or the machine has no name for it.
/// `pod_logs` is usually [`POD_LOGS`].
#[must_use]
pub fn names(facts: &ProcessFacts, pod_logs: &Path) -> Option<ContainerNames> {
    let workload = facts.workload();
    let id = workload.container_id.as_deref();
    let of_pod = workload.pod_uid.and_then(|uid| pod(pod_logs, &uid));
    let names = match (of_pod, id) {
        (Some(pod), id) => ContainerNames {
            name: id.and_then(|id| in_pod(pod_logs, &pod, id)),
            ..pod
        },
        (None, Some(id)) => ContainerNames {
            name: by_conmon(facts.parent_pid, id),
            ..ContainerNames::default()
        },
        (None, None) => ContainerNames::default(),
    };
    (names != ContainerNames::default()).then_some(names)
}

/// Where kubelet has a link to each log of a container: beside the folders of the pods.
fn links(pod_logs: &Path) -> Option<PathBuf> {
    Some(pod_logs.parent()?.join("containers"))
}

/// Namespace and name of a pod, by its folder `NAMESPACE_NAME_UID`.
fn pod(logs: &Path, uid: &str) -> Option<ContainerNames> {
    let folders = fs::read_dir(logs).ok()?.flatten();
    folders.into_iter().find_map(|folder| {
        let name = folder.file_name().into_string().ok()?;
        let mut parts = name.split('_');
        let (namespace, pod, of) = (parts.next()?, parts.next()?, parts.next()?);
        (of == uid && parts.next().is_none()).then(|| ContainerNames {
            namespace: Some(namespace.to_owned()),
            pod: Some(pod.to_owned()),
            name: None,
        })
    })
}

/// Name of a container in its pod, by the link `POD_NAMESPACE_CONTAINER-ID.log` beside the folder of the pods.
fn in_pod(logs: &Path, pod: &ContainerNames, id: &str) -> Option<String> {
    let begin = format!("{}_{}_", pod.pod.as_deref()?, pod.namespace.as_deref()?);
    let end = format!("-{id}.log");
    let links = fs::read_dir(links(logs)?).ok()?;
    links.flatten().find_map(|link| {
        let name = link.file_name().into_string().ok()?;
        let container = name.strip_prefix(&begin)?.strip_suffix(&end)?;
        Some(container.to_owned())
    })
}

/// Name of a container, by the command line of the `conmon` that is an ancestor of its processes.
fn by_conmon(parent: u32, id: &str) -> Option<String> {
    let mut pid = parent;
    for _ in 0..PARENTS {
        let stat = (pid > 1).then(|| alive(pid).ok())??;
        if stat.comm == "conmon" {
            return name_for_conmon(&read(pid, "cmdline").ok()?, id);
        }
        pid = stat.parent_pid;
    }
    None
}

/// The name that `conmon` was given (`-n NAME`), if it is the one for this container (`-c ID`).
fn name_for_conmon(cmdline: &[u8], id: &str) -> Option<String> {
    let words: Vec<&[u8]> = cmdline.split(|byte| *byte == 0).collect();
    let after = |option: &[u8]| {
        let at = words.iter().position(|word| *word == option)?;
        std::str::from_utf8(words.get(at + 1)?).ok()
    };
    let name = (after(b"-c")? == id).then(|| after(b"-n"))??;
    Some(name.chars().take(NAME).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4c01db0b339c5d6a4c01db0b339c5d6a4c01db0b339c5d6a4c01db0b339c5d6a";
    const UID: &str = "1a2b3c4d-0000-1111-2222-333344445555";

    #[test]
    fn a_pod_and_its_container_by_the_folders_of_logs() {
        let log = tempfile::tempdir().unwrap();
        let pods = log.path().join("pods");
        let containers = log.path().join("containers");
        for folder in [
            format!("kube-system_proxy_{}", UID.replace('1', "2")),
            format!("team-a_trainer-0_{UID}"),
            "odd".to_owned(),
        ] {
            fs::create_dir_all(pods.join(folder)).unwrap();
        }
        fs::create_dir_all(&containers).unwrap();
        for link in [
            format!("trainer-0_team-a_side-car-{}.log", ID.replace('4', "5")),
            format!("trainer-0_team-a_main-{ID}.log"),
        ] {
            fs::write(containers.join(link), "").unwrap();
        }
        let mut facts = ProcessFacts {
            cgroup: Some(format!("/kubepods/pod{UID}/{ID}")),
            ..ProcessFacts::default()
        };
        let found = names(&facts, &pods).unwrap();
        assert_eq!(found.namespace.as_deref(), Some("team-a"));
        assert_eq!(found.pod.as_deref(), Some("trainer-0"));
        assert_eq!(found.name.as_deref(), Some("main"));
        assert_eq!(names(&facts, &log.path().join("none")), None);
        facts.cgroup = Some("/user.slice".into());
        assert_eq!(names(&facts, &pods), None);
    }

    /// What the chart does not give a container of the node's, memscoped does not see in it.
    #[test]
    fn kubernetes_manifests_have_each_folder_that_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = root.join("deploy/kubernetes/memscope.yaml");
        let manifests = fs::read_to_string(file).unwrap();
        let pods = Path::new(POD_LOGS);
        for folder in [pods, &links(pods).unwrap()] {
            for key in ["mountPath", "path"] {
                let line = format!("{key}: {}", folder.display());
                assert!(manifests.lines().any(|it| it.trim() == line), "{line}");
            }
        }
    }

    #[test]
    fn a_container_by_the_program_that_watches_over_it() {
        let line = format!(
            "/usr/bin/conmon\0--api-version\x001\0-c\0{ID}\0-u\0{ID}\0-n\0trainer\0-r\0crun\0"
        );
        assert_eq!(
            name_for_conmon(line.as_bytes(), ID).as_deref(),
            Some("trainer")
        );
        assert_eq!(
            name_for_conmon(line.as_bytes(), &ID.replace('4', "5")),
            None
        );
        for cut in 0..line.len() {
            name_for_conmon(&line.as_bytes()[..cut], ID);
        }
    }
}
