//! The nodes of a job of Slurm, as its own programs name them.

use super::program::said;
use crate::failure::Failure;

/// What to do if Slurm's programs say nothing.
const HINT: &str = "is Slurm installed here, and does the job run?";

/// The names of the nodes on which the job runs.
pub(super) async fn nodes_of(job: &str) -> Result<Vec<String>, Failure> {
    if job.is_empty() || !job.bytes().all(|c| c.is_ascii_digit() || c == b'_') {
        return Err(Failure::Usage {
            what: format!("\"{job}\" is no number of a job"),
            hint: "write slurm:JOB:PORT, as slurm:1234:9465".into(),
        });
    }
    let words = ["--noheader", "--jobs", job, "--format", "%N"];
    let lists = said("squeue", &words, "slurm", HINT).await?;
    let list: Vec<&str> = lists.split_whitespace().collect();
    if list.is_empty() {
        return Err(Failure::Usage {
            what: format!("the job {job} runs on no node"),
            hint: "squeue lists the jobs that run".into(),
        });
    }
    let words = ["show", "hostnames", &list.join(",")];
    let names = said("scontrol", &words, "slurm", HINT).await?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}
