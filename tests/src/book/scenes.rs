//! Where shown commands are run: the situations in which the book shows what is printed.

use std::process::Command as Process;
use std::time::Instant;

use crate::book::page::words_of_ours;
use crate::book::stage::{expected_code, program_of_the_book};
use crate::build::{Library, executable};
use crate::ctl::Asking;
use crate::daemon::Daemon;
use crate::npu::npu;
use crate::places::{root, scratch, tool};
use crate::program::Program;
use crate::sim::sim;
use crate::torch::Torch;
use crate::wait::{LONG, SHORT, until};
use tempfile::TempDir;

/// Time for each step of 2 MiB of a process that grows.
const MILLISECONDS_A_STEP: u128 = 130;

/// A situation, which `<!-- program: NAME -->` above a block names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// The training loop of `cargo xtask demo`, attached and asked at the same moments as there.
    Demo,
    /// A training loop that grows, takes much at once, and then asks for too much.
    OutOfMemory,
    /// A process that takes memory from an NPU's driver in the names of CANN's components.
    Npu,
    /// A process with pools that tell of themselves through mstx.
    Pools,
    /// A program that wastes memory in three functions.
    Wasteful,
}

impl Scene {
    /// All that there are.
    pub const ALL: [Scene; 5] = [
        Scene::Demo,
        Scene::OutOfMemory,
        Scene::Npu,
        Scene::Pools,
        Scene::Wasteful,
    ];

    /// Its name in the pages.
    pub fn name(self) -> &'static str {
        match self {
            Scene::Demo => "demo",
            Scene::OutOfMemory => "out_of_memory",
            Scene::Npu => "npu",
            Scene::Pools => "pools",
            Scene::Wasteful => "wasteful",
        }
    }

    /// Runs each of these commands once; gives the command with the real process id, and the lines that it printed. Answers fit
    /// into `columns`. What is asked about the same moment is asked while the process rests.
    #[track_caller]
    pub fn play(self, commands: &[&str], columns: usize) -> Vec<(String, Vec<String>)> {
        // As `cargo xtask demo` does, so that a slow machine takes no fewer stacks; and one snapshot of each trigger, however
        // fast this machine is.
        let options = ["--stack-budget", "off", "--snapshot-pause", "3600"];
        let mut running = Running {
            scene: self,
            daemon: Daemon::with(&options),
            folder: scratch(),
            actor: self.actor(),
            attached: false,
            asked: false,
        };
        // What comes first in time is asked first, whatever the order of the pages is.
        let mut order: Vec<usize> = (0..commands.len()).collect();
        order.sort_by_key(|at| match words_of_ours(commands[*at]) {
            Some(words) if words[0] == "attach" => 0,
            Some(words) if words[0] == "detach" => 2,
            _ => 1,
        });
        let mut answers = vec![(String::new(), Vec::new()); commands.len()];
        for at in order {
            answers[at] = running.answer(commands[at], columns);
        }
        answers
    }

    fn actor(self) -> Actor {
        match self {
            Scene::Demo => {
                let script = root().join("xtask/demo/train.py");
                Actor::Text(Program::start("the demonstration", sim().script(&script)))
            }
            Scene::OutOfMemory => Actor::Torch(program_of_the_book("training.py")),
            Scene::Npu => Actor::Text(npu(&[])),
            Scene::Wasteful => {
                let command = sim().python("accesses/wasteful.py");
                let mut program = Program::start("wasteful.py", command);
                program.hear();
                Actor::Text(program)
            }
            Scene::Pools => {
                let command = Process::new(executable("mstx_memory.c", Library::Acl));
                let mut program = Program::start("the process with pools", command);
                program.hear();
                Actor::Text(program)
            }
        }
    }
}

/// What is traced.
enum Actor {
    Text(Program),
    Torch(Torch),
}

impl Actor {
    fn program(&mut self) -> &mut Program {
        match self {
            Actor::Text(program) => program,
            Actor::Torch(torch) => torch,
        }
    }
}

struct Running {
    scene: Scene,
    daemon: Daemon,
    /// Where the commands are run, and leave the files that they write.
    folder: TempDir,
    actor: Actor,
    attached: bool,
    asked: bool,
}

impl Running {
    #[track_caller]
    fn answer(&mut self, text: &str, columns: usize) -> (String, Vec<String>) {
        let pid = self.actor.program().pid_text();
        let mut shown: Vec<String> = text.split(' ').map(str::to_owned).collect();
        for at in 1..shown.len() {
            let subject = ["--pid", "stats", "leaks", "watch", "attach", "detach"];
            let number = shown[at].bytes().all(|byte| byte.is_ascii_digit());
            if number && subject.contains(&shown[at - 1].as_str()) {
                shown[at].clone_from(&pid);
            }
        }
        let shown = shown.join(" ");
        let words = words_of_ours(&shown).unwrap_or_else(|| panic!("no command of ours: {text}"));
        self.prepare(&words);
        let ctl = tool("memscope-ctl");
        let said = Asking::raw(&[ctl.to_str().unwrap()], &words)
            .with("MEMSCOPE_SOCKET", self.daemon.socket())
            .with("COLUMNS", columns.to_string())
            .inside(self.folder.path())
            .ask();
        assert_eq!(said.code, expected_code(&words), "{text}: {said}");
        let own = [
            format!("{}/", root().display()),
            format!("{}/", self.daemon.state().display()),
        ];
        let said = own
            .iter()
            .fold(said.output, |said, own| said.replace(own.as_str(), ""));
        let mut lines: Vec<String> = said
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        (shown, lines)
    }

