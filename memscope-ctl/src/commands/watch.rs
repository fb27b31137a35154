//! `watch`: `stats`, again and again.

use super::query::ask_stats;
use crate::args;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::{output, render};
use memscope_proto::v1;
use tokio::time::MissedTickBehavior;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) async fn watch(
    client: &Client,
    watch: &args::Watch,
    json: bool,
) -> Result<Exit, Failure> {
    let pid = client.choose(watch.process.pid).await?;
    let redraw = !json && output::is_terminal();
    let mut ticks = tokio::time::interval(watch.interval);
    // A daemon that was slow is not asked several times at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<v1::StatsResponse> = None;
    let mut left = watch.count.unwrap_or(u64::MAX);
    while left > 0 {
        ticks.tick().await;
        let answer = ask_stats(client, pid).await?;
        if json {
            output::json_line(&answer)?;
        } else {
            let table = render::stats::watch(&answer, before.as_ref());
            let clear = if redraw { CLEAR } else { "" };
            let gap = if redraw || before.is_none() { "" } else { "\n" };
            output::text(&format!("{clear}{gap}{table}"))?;
        }
        left -= 1;
        let state = answer.process.as_ref().map(v1::Process::state);
        // Nothing changes any more.
        if state.is_some_and(|state| state != v1::ProcessState::Attached) {
            break;
        }
        before = Some(answer);
    }
    Ok(Exit::Done)
}
