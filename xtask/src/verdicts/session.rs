//! One run: a daemon, a script in one process or several, and a question about each process after each portion of
//! steps.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::answer::Answer;
use super::driver::{Driver, How, Said};
use super::judge::{Asked, Judgement, Truth, judge, together};
use super::mode::Mode;
use super::workload::Workload;
use crate::live::Daemon;

/// How a run ended.
pub enum Outcome {
    /// The run was judged.
    Judged(Judgement),
    /// This PyTorch lacks a feature that the script needs.
    Lacking(String),
}

/// Length of a run, and how often memscope is asked.
#[derive(Clone, Debug)]
pub struct Course {
    /// Number of steps in all.
    pub steps: u64,
    /// Number of steps between two questions.
    pub every: u64,
    /// When memscope attaches.
    pub mode: Mode,
    /// An existing folder to which each answer is written as it came.
    pub keep: Option<PathBuf>,
}

/// Runs a workload and judges the answers.
pub fn run(how: &How, programs: &Path, workload: &Workload, course: &Course) -> Result<Outcome> {
    let folder = tempfile::Builder::new()
        .prefix("memscope-verdicts-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let daemon = Daemon::launch(programs, &[])?;
    let mut drivers = (0..workload.ranks)
        .map(|rank| Driver::start(how, workload, rank, folder.path()))
        .collect::<Result<Vec<_>>>()?;
    for driver in &drivers {
        if let Some(what) = driver.hear()?.lacking {
            return Ok(Outcome::Lacking(what));
        }
    }
    let before = course.mode.steps_before();
    match course.mode {
        Mode::FromStart => {
            attach(&daemon, &drivers)?;
            all(&mut drivers, "setup")?;
        }
        Mode::Late => {
            all(&mut drivers, "setup")?;
            all(&mut drivers, &format!("steps {before}"))?;
            attach(&daemon, &drivers)?;
        }
    }
    let mut step = before;
    let mut courses = vec![Vec::new(); drivers.len()];
    while step < course.steps {
        let portion = course.every.min(course.steps - step);
        let said = all(&mut drivers, &format!("steps {portion}"))?;
        step += portion;
        for (rank, ((driver, said), asked)) in
            drivers.iter().zip(said).zip(&mut courses).enumerate()
        {
            if said.steps != step {
                bail!("the driver has made {} steps of {step}", said.steps);
            }
            let kept = course.keep.as_ref().map(|folder| {
                let (name, mode) = (&workload.name, course.mode.word());
                folder.join(format!("{name}-{mode}-rank-{rank}-step-{step:04}.json"))
            });
            asked.push(Asked {
                step,
                own: step - before,
                answer: leaks(&daemon, &driver.pid(), kept.as_deref())?,
                lengths: said.lengths,
            });
        }
    }
    // What was said of a process must be said of it once it has ended, although it frees what it held.
    all(&mut drivers, "leave")?;
    let ended = drivers
        .iter()
        .map(|driver| leaks_once_ended(&daemon, &driver.pid(), how.patience))
        .collect::<Result<Vec<_>>>()?;
    let script = workload
        .script
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let judged = (0..)
        .zip(courses.iter().zip(&ended))
        .map(|(rank, (course, ended))| {
            let truth = Truth {
                script: &script,
                leak: workload.leak_of(rank),
                sources: &workload.sources,
            };
            (rank, judge(truth, course, ended))
        });
    Ok(Outcome::Judged(together(judged.collect())))
}

/// Sends an order to all processes, so that they run at the same time, and waits for all answers.
fn all(drivers: &mut [Driver], words: &str) -> Result<Vec<Said>> {
    for driver in &mut *drivers {
        driver.tell(words)?;
    }
    drivers.iter().map(Driver::hear).collect()
}

/// Attaches to all processes. Returns when their baselines have been read.
fn attach(daemon: &Daemon, drivers: &[Driver]) -> Result<()> {
    for driver in drivers {
        asked(daemon, &["attach", "--pid", &driver.pid()])?;
    }
    Ok(())
}

/// Asks about leaks when the daemon has seen the end of the process.
fn leaks_once_ended(daemon: &Daemon, pid: &str, patience: Duration) -> Result<Answer> {
    let until = Instant::now() + patience;
    loop {
        let answer = leaks(daemon, pid, None)?;
        if answer.process.ended_boot_ns.is_some() {
            return Ok(answer);
        }
        if Instant::now() > until {
            bail!("the end of process {pid} was not seen");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks about leaks, and writes the answer to the file `kept` as well, if it is given.
fn leaks(daemon: &Daemon, pid: &str, kept: Option<&Path>) -> Result<Answer> {
    let text = asked(daemon, &["leaks", "--pid", pid, "--limit", "0"])?;
    if let Some(file) = kept {
        std::fs::write(file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    serde_json::from_slice(&text).with_context(|| {
        let text = String::from_utf8_lossy(&text);
        format!("the answer on leaks is not understood: {text}")
    })
}

fn asked(daemon: &Daemon, words: &[&str]) -> Result<Vec<u8>> {
    let said = daemon.ask(&[&["--json"], words].concat())?;
    if !said.status.success() {
        bail!(
            "memscope-ctl {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&said.stderr)
        );
    }
    Ok(said.stdout)
}
