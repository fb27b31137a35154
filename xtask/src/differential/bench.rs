//! A daemon, a process that plays programs, and a judge, for several programs one after the other.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::judgement::{Judgement, Moment, When};
use super::partner::Partner;
use super::program::Program;
use crate::live::{Daemon, Ended, tied};
use crate::process;

/// Time in which the baseline, or what a loss left unknown, must be read.
const READING: Duration = Duration::from_secs(30);
/// Time in which a daemon that replays must answer.
const REPLAYING: Duration = Duration::from_secs(60);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Exit code of memscope-ctl for a moment that is refused.
const REFUSED: i32 = 2;

/// Settings that all programs have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Python environment in which PyTorch is installed.
    pub installation: PathBuf,
    /// Folder of memscope's programs.
    pub programs: PathBuf,
    /// Whether a number in each export is changed before it is compared, to show that the comparison finds it.
    pub plant: bool,
}

/// The daemon, the player and the judge that belong together.
pub struct Bench {
    setting: Setting,
    daemon: Daemon,
    player: Partner,
    judge: Partner,
    /// The moments of all programs that were played.
    moments: Vec<Moment>,
    folder: TempDir,
    settings: Option<String>,
}

/// A function that runs a question: with a running daemon, or with one that replays.
type Asking<'a> = &'a dyn Fn(&[&str]) -> Result<std::process::Output>;

