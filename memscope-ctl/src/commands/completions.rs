//! `completions`: what a shell reads to complete the command line.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::session::Session;
use memscope_pages::Shell;
use std::io::Write as _;

/// Print what a shell reads to complete commands and options.
///
/// Packages of memscope install these files already.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  source <(memscope-ctl completions bash)      for this shell
  memscope-ctl completions zsh > _memscope-ctl for a folder of $fpath
  memscope-ctl completions fish > ~/.config/fish/completions/memscope-ctl.fish")]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

impl Run for Completions {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let text = memscope_pages::completions((session.command_line)(), self.shell);
        let mut out = std::io::stdout().lock();
        out.write_all(&text)
            .and_then(|()| out.flush())
            .map_err(|source| Failure::Output {
                what: "the completions cannot be written".into(),
                source,
            })?;
        Ok(Exit::Done)
    }
}
