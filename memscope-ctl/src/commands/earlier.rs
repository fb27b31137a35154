//! `ps --earlier`: what the daemon's earlier runs recorded.

use crate::args::{Args, Ps};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::recording::made_by_memscoped;
use crate::{output, render};
use memscope_proto::v1;
use std::path::{Path, PathBuf};

/// Where the daemon keeps its state unless it was told otherwise.
const STATE_DIR: &str = "/var/lib/memscope";

/// What helps where they cannot be listed.
const HINT: &str =
    "only root may look into the daemon's state directory: try sudo; --state-dir names another one";

pub(super) async fn earlier(ps: &Ps, args: &Args) -> Result<Exit, Failure> {
    let folder = match &ps.state_dir {
        Some(named) => named.clone(),
        None => state_dir_of_the_daemon(args)
            .await
            .unwrap_or_else(|| STATE_DIR.into()),
    };
    let folder = folder.as_path();
    let words = ["--earlier".into(), "--state-dir".into(), folder.into()];
    let found: Vec<render::earlier::EarlierRun> =
        made_by_memscoped(&words, "not_listed", "list earlier runs", HINT).await?;
    if args.json {
        output::json(&found)?;
    } else {
        output::text(&render::earlier::earlier(&found, folder))?;
    }
    Ok(Exit::Done)
}

/// Where the daemon that runs keeps its state, if one does and keeps a journal.
async fn state_dir_of_the_daemon(args: &Args) -> Option<PathBuf> {
    let client = Client::connect(&args.socket, args.timeout()).await.ok()?;
    let status = client
        .ask(v1::StatusRequest {}, async |mut rpc, request| {
            rpc.status(request).await
        })
        .await
        .ok()?;
    let journal = status.journal?.path;
    // STATE_DIR/journal/RUN
    let state_dir = Path::new(&journal).parent()?.parent()?;
    Some(state_dir.to_owned())
}
