//! The arguments by which commands name processes.

/// Reads the id of a process.
fn pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err("a process is named by its number, which memscope-ctl ps shows".to_owned()),
    }
}

/// The processes that are asked about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Processes {
    /// The processes; all that are traced if none is named. --pid says the same.
    #[arg(value_name = "PID", conflicts_with = "pid", value_delimiter = ',', value_parser = pid)]
    processes: Vec<u32>,
    /// The processes, with commas between them; all that are traced if none is named.
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pid: Vec<u32>,
}

impl Processes {
    /// The named processes, each once. Empty if none is named, which means all.
    pub(crate) fn named(&self) -> Vec<u32> {
        let mut named: Vec<u32> = Vec::new();
        for pid in self.processes.iter().chain(&self.pid) {
            if !named.contains(pid) {
                named.push(*pid);
            }
        }
        named
    }
}

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Process {
    /// The process; may be left out while only one is traced. --pid says the same.
    #[arg(value_name = "PID", conflicts_with = "pid", value_parser = pid)]
    process: Option<u32>,
    /// The process; may be left out while only one is traced.
    #[arg(long, value_name = "PID", value_parser = pid)]
    pid: Option<u32>,
}

impl Process {
    /// The process that is named, if one is.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.or(self.pid)
    }
}

/// The process of a command whose first word is something else.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ProcessOption {
    /// The process; may be left out while only one is traced.
    #[arg(long, value_name = "PID", value_parser = pid)]
    pub(crate) pid: Option<u32>,
}
