//! The nodes of a job of Slurm, as its own programs name them.

use crate::failure::{Exit, Failure};
use std::process::Stdio;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Bytes of an answer of Slurm's programs that are read.
const ANSWER_MOST: u64 = 4 << 20;

/// The names of the nodes on which the job runs.
pub(super) async fn nodes_of(job: &str) -> Result<Vec<String>, Failure> {
    if job.is_empty() || !job.bytes().all(|c| c.is_ascii_digit() || c == b'_') {
        return Err(Failure::Usage {
            what: format!("\"{job}\" is no number of a job"),
            hint: "write slurm:JOB:PORT, as slurm:1234:9465".into(),
        });
    }
    let lists = said("squeue", &["--noheader", "--jobs", job, "--format", "%N"]).await?;
    let list: Vec<&str> = lists.split_whitespace().collect();
    if list.is_empty() {
        return Err(Failure::Usage {
            what: format!("the job {job} runs on no node"),
            hint: "squeue lists the jobs that run".into(),
        });
    }
    let names = said("scontrol", &["show", "hostnames", &list.join(",")]).await?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// What a program of Slurm printed.
async fn said(program: &str, words: &[&str]) -> Result<String, Failure> {
    let failed = |why: String| Failure::Refused {
        exit: Exit::Failed,
        code: "slurm".into(),
        what: format!("{program} did not say where the job runs: {why}"),
        hint: Some("is Slurm installed here, and does the job run?".into()),
    };
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    if let Some(output) = child.stdout.take() {
        let read = output.take(ANSWER_MOST).read_to_string(&mut text).await;
        read.map_err(|error| failed(error.to_string()))?;
    }
    let ended = child.wait().await;
    match ended.map_err(|error| failed(error.to_string()))? {
        status if status.success() => Ok(text),
        status => Err(failed(status.to_string())),
    }
}
