//! `watch`: what processes hold, again and again.

use super::query::ask_stats;
use crate::args;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::render::watch::{Look, Window};
use crate::{output, render};
use memscope_proto::v1;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// Between two questions for what grows and how long a step takes, which change slowly and cost more than the others.
const SLOWLY: Duration = Duration::from_secs(10);

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
    let mut slow: BTreeMap<u32, (Instant, v1::LeaksResponse)> = BTreeMap::new();
    let mut left = watch.count.unwrap_or(u64::MAX);
    let mut is_first = true;
    while left > 0 {
        ticks.tick().await;
        // Whoever is traced by now is shown from now on.
        let mut answers = Vec::new();
        for pid in client.chosen(&watch.processes).await? {
            answers.push(ask_stats(client, pid).await?);
        }
        if json {
            for answer in &answers {
                output::json_line(answer)?;
            }
        } else {
            let window = output::window(redraw);
            let listed = client.list().await?;
            let mut looks = Vec::new();
            for stats in &answers {
                let course = course(client, stats.pid, watch.interval, window).await?;
                let known = slow
                    .remove(&stats.pid)
                    .filter(|(at, _)| at.elapsed() < SLOWLY);
                let (at, leaks) = match known {
                    Some(known) => known,
                    None => (Instant::now(), leaks(client, stats.pid).await?),
                };
                slow.insert(stats.pid, (at, leaks.clone()));
                let is_it = |one: &&v1::Process| {
                    let handle = stats.process.as_ref().map(|process| process.handle);
                    Some(one.handle) == handle
                };
                looks.push(Look {
                    stats: stats.clone(),
                    listed: listed.iter().find(is_it).cloned(),
                    course,
                    leaks,
                });
            }
            let text = render::watch::watch(&looks, |pid| before.get(&pid), window);
            match redraw {
                true => output::redraw(&text)?,
                false if is_first => output::text(&text)?,
                false => output::text(&format!("\n{text}"))?,
            }
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

/// The course of the last looks, as many as fit.
async fn course(
    client: &Client,
    pid: u32,
    interval: Duration,
    window: Window,
) -> Result<v1::FluctuationResponse, Failure> {
    let intervals = window.intervals() as u32;
    let passed = interval.saturating_mul(intervals).as_nanos();
    let question = v1::FluctuationRequest {
        pid,
        window_ns: u64::try_from(passed).unwrap_or(u64::MAX).max(1),
        intervals,
    };
    client
        .ask(question, async |mut rpc, request| {
            rpc.fluctuation(request).await
        })
        .await
}

async fn leaks(client: &Client, pid: u32) -> Result<v1::LeaksResponse, Failure> {
    let question = v1::LeaksRequest {
        pid,
        limit: 1,
        ..v1::LeaksRequest::default()
    };
    client
        .ask(question, async |mut rpc, request| rpc.leaks(request).await)
        .await
}
