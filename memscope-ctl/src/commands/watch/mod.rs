//! `watch`: what processes hold, again and again.

mod table;

use super::run::Run;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::process::Processes;
use crate::render::window::Window;
use crate::session::Session;
use crate::units::{in_nanoseconds, parse_timeout};
use memscope_proto::v1;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use table::Look;
use tokio::time::MissedTickBehavior;

/// Show what processes hold, again and again.
///
/// Redraws a terminal; elsewhere one table follows another, with --json one line another.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) processes: Processes,
    /// Time between two looks.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_timeout)]
    pub(crate) interval: Duration,
    /// Look so many times, then end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// Time between two questions for growth and the length of a step, which change slowly and cost more than the others.
const SLOWLY: Duration = Duration::from_secs(10);

impl Run for Watch {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = &session.client().await?;
        let json = session.global.json;
        let redraw = !json && output::is_terminal();
        let mut ticks = tokio::time::interval(self.interval);
        // A slow daemon is not asked several times at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // By handles: a process that executed another program or was attached anew has the pid of the one before, and nothing else of it.
        let mut before: BTreeMap<u32, v1::StatsResponse> = BTreeMap::new();
        let mut slow: BTreeMap<u32, (Instant, v1::LeaksResponse)> = BTreeMap::new();
        let mut left = self.count.unwrap_or(u64::MAX);
        let mut is_first = true;
        while left > 0 {
            ticks.tick().await;
            // A process that was attached meanwhile is shown from now on.
            let mut answers = Vec::new();
            for pid in client.chosen(&self.processes).await? {
                answers.push(client.stats(pid).await?);
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
                    let course = course(client, stats.pid, self.interval, window).await?;
                    let known = slow
                        .remove(&handle(stats))
                        .filter(|(at, _)| at.elapsed() < SLOWLY);
                    let (at, leaks) = match known {
                        Some(known) => known,
                        None => (Instant::now(), leaks(client, stats.pid).await?),
                    };
                    slow.insert(handle(stats), (at, leaks.clone()));
                    let is_it = |one: &&v1::Process| one.handle == handle(stats);
                    looks.push(Look {
                        stats: stats.clone(),
                        listed: listed.processes.iter().find(is_it).cloned(),
                        course,
                        leaks,
                    });
                }
                let text = table::text(&looks, |stats| before.get(&handle(stats)), window);
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
            // No process is traced any more, so nothing will change.
            if !answers.iter().any(traced) {
                break;
            }
            before = answers
                .into_iter()
                .map(|answer| (handle(&answer), answer))
                .collect();
        }
        Ok(Exit::Done)
    }
}

/// The handle of the process of an answer.
fn handle(stats: &v1::StatsResponse) -> u32 {
    stats.process.as_ref().map_or(0, |process| process.handle)
}

/// The course of memory over the last intervals, as many as fit into the window.
async fn course(
    client: &Client,
    pid: u32,
    interval: Duration,
    window: Window,
) -> Result<v1::FluctuationResponse, Failure> {
    let intervals = window.intervals() as u32;
    let passed = interval.saturating_mul(intervals);
    let question = v1::FluctuationRequest {
        pid,
        window_ns: in_nanoseconds(passed).max(1),
        intervals,
        ..v1::FluctuationRequest::default()
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
    client.leaks(question).await
}
