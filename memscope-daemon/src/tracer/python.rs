//! Python stacks of a process: finds its interpreter, makes the programs walk its frames, and places the probe that
//! reports when a code object dies.

use memscope_ledger::event::Level;
use memscope_python::PythonError;

use super::Tracer;
use crate::keeper::Command;
use crate::probe::links;
use crate::probe::load::Program;
use crate::probe::multi::Point;
use crate::python::{Names, entry};

impl Tracer {
    /// Makes the programs take the stacks of a process's Python code, if that is possible. A process that was attached right after its
    /// start has no interpreter yet, or one that is not initialised, so this is tried again when it has loaded libraries.
    pub(super) fn start_python(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        let done = traced.python || traced.python_given_up;
        if !traced.options.stacks.python || done || traced.level == Level::Read {
            return;
        }
        const CODE: &str = "no_python_stacks";
        let said = traced.notes.get(CODE).cloned().unwrap_or_default();
        let text = match self.place_python(pid) {
            Ok(()) => String::new(),
            Err(why) => format!("no Python stacks are taken: {why}"),
        };
        if text != said {
            if !text.is_empty() {
                tracing::info!(pid, "{text}");
            }
            self.note(pid, CODE, &text);
        }
    }

    /// Records that stacks are sampled, if that was asked for.
    pub(super) fn say_sampled(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        let stacks = traced.options.stacks;
        let taken = (stacks.python || stacks.native) && traced.level != Level::Read;
        if taken && stacks.sampling != 0 {
            let text = format!(
                "one stack is taken for {} KiB of allocations, as was asked for: sums by stack are estimates",
                (1u64 << stacks.sampling) >> 10
            );
            self.note(pid, "stacks_sampled", &text);
        }
    }

    /// Makes the programs take the stacks of a process's compiled code.
    pub(super) fn start_native(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        if !traced.options.stacks.native || traced.level == Level::Read {
            return;
        }
        let process = traced.handle;
        let Some(jobs) = self.unwinder.watch(process, pid) else {
            self.note(
                pid,
                "no_native_stacks",
                "no stacks of compiled code are taken: what unwinds them has ended",
            );
            return;
        };
        let _ = self.keeper.send(Command::Native { process, jobs });
        self.keeper_is_up_to_date();
        if let Some(traced) = self.traced.get_mut(&pid) {
            traced.native = true;
            traced.slot.set_native(true);
        }
    }

    fn place_python(&mut self, pid: u32) -> Result<(), String> {
        let interpreter = match memscope_python::find(pid) {
            Ok(interpreter) => interpreter,
            // Nothing is missing where there is no Python.
            Err(PythonError::NoInterpreter) => return Ok(()),
            Err(error) => {
                // The next search would read as much. It is worth it only after the process has mapped or unmapped code.
                if let PythonError::TooManyReads { .. } = error
                    && let Some(traced) = self.traced.get_mut(&pid)
                {
                    traced.python_given_up = true;
                }
                return Err(crate::error_chain(&error));
            }
        };
        let layout = entry(&interpreter).map_err(|error| error.to_string())?;
        let number = self
            .kernel
            .python(pid, &layout)
            .map_err(|error| crate::error_chain(&error))?;
        let version = interpreter.version;
        let dealloc = interpreter.code_dealloc.clone();
        let names = Names::open(pid, interpreter).map_err(|error| crate::error_chain(&error))?;
        let Some(traced) = self.traced.get_mut(&pid) else {
            return Ok(());
        };
        let (handle, slot) = (traced.handle, traced.slot.clone());
        let _ = self.keeper.send(Command::Python {
            process: handle,
            names: Box::new(names),
        });
        // The probe on deaths must be live before the first stack is taken.
        match dealloc {
            Some(function) => {
                let point = Point {
                    offset: function.file_offset,
                    cookie: 0,
                };
                let _paused = self.remover.pause(|| self.pulse.beat());
                let link = links::attach(
                    &mut self.kernel,
                    Program::CodeDealloc,
                    pid,
                    &function.open_path,
                    &function.path.to_string_lossy(),
                    None,
                    &[point],
                )
                .map_err(|error| crate::error_chain(&error))?;
                if let Some(traced) = self.traced.get_mut(&pid) {
                    traced.links.push(link);
                }
            }
            None => self.note(
                pid,
                "code_deaths_unseen",
                "where the interpreter frees code objects was not found: the stack of code that was \
                 made at run time and freed may be shown under the name of newer code",
            ),
        }
        self.keeper_is_up_to_date();
        slot.set_python(number);
        if let Some(traced) = self.traced.get_mut(&pid) {
            traced.python = true;
            traced.python_number = number;
        }
        tracing::info!(pid, %version, "Python stacks are taken");
        Ok(())
    }
}