impl Bench {
    /// Starts daemon, player and judge as the program needs them.
    pub fn start(setting: &Setting, program: &Program) -> Result<Bench> {
        let folder = tempfile::Builder::new()
            .prefix("memscope-differential-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let arguments: Vec<&str> = program
            .daemon
            .arguments
            .iter()
            .map(String::as_str)
            .collect();
        let daemon = Daemon::launch(&setting.programs, &arguments)?;
        let script = |name: &str| process::root().join("xtask/differential").join(name);
        let python = setting.installation.join("bin/python");
        let mut command = Command::new(&python);
        command
            .arg(script("player.py"))
            .envs(program.environment.variables(&setting.installation)?);
        let player = Partner::start("player", &mut command, folder.path())?;
        let mut command = Command::new(&python);
        command.arg(script("judge.py"));
        let judge = Partner::start("judge", &mut command, folder.path())?;
        player.hear()?;
        Ok(Bench {
            setting: setting.clone(),
            daemon,
            player,
            judge,
            moments: Vec::new(),
            folder,
            settings: program.environment.settings.clone(),
        })
    }

    /// Plays a program, and compares its moments live and in the past. Differences are in the judgement; an error means
    /// that the program could not be played.
    pub fn play(&mut self, program: &Program) -> Result<Judgement> {
        let first = self.moments.len();
        let played = self.play_elements(program);
        // Whatever happened, the daemon must run when the next program begins.
        self.daemon.signal(libc::SIGCONT)?;
        let mut judgement = played?;
        for at in first..self.moments.len() {
            let daemon = &self.daemon;
            let compared = compare_moment(
                &self.moments[at],
                When::Past,
                &mut self.judge,
                self.folder.path(),
                self.setting.plant,
                &|words| daemon.ask(words),
            )?;
            judgement.add(compared);
        }
        self.daemon
            .json(&["detach", "--pid", &self.player.pid().to_string()])?;
        self.player
            .ask(&json!({"order": "end", "settings": self.settings}))?;
        Ok(judgement)
    }

    fn play_elements(&mut self, program: &Program) -> Result<Judgement> {
        self.player.ask(&json!({"order": "begin"}))?;
        let mut judgement = Judgement::default();
        let mut portion = Vec::new();
        let mut attached = false;
        for element in &program.elements {
            let does = Program::does(element);
            if !matches!(does, "attach" | "check" | "stop" | "go_on") {
                portion.push(element.clone());
                continue;
            }
            self.play_portion(&mut portion)?;
            match does {
                "attach" => {
                    self.attach(program)?;
                    attached = true;
                }
                // A program that was made smaller may ask for something before the attach.
                _ if !attached => {}
                "stop" => self.daemon.signal(libc::SIGSTOP)?,
                "go_on" => self.daemon.signal(libc::SIGCONT)?,
                _ => judgement.add(self.check(program)?),
            }
        }
        self.play_portion(&mut portion)?;
        if attached {
            judgement.add(self.check(program)?);
        }
        Ok(judgement)
    }

    fn play_portion(&mut self, portion: &mut Vec<Value>) -> Result<()> {
        if !portion.is_empty() {
            let elements = std::mem::take(portion);
            self.player
                .ask(&json!({"order": "play", "elements": elements}))?;
        }
        Ok(())
    }

    fn attach(&mut self, program: &Program) -> Result<()> {
        let pid = self.player.pid().to_string();
        let mut words = vec!["attach", "--pid", &pid, "--level", &program.level];
        match program.level.as_str() {
            "read" => words.extend(["--every", "0s"]),
            "segments" => {}
            _ => words.extend(["--stacks", &program.stacks]),
        }
        let said = self.daemon.json(&words)?;
        let level = &said["processes"][0]["level"];
        if level != program.level.as_str() {
            bail!("level {} was to be reached, and {level} was", program.level);
        }
        if program.level != "segments" {
            self.wait_until_known(&pid)?;
        }
        self.player.ask(&json!({"order": "mark"}))?;
        Ok(())
    }

    /// Waits until the state is known, at most [`READING`]; returns the last answer of `stats`.
    fn wait_until_known(&mut self, pid: &str) -> Result<Value> {
        let deadline = Instant::now() + READING;
        let played = self.player.ask(&json!({"order": "play", "elements": []}))?;
        // If the pool holds nothing, there is nothing to read, and the baseline stays unknown.
        let holds = played["reserved_bytes"].as_u64() != Some(0);
        loop {
            let stats = self.daemon.json(&["stats", "--pid", pid])?;
            if !holds || Judgement::knows(&stats) || Instant::now() > deadline {
                return Ok(stats);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Compares memscope and PyTorch at this moment, and keeps the moment for later questions.
    fn check(&mut self, program: &Program) -> Result<Judgement> {
        self.daemon.signal(libc::SIGCONT)?;
        let pid = self.player.pid().to_string();
        let stats = if program.daemon.loses() && program.level != "segments" {
            self.wait_until_known(&pid)?
        } else {
            self.daemon.json(&["stats", "--pid", &pid])?
        };
        let number = self.moments.len();
        let exported = self.folder.path().join("live.pickle");
        export(&|words| self.daemon.ask(words), &pid, None, &exported)?;
        let own = self.folder.path().join(format!("own-{number}.pickle"));
        let told = self
            .player
            .ask(&json!({"order": "moment", "file": own.to_string_lossy()}))?;
        let moment = Moment {
            seed: program.seed,
            number,
            pid,
            own,
            unix_ns: told["unix_ns"]
                .as_u64()
                .context("a moment without a time")?,
            level: program.level.clone(),
            stacks: program.stacks == "python",
            lossy: program.daemon.loses(),
            rotates: program.daemon.rotates(),
        };
        let mut question = moment.question(When::Live, &exported, self.setting.plant);
        question["stats"] = stats;
        question["told"] = told["devices"].clone();
        let answer = self.judge.ask(&question)?;
        let judgement = Judgement::of(&moment, When::Live, &answer)?;
        self.moments.push(moment);
        Ok(judgement)
    }

    /// Makes a recording of all that was played, and asks it about the first and last moment of each program.
    pub fn recorded(&mut self) -> Result<Vec<(u64, Judgement)>> {
        if self.moments.is_empty() {
            return Ok(Vec::new());
        }
        let file = self.folder.path().join("all.mscope");
        let said = self
            .daemon
            .ask(&["record", "-o", &file.to_string_lossy()])?;
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        if said.status.code() == Some(REFUSED) {
            let refused = |moment: &Moment| {
                let judgement = Judgement::refused(moment, When::Recorded, &why);
                (moment.seed, judgement)
            };
            return Ok(self
                .moments
                .drain(..)
                .map(|moment| refused(&moment))
                .collect());
        }
        if !said.status.success() {
            bail!("record: {why}");
        }
        let replay = Replay::start(&self.setting.programs, &file, self.folder.path())?;
        let mut found = Vec::new();
        for (at, moment) in self.moments.iter().enumerate() {
            let first = at == 0 || self.moments[at - 1].seed != moment.seed;
            let last = self
                .moments
                .get(at + 1)
                .is_none_or(|next| next.seed != moment.seed);
            if !first && !last {
                continue;
            }
            let compared = compare_moment(
                moment,
                When::Recorded,
                &mut self.judge,
                self.folder.path(),
                self.setting.plant,
                &|words| replay.ask(words),
            )?;
            found.push((moment.seed, compared));
        }
        self.moments.clear();
        Ok(found)
    }
}

/// Compares an earlier moment. That memscope refuses it is an answer, too, if the moment may be gone.
fn compare_moment(
    moment: &Moment,
    when: When,
    judge: &mut Partner,
    folder: &Path,
    plant: bool,
    ask: Asking,
) -> Result<Judgement> {
    let exported = folder.join("then.pickle");
    if let Some(why) = export(ask, &moment.pid, Some(moment.unix_ns), &exported)? {
        return Ok(Judgement::refused(moment, when, &why));
    }
    let answer = judge.ask(&moment.question(when, &exported, plant))?;
    Judgement::of(moment, when, &answer)
}

/// Writes a snapshot to a file; returns the reason if an earlier moment was refused.
fn export(ask: Asking, pid: &str, at: Option<u64>, file: &Path) -> Result<Option<String>> {
    let at = at.map(|ns| ns.to_string());
    let file = file.to_string_lossy();
    let mut words = vec![
        "snapshot",
        "--pid",
        pid,
        "--format",
        "memory-viz",
        "-o",
        &file,
    ];
    if let Some(at) = &at {
        words.extend(["--at", at]);
    }
    let said = ask(&words)?;
    if said.status.success() {
        return Ok(None);
    }
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    if at.is_some() && said.status.code() == Some(REFUSED) {
        return Ok(Some(why));
    }
    bail!("memscope-ctl {}: {why}", words.join(" "))
}

/// A daemon that replays a recording. It ends when this is dropped.
struct Replay {
    _running: Ended,
    programs: PathBuf,
    socket: PathBuf,
}

impl Replay {
    fn start(programs: &Path, recording: &Path, folder: &Path) -> Result<Replay> {
        let socket = folder.join("replay.sock");
        let child = tied(&mut Command::new(programs.join("memscoped")))
            .arg("--replay")
            .arg(recording)
            .arg("--socket")
            .arg(&socket)
            .args(["--log", "warn", "--trace-entries", "5000000"])
            .stdin(Stdio::null())
            .spawn()
            .context("memscoped could not be started")?;
        let replay = Replay {
            _running: Ended(child),
            programs: programs.to_owned(),
            socket,
        };
        let deadline = Instant::now() + REPLAYING;
        while !replay.ask(&["status"])?.status.success() {
            if Instant::now() > deadline {
                bail!("memscoped does not answer for the recording");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(replay)
    }

    fn ask(&self, words: &[&str]) -> Result<std::process::Output> {
        Command::new(self.programs.join("memscope-ctl"))
            .arg("--socket")
            .arg(&self.socket)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .context("memscope-ctl could not be started")
    }
}
