//! Whose a process is: its container, its pod, its job and its rank.
//!
//! Owns: what the paths of control groups and the variables of schedulers and launchers mean. Refuses: to read anything; the facts of
//! a process are all that it knows. A path of a control group is the kernel's word. A variable is the program's: it is shown, and
//! nothing that somebody may see depends on it.

use crate::event::ProcessFacts;
use memscope_proto::v1;
use memscope_vendors::launchers::RANKS;

/// Run id that torchrun gives every job whose user named none, so it tells nothing.
const NO_RUN_ID: &str = "none";

impl ProcessFacts {
    /// Kubernetes' namespace of the process's pod, if the machine itself says it.
    #[must_use]
    pub fn kubernetes_namespace(&self) -> Option<&str> {
        self.container.as_ref()?.namespace.as_deref()
    }

    /// Value of an environment variable at the attach; an empty one counts as not set.
    fn variable(&self, wanted: &str) -> Option<&str> {
        let mut found = self.environment.iter().filter(|(name, _)| name == wanted);
        let value = found.next()?.1.trim();
        (!value.is_empty()).then_some(value)
    }

    fn number(&self, wanted: &str) -> Option<u32> {
        self.variable(wanted)?.parse().ok()
    }
}

impl ProcessFacts {
    /// Whose the process is, as far as its facts tell.
    #[must_use]
    pub fn workload(&self) -> v1::Workload {
        of(self)
    }
}

/// Whose the process with these facts is.
fn of(facts: &ProcessFacts) -> v1::Workload {
    let path = facts.cgroup.as_deref().unwrap_or_default();
    let container = container(path);
    let names = facts.container.clone().unwrap_or_default();
    let pod_uid = pod_uid(path);
    // Outside of a pod the name of the host means the machine.
    let in_pod = pod_uid.is_some() || facts.variable("KUBERNETES_SERVICE_HOST").is_some();
    let of_pod = |variable: &str| {
        facts
            .variable(variable)
            .filter(|_| in_pod)
            .map(str::to_owned)
    };
    let slurm = slurm(path);
    let (slurm_job, slurm_step) = match slurm {
        Some((job, step)) => (Some(job.to_owned()), step.map(str::to_owned)),
        None => (
            facts.variable("SLURM_JOB_ID").map(str::to_owned),
            facts.variable("SLURM_STEP_ID").map(step_name),
        ),
    };
    let ranks = RANKS
        .iter()
        .find(|ranks| facts.number(ranks.rank).is_some());
    let job_name = ["SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME"]
        .into_iter()
        .find_map(|name| facts.variable(name));
    v1::Workload {
        job: job(facts, slurm_job.as_deref(), slurm_step.as_deref()),
        job_name: job_name.map(str::to_owned),
        container_id: container.map(|(_, id)| id.to_owned()),
        container_runtime: container
            .and_then(|(runtime, _)| runtime)
            .map(str::to_owned),
        container: names.name,
        pod: names
            .pod
            .or_else(|| of_pod("POD_NAME"))
            .or_else(|| of_pod("HOSTNAME")),
        namespace: names.namespace.or_else(|| of_pod("POD_NAMESPACE")),
        pod_uid,
        slurm_job,
        slurm_step,
        rank: ranks.and_then(|ranks| facts.number(ranks.rank)),
        local_rank: ranks.and_then(|ranks| facts.number(ranks.local)),
        world_size: ranks.and_then(|ranks| facts.number(ranks.size)),
        rank_from: ranks.map(|ranks| ranks.rank.to_owned()),
    }
}

