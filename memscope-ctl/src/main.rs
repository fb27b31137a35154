//! `memscope-ctl`: asks a memscope daemon and shows its answers.
//!
//! Owns: arguments, exit codes, tables, and the reading of snapshot files. Refuses: knowing how answers are computed.
//! It knows the daemon only by `memscope.v1`.

// What only a command uses that is left out.
#![cfg_attr(
    not(all(feature = "report", feature = "tls", feature = "top")),
    allow(dead_code, unused_imports)
)]

mod address;
mod apart;
mod client;
mod commands;
mod failure;
mod file;
mod files;
mod fleet;
mod format;
mod moment;
mod output;
mod preflight;
mod process;
mod progress;
mod recording;
mod render;
mod session;
mod signals;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
mod tls;
mod ui;
mod units;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser as _};
use failure::Failure;
use memscope_pages::Section;
use std::process::ExitCode;

/// Names the commands that have an option which the one that was given does not have. Clap would advise to pass it as a value.
fn belongs_elsewhere(error: &mut clap::Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    let Some(name) = given.strip_prefix("--") else {
        return;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let name = name.split('=').next().unwrap_or(name);
    let command = commands::Args::command();
    let has = |of: &&clap::Command| of.get_arguments().any(|arg| arg.get_long() == Some(name));
    let theirs: Vec<&str> = command
        .get_subcommands()
        .filter(has)
        .map(clap::Command::get_name)
        .collect();
    let tip = format!("these commands have --{name}: {}", theirs.join(", "));
    error.remove(ContextKind::Suggested);
    if !theirs.is_empty() {
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
}

fn main() -> ExitCode {
    if let Some(ended) = memscope_pages::asked(commands::Args::command, Section::Commands) {
        return ended;
    }
    let args = commands::Args::try_parse().unwrap_or_else(|mut error| {
        belongs_elsewhere(&mut error);
        error.exit()
    });
    let json = args.global.json;
    let mut builder = if args.is_stream() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1);
        builder
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(args)),
        Err(source) => Err(Failure::Output {
            what: "the runtime cannot be started".into(),
            source,
        }),
    };
    match result {
        Ok(exit) => exit.into(),
        // The reader of our output has closed it, as `head` does. That is no error.
        Err(failure) if failure.is_closed_output() => ExitCode::SUCCESS,
        Err(failure) => {
            output::report(&failure, json);
            failure.exit().into()
        }
    }
}
