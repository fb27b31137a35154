//! `watch`: `stats`, again and again.

use super::query::ask_stats;
use crate::args;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::{output, render};
use memscope_proto::v1;
use std::collections::BTreeMap;
use tokio::time::MissedTickBehavior;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) async fn watch(
    client: &Client,
    watch: &args::Watch,
    json: bool,
) -> Result<Exit, Failure> {
    let redraw = !json && output::is_terminal();
    let mut ticks = tokio::time::interval(watch.interval);
    // A daemon that was slow is not asked several times at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: BTreeMap<u32, v1::StatsResponse> = BTreeMap::new();
    let mut left = watch.count.unwrap_or(u64::MAX);
    let mut is_first = true;
    while left > 0 {
        ticks.tick().await;
        // Whoever is traced by now is shown from now on.
        let mut answers = Vec::new();
        for pid in client.chosen(&watch.processes).await? {
            answers.push(ask_stats(client, pid).await?);
        }
        if redraw {
            output::text(CLEAR)?;
        }
        for (place, answer) in answers.iter().enumerate() {
            if json {
                output::json_line(answer)?;
                continue;
            }
            let table = render::stats::watch(answer, before.get(&answer.pid));
            let gap = if place == 0 && (redraw || is_first) {
                ""
            } else {
                "\n"
            };
            output::text(&format!("{gap}{table}"))?;
        }
        left -= 1;
        is_first = false;
        let traced = |answer: &v1::StatsResponse| {
            let state = answer.process.as_ref().map(v1::Process::state);
            state.is_none_or(|state| state == v1::ProcessState::Attached)
        };
        // Nothing changes any more.
        if !answers.iter().any(traced) {
            break;
        }
        before = answers
            .into_iter()
            .map(|answer| (answer.pid, answer))
            .collect();
    }
    Ok(Exit::Done)
}