/// What the ranks of one program have in common.
fn job(facts: &ProcessFacts, slurm_job: Option<&str>, slurm_step: Option<&str>) -> Option<String> {
    let variable = |name: &str| facts.variable(name);
    // Each node of a job of torchrun's may be a step of its own, but all have the job, and the place where they meet.
    let run_id = variable("TORCHELASTIC_RUN_ID").filter(|id| *id != NO_RUN_ID);
    let meets_at = variable("MASTER_ADDR").zip(variable("MASTER_PORT"));
    match (slurm_job, slurm_step) {
        (Some(job), Some(step)) if variable("TORCHELASTIC_RUN_ID").is_none() => {
            return Some(format!("slurm:{job}.{step}"));
        }
        (Some(job), _) => return Some(format!("slurm:{job}")),
        (None, _) => {}
    }
    if let Some(id) = run_id {
        return Some(format!("torchrun:{id}"));
    }
    let named = [
        ("mpi", "PMIX_NAMESPACE"),
        ("flux", "FLUX_JOB_ID"),
        ("pbs", "PBS_JOBID"),
        ("lsf", "LSB_JOBID"),
    ];
    for (kind, name) in named {
        if let Some(id) = variable(name) {
            return Some(format!("{kind}:{id}"));
        }
    }
    if let Some((host, port)) = meets_at {
        // Each machine calls itself so: without its name, jobs of several machines would be one.
        let is_here = host == "localhost" || host == "::1" || host.starts_with("127.");
        let host = if is_here && !facts.host.is_empty() {
            &facts.host
        } else {
            host
        };
        return Some(format!("rendezvous:{host}:{port}"));
    }
    variable("RAY_JOB_ID").map(|id| format!("ray:{id}"))
}

/// Slurm numbers its special steps from the end of the numbers; `src/common/slurm_protocol_defs` names them.
fn step_name(number: &str) -> String {
    match number {
        "4294967291" => "batch".to_owned(),
        "4294967292" => "extern".to_owned(),
        "4294967290" => "interactive".to_owned(),
        other => other.to_owned(),
    }
}

/// Beginnings of the names of control groups that systems for containers make, and what makes them.
const SCOPES: &[(&str, &str)] = &[
    ("docker-", "docker"),
    ("libpod-", "podman"),
    ("cri-containerd-", "containerd"),
    ("crio-", "cri-o"),
];

/// Digits of a container's id.
const ID_DIGITS: usize = 64;

/// The innermost container that the path of a control group names: what runs it, where the path says it, and its id.
fn container(path: &str) -> Option<(Option<&'static str>, &str)> {
    let mut outer = None;
    path.split('/')
        .rev()
        .find_map(|part| {
            let name = part.strip_suffix(".scope").unwrap_or(part);
            let scope = SCOPES
                .iter()
                .find_map(|(begin, runtime)| Some((*runtime, name.strip_prefix(begin)?)));
            let found = match scope {
                Some((runtime, id)) => (Some(runtime), id),
                None => (None, name),
            };
            let is_id = found.1.len() == ID_DIGITS
                && found.1.bytes().all(|digit| digit.is_ascii_hexdigit());
            if is_id && found.0.is_some() {
                return Some(found);
            }
            // Where the control groups are not systemd's, the folder above says it.
            if let (Some(id), "docker") = (outer, part) {
                return Some((Some("docker"), id));
            }
            if is_id {
                outer = outer.or(Some(found.1));
            }
            None
        })
        .or(outer.map(|id| (None, id)))
}

/// Uid of the pod that the path of a control group names.
fn pod_uid(path: &str) -> Option<String> {
    path.split('/').find_map(|part| {
        let name = part.strip_suffix(".slice").unwrap_or(part);
        // `pod<uid>`, or with systemd `kubepods-burstable-pod<uid with underscores>.slice`.
        let (before, uid) = name
            .rsplit_once("pod")
            .filter(|(before, _)| before.is_empty() || before.ends_with('-'))?;
        let is_uid = uid.len() >= 32
            && uid
                .bytes()
                .all(|one| one.is_ascii_hexdigit() || matches!(one, b'-' | b'_'));
        (is_uid && (before.is_empty() || before.contains("kubepods")))
            .then(|| uid.replace('_', "-"))
    })
}

