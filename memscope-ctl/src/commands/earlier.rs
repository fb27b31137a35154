//! `ps --earlier`: what the daemon's earlier runs recorded.

use crate::args::Ps;
use crate::failure::{Exit, Failure};
use crate::recording::made_by_memscoped;
use crate::{output, render};
use std::path::Path;

/// Where the daemon keeps its state unless it was told otherwise.
const STATE_DIR: &str = "/var/lib/memscope";

/// What helps where they cannot be listed.
const HINT: &str =
    "only root may look into the daemon's state directory: try sudo; --state-dir names another one";

pub(super) async fn earlier(ps: &Ps, json: bool) -> Result<Exit, Failure> {
    let folder = ps.state_dir.as_deref().unwrap_or(Path::new(STATE_DIR));
    let words = ["--earlier".into(), "--state-dir".into(), folder.into()];
    let found: Vec<render::earlier::EarlierRun> =
        made_by_memscoped(&words, "not_listed", "list earlier runs", HINT).await?;
    if json {
        output::json(&found)?;
    } else {
        output::text(&render::earlier::earlier(&found, folder))?;
    }
    Ok(Exit::Done)
}
