//! The commands: ask, then show.

mod attach;
mod doctor;
mod dump;
mod each;
mod earlier;
mod events;
mod export;
mod query;
mod snapshot;
mod stacks;
mod trigger;
mod watch;

use crate::args::{Args, Command, KeptCommand};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::recording::Replayer;
use tokio::signal::unix::{SignalKind, signal};

/// Runs the command.
pub(crate) async fn run(args: Args) -> Result<Exit, Failure> {
    if let Command::Doctor = args.command {
        if args.recording.is_some() {
            return Err(Failure::Usage {
                what: "a recording has no machine to examine".into(),
                hint: "leave out --recording, or ask for its status".into(),
            });
        }
        return doctor::doctor(&args).await;
    }
    if let Command::Ps(ps) = &args.command
        && ps.earlier
    {
        if args.recording.is_some() {
            return Err(Failure::Usage {
                what: "a recording has no earlier runs".into(),
                hint: "leave out --recording; --state-dir names a state directory".into(),
            });
        }
        return earlier::earlier(ps, &args).await;
    }
    if let Command::Export(request) = &args.command {
        return export::run(request, &args).await;
    }
    if let Command::Dump(command) = &args.command {
        return dump::run(command, &args).await;
    }
    if let Command::Diff(request) = &args.command
        && let [before, after] = &request.files[..]
    {
        if args.recording.is_some() {
            return Err(Failure::Usage {
                what: "--recording and two files are three things to compare".into(),
                hint: "name the recording as one of the files".into(),
            });
        }
        return tokio::select! {
            result = query::diff_files(before, after, request, &args) => result,
            code = interrupted() => Ok(code),
        };
    }
    // Told before anything is asked or started.
    if let Command::Snapshot(snapshot) = &args.command {
        snapshot::refuse_terminal(snapshot)?;
    }
    if let Command::Snapshots(kept) = &args.command {
        trigger::check(kept)?;
    }
    if let Command::Flamegraph(request) = &args.command {
        stacks::check(request)?;
    }
    match &args.recording {
        None => {
            let client = Client::connect(&args.socket, args.timeout()).await?;
            let client = client.strict(args.strict);
            ask(&client, &args).await
        }
        Some(recording) => {
            tokio::select! {
                result = ask_recording(recording, &args) => result,
                // Ends the replayer, too: it is killed when it is dropped.
                code = interrupted() => Ok(code),
            }
        }
    }
}

async fn ask_recording(recording: &std::path::Path, args: &Args) -> Result<Exit, Failure> {
    if let Command::Mark(_) = args.command {
        return Err(Failure::Usage {
            what: "a recording has no present moment to mark".into(),
            hint: "leave out --recording".into(),
        });
    }
    if let Command::Attach(_) | Command::Detach(_) = args.command {
        return Err(Failure::Usage {
            what: "a recording cannot be attached to or detached from".into(),
            hint: "leave out --recording".into(),
        });
    }
    if let Command::Trigger(_) | Command::Snapshots(_) = args.command {
        return Err(Failure::Usage {
            what: "nothing is taken by itself from a recording".into(),
            hint: "leave out --recording; `snapshot --at` takes one of any moment of it".into(),
        });
    }
    let (replayer, client) =
        Replayer::start(recording, args.as_of.as_deref(), args.timeout()).await?;
    let client = client.strict(args.strict);
    let result = ask(&client, args).await;
    drop(client);
    replayer.stop().await;
    result
}

/// Waits for a signal that ends programs.
async fn interrupted() -> Exit {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        // Without handlers, signals do what they always do.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Exit::Failed
}

async fn ask(client: &Client, args: &Args) -> Result<Exit, Failure> {
    match &args.command {
        // Handled before a daemon was sought.
        Command::Doctor | Command::Dump(_) | Command::Export(_) => Ok(Exit::Done),
        Command::Status => query::status(client, args.json).await,
        Command::Ps(_) => query::ps(client, args.recording.is_none(), args.json).await,
        Command::Attach(request) => attach::attach(client, request, args.json).await,
        Command::Detach(request) => attach::detach(client, request, args.json).await,
        Command::Stats(processes) => query::stats(client, processes, args.json).await,
        Command::Watch(request) => watch::watch(client, request, args.json).await,
        Command::Leaks(request) => query::leaks(client, request, args.json).await,
        Command::Steps(request) => query::steps(client, request, args.json).await,
        Command::Record(request) => snapshot::record(client, request, args.json).await,
        Command::Marks(request) => query::marks(client, request, args.json).await,
        Command::Mark(request) => query::mark(client, request, args.json).await,
        Command::Fluctuation(request) => query::fluctuation(client, request, args.json).await,
        Command::Snapshot(request) => snapshot::snapshot(client, request, args.json).await,
        Command::Pool(request) => query::pool(client, request, args.json).await,
        Command::Trigger(request) => trigger::trigger(client, &request.command, args.json).await,
        Command::Snapshots(kept) => match &kept.command {
            None => trigger::kept(client, kept, args.json).await,
            Some(KeptCommand::Get(get)) => trigger::get(client, get, args.json).await,
        },
        Command::Diff(request) => query::diff(client, request, args.json).await,
        Command::Top(request) => stacks::top(client, request, args.json).await,
        Command::Flamegraph(request) => stacks::flamegraph(client, request, args.json).await,
        Command::Events(request) => events::events(client, request, args.patience()).await,
    }
}