/// Job and step that the path of a control group of Slurm's names: `…/job_42/step_0/…`.
fn slurm(path: &str) -> Option<(&str, Option<&str>)> {
    if !path.contains("slurm") {
        return None;
    }
    let mut parts = path.split('/');
    let job = parts.find_map(|part| part.strip_prefix("job_"))?;
    let step = parts.next().and_then(|part| part.strip_prefix("step_"));
    Some((job, step))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::event::ContainerNames;

    const ID: &str = "4c01db0b339c5d6a4c01db0b339c5d6a4c01db0b339c5d6a4c01db0b339c5d6a";

    fn facts(cgroup: &str, environment: &[(&str, &str)]) -> ProcessFacts {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        ProcessFacts {
            cgroup: Some(cgroup.to_owned()),
            environment: environment.iter().map(own).collect(),
            ..ProcessFacts::default()
        }
    }

    #[test]
    fn containers_by_their_control_groups() {
        let systemd = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a2b3c4d_0000_1111_2222_333344445555.slice";
        for (path, runtime, uid) in [
            (
                format!("{systemd}/cri-containerd-{ID}.scope"),
                Some("containerd"),
                true,
            ),
            (format!("{systemd}/crio-{ID}.scope"), Some("cri-o"), true),
            (
                format!("/kubepods/burstable/pod1a2b3c4d-0000-1111-2222-333344445555/{ID}"),
                None,
                true,
            ),
            (
                format!("/kubepods/pod1a2b3c4d-0000-1111-2222-333344445555/{ID}"),
                None,
                true,
            ),
            (
                format!("/system.slice/docker-{ID}.scope"),
                Some("docker"),
                false,
            ),
            (format!("/docker/{ID}"), Some("docker"), false),
            (
                format!("/machine.slice/libpod-{ID}.scope/container"),
                Some("podman"),
                false,
            ),
            (
                format!(
                    "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"
                ),
                Some("podman"),
                false,
            ),
            // A container in a container: the process is in the inner one.
            (
                format!("/docker/{}/docker/{ID}", ID.replace('4', "5")),
                Some("docker"),
                false,
            ),
        ] {
            let workload = of(&facts(&path, &[]));
            assert_eq!(workload.container_id.as_deref(), Some(ID), "{path}");
            assert_eq!(workload.container_runtime.as_deref(), runtime, "{path}");
            let expected = uid.then_some("1a2b3c4d-0000-1111-2222-333344445555");
            assert_eq!(workload.pod_uid.as_deref(), expected, "{path}");
        }
        for path in [
            "/".to_owned(),
            "/user.slice/user-0.slice/session-1.scope".to_owned(),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            "/system.slice/docker.service".to_owned(),
            "/tripods/podium".to_owned(),
        ] {
            let workload = of(&facts(&path, &[("HOSTNAME", "node7"), ("POD_NAME", "x")]));
            assert_eq!(workload, v1::Workload::default(), "{path}");
        }
    }

    #[test]
    fn pods_are_named_by_the_machine_before_the_program() {
        let path = format!("/kubepods/pod1a2b3c4d-0000-1111-2222-333344445555/{ID}");
        let claimed = [("HOSTNAME", "trainer-0"), ("POD_NAMESPACE", "ml")];
        let mut facts = facts(&path, &claimed);
        let told = of(&facts);
        assert_eq!(
            (told.pod.as_deref(), told.namespace.as_deref()),
            (Some("trainer-0"), Some("ml"))
        );
        assert_eq!(
            facts.kubernetes_namespace(),
            None,
            "what a program claims opens no door"
        );
        facts.container = Some(ContainerNames {
            namespace: Some("team-a".into()),
            pod: Some("real".into()),
            name: Some("main".into()),
        });
        let told = of(&facts);
        assert_eq!(
            (told.pod.as_deref(), told.namespace.as_deref()),
            (Some("real"), Some("team-a"))
        );
        assert_eq!(
            (told.container.as_deref(), facts.kubernetes_namespace()),
            (Some("main"), Some("team-a"))
        );
    }

    #[test]
    fn jobs_and_ranks() {
        let in_step = "/system.slice/node7_slurmstepd.scope/job_42/step_3/user/task_1";
        let slurm = [
            ("SLURM_JOB_ID", "41"),
            ("SLURM_PROCID", "5"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NUM_TASKS", "8"),
        ];
        let told = of(&facts(in_step, &slurm));
        assert_eq!(
            told.job.as_deref(),
            Some("slurm:42.3"),
            "the control group knows better than a variable"
        );
        assert_eq!(
            (told.rank, told.local_rank, told.world_size),
            (Some(5), Some(1), Some(8))
        );
        assert_eq!(told.rank_from.as_deref(), Some("SLURM_PROCID"));

        // torchrun in a step: its own ranks, and the job has them all, whichever step of which node they are in.
        let within = [
            &slurm[..],
            &[
                ("RANK", "13"),
                ("LOCAL_RANK", "5"),
                ("WORLD_SIZE", "16"),
                ("TORCHELASTIC_RUN_ID", "none"),
            ],
        ]
        .concat();
        let told = of(&facts(in_step, &within));
        assert_eq!(
            (told.rank, told.job.as_deref()),
            (Some(13), Some("slurm:42"))
        );
        assert_eq!(
            (told.slurm_job.as_deref(), told.slurm_step.as_deref()),
            (Some("42"), Some("3"))
        );

        let batch = of(&facts(
            "/slurm/uid_1000/job_7/step_batch",
            &[("SLURM_JOB_NAME", "llama")],
        ));
        assert_eq!(
            (batch.job.as_deref(), batch.job_name.as_deref()),
            (Some("slurm:7.batch"), Some("llama"))
        );
        let no_group = of(&facts(
            "/",
            &[("SLURM_JOB_ID", "9"), ("SLURM_STEP_ID", "4294967291")],
        ));
        assert_eq!(no_group.job.as_deref(), Some("slurm:9.batch"));

        for (environment, job, rank) in [
            (
                &[("RANK", "2"), ("TORCHELASTIC_RUN_ID", "run-1")][..],
                Some("torchrun:run-1"),
                Some(2),
            ),
            (
                &[
                    ("RANK", "0"),
                    ("TORCHELASTIC_RUN_ID", "none"),
                    ("MASTER_ADDR", "10.0.0.1"),
                    ("MASTER_PORT", "29500"),
                ],
                Some("rendezvous:10.0.0.1:29500"),
                Some(0),
            ),
            (
                &[
                    ("OMPI_COMM_WORLD_RANK", "3"),
                    ("PMIX_NAMESPACE", "prterun-a-1@1"),
                ],
                Some("mpi:prterun-a-1@1"),
                Some(3),
            ),
            (&[("PMI_RANK", "1"), ("PMI_SIZE", "4")], None, Some(1)),
            (
                &[("FLUX_TASK_RANK", "6"), ("FLUX_JOB_ID", "ƒabc")],
                Some("flux:ƒabc"),
                Some(6),
            ),
            (
                &[("RANK_ID", "4"), ("DEVICE_ID", "4"), ("RANK_SIZE", "8")],
                None,
                Some(4),
            ),
            (&[("RAY_JOB_ID", "01000000")], Some("ray:01000000"), None),
            (&[("RANK", "seven"), ("WORLD_SIZE", "")], None, None),
            (&[("RANK", "")], None, None),
        ] {
            let told = of(&facts("/", environment));
            assert_eq!(
                (told.job.as_deref(), told.rank),
                (job, rank),
                "{environment:?}"
            );
        }
        for (address, job) in [
            ("127.0.0.1", "rendezvous:node7:29500"),
            ("localhost", "rendezvous:node7:29500"),
            ("10.0.0.1", "rendezvous:10.0.0.1:29500"),
        ] {
            let mut facts = facts("/", &[("MASTER_ADDR", address), ("MASTER_PORT", "29500")]);
            facts.host = "node7".into();
            assert_eq!(of(&facts).job.as_deref(), Some(job));
        }
    }
}