    /// Brings the process to where the page asks about it.
    #[track_caller]
    fn prepare(&mut self, words: &[String]) {
        let attach = words[0] == "attach";
        if !self.attached {
            self.attached = true;
            if self.scene == Scene::Demo {
                // Between two steps: a step that is under way at the attach may be told of without its line.
                self.actor.program().hear_until("step 40");
                self.actor.program().signal(libc::SIGSTOP);
            }
            if !attach {
                self.attach();
            }
        }
        if attach {
            return;
        }
        match self.scene {
            Scene::Demo => self.rest_at_step_200(words),
            Scene::OutOfMemory => {
                if words[0] == "snapshots" && !std::mem::replace(&mut self.asked, true) {
                    self.run_out();
                }
            }
            Scene::Npu | Scene::Pools => {
                if !std::mem::replace(&mut self.asked, true) {
                    self.calls();
                }
            }
            Scene::Wasteful => {
                if !std::mem::replace(&mut self.asked, true) {
                    self.actor.program().ask("go");
                }
            }
        }
    }

    fn attach(&mut self) {
        let level = match self.scene {
            Scene::Demo | Scene::OutOfMemory => "trace",
            Scene::Npu | Scene::Pools => "segments",
            Scene::Wasteful => {
                let pid = self.actor.program().pid_text();
                self.daemon.json(&["attach", "--pid", &pid, "--accesses"]);
                return;
            }
        };
        if let Actor::Torch(torch) = &mut self.actor {
            torch.ask("steps 3");
        }
        self.daemon.attach(self.actor.program().pid(), level);
    }

    /// Where the demonstration asks. The process is stopped, so that all answers are about one moment, as they nearly are in
    /// the demonstration itself.
    fn rest_at_step_200(&mut self, words: &[String]) {
        let program = self.actor.program();
        if !std::mem::replace(&mut self.asked, true) {
            program.signal(libc::SIGCONT);
            program.hear_until("step 200");
            program.signal(libc::SIGSTOP);
        }
        if words[0] == "detach" {
            program.signal(libc::SIGCONT);
        }
        if words[0] == "ps" {
            // The daemon judges by itself from time to time, and this is what it finds at this moment.
            let pid = program.pid();
            until(LONG, "the daemon has judged", || {
                let listed = self.daemon.process(pid)?;
                (listed["verdict"] == "growing").then_some(())
            });
        }
    }

    /// Grows until that is noticed, takes much at once, and asks for too much.
    #[track_caller]
    fn run_out(&mut self) {
        let Actor::Torch(torch) = &mut self.actor else {
            panic!("{:?} has no PyTorch", self.scene);
        };
        let kept = |daemon: &Daemon, name: &str| {
            let answer = daemon.json(&["snapshots"]);
            let snapshots = answer["snapshots"].as_array().unwrap().iter();
            let mut whens = snapshots.filter_map(|snapshot| snapshot["when"].as_str());
            whens.any(|when| when.starts_with(name))
        };
        // At an even pace, however long a question takes on this machine: fast enough to be growth, and slow enough to be
        // noticed before the level is reached.
        let mut last = Instant::now();
        until(LONG, "growth is noticed", || {
            let steps = (last.elapsed().as_millis() / MILLISECONDS_A_STEP).max(1);
            last = Instant::now();
            torch.ask(&format!("large_steps {steps}"));
            kept(&self.daemon, "growth").then_some(())
        });
        torch.ask("hold 256");
        torch.ask("steps 1");
        until(SHORT, "the level is noticed", || {
            kept(&self.daemon, "reserved").then_some(())
        });
        torch.ask("fail 1024");
        until(SHORT, "the failure is noticed", || {
            kept(&self.daemon, "oom").then_some(())
        });
    }

    /// Calls of the driver and of mstx, each of which must succeed.
    #[track_caller]
    fn calls(&mut self) {
        let calls: &[&str] = match self.scene {
            Scene::Npu => &[
                "aclrtSetDevice 0",
                "aclrtMalloc own 3145728 1",
                "aclrtMallocWithCfg buffer 20971520 3",
                "aclrtMallocHostWithCfg pinned 4096 3",
            ],
            _ => &[
                "domain atb",
                "domain mindsporeMemPool",
                "heap atb workspace 0 0x10000000 67108864",
                "regions atb workspace a 0 0x10000000 4194304 b 0 0x10400000 8388608 c 0 0x10c00000 8388608",
                "gone_by atb c",
                "many mindsporeMemPool 3 0x200000 1048576",
                "heap mindsporeMemPool total 0 0x200000 35651584",
                "gone mindsporeMemPool 0x300000",
            ],
        };
        for call in calls {
            let answer = self.actor.program().ask(call);
            assert_eq!(answer["result"], 0, "{call}: {answer}");
        }
    }
}
