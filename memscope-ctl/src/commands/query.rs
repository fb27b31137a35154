//! Commands with one question and one answer.

use super::each::{each, whole};
use crate::args;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::files::{self, Kept, MatchedBy, StackDiff};
use crate::{output, render};
use memscope_proto::v1;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

pub(super) async fn status(client: &Client, json: bool) -> Result<Exit, Failure> {
    let answer = ask_status(client).await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::status::status(&answer))?;
    }
    Ok(Exit::Done)
}

pub(super) async fn ask_status(client: &Client) -> Result<v1::StatusResponse, Failure> {
    client
        .ask(v1::StatusRequest {}, async |mut rpc, request| {
            rpc.status(request).await
        })
        .await
}

/// `live`: the daemon's clock is ours, and not that of a recording.
pub(super) async fn ps(client: &Client, live: bool, json: bool) -> Result<Exit, Failure> {
    let answer = client
        .ask(v1::ListRequest {}, async |mut rpc, request| {
            rpc.list(request).await
        })
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        let now = if live { boot_ns() } else { None };
        output::text(&render::processes::list(&answer, now))?;
    }
    Ok(Exit::Done)
}

pub(super) async fn pool(client: &Client, pool: &args::Pool, json: bool) -> Result<Exit, Failure> {
    let question = v1::PoolRequest {
        pid: client.choose(pool.process.pid()).await?,
        at: pool.at.clone(),
        from: pool.from.clone(),
    };
    let answer = client
        .ask(question, async |mut rpc, request| rpc.pool(request).await)
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::pool::pool(&answer))?;
    }
    Ok(Exit::Done)
}

pub(super) async fn diff(client: &Client, diff: &args::Diff, json: bool) -> Result<Exit, Failure> {
    if diff.by == args::DiffBy::Stack {
        return super::stacks::grown(client, diff, json).await;
    }
    let question = v1::DiffRequest {
        pid: client.choose(diff.process.pid).await?,
        from: diff.from.clone(),
        to: diff.to.clone(),
    };
    let answer = client
        .ask(question, async |mut rpc, request| rpc.diff(request).await)
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::diff::diff(&answer, diff.limit))?;
    }
    Ok(Exit::Done)
}

/// The difference of two files; unknown is null.
#[derive(Serialize)]
struct FilesDiff<'a> {
    from: FileFacts,
    to: FileFacts,
    matched_by: MatchedBy,
    devices: &'a [v1::DeviceDiff],
    groups: &'a [v1::GroupDiff],
    stacks: &'a [StackDiff],
    coverage: &'a [v1::CoverageNote],
}

#[derive(Serialize)]
struct FileFacts {
    file: String,
    pid: Option<u32>,
    as_of: Option<u64>,
}

impl FileFacts {
    fn of(kept: &Kept) -> FileFacts {
        FileFacts {
            file: kept.path.display().to_string(),
            pid: kept.image.map(|image| image.pid),
            as_of: kept.as_of_ns,
        }
    }
}

pub(super) async fn diff_files(
    before: &Path,
    after: &Path,
    diff: &args::Diff,
    args: &args::Args,
) -> Result<Exit, Failure> {
    let pid = diff.process.pid;
    let before = files::read(before, pid, args.timeout()).await?;
    let after = files::read(after, pid, args.timeout()).await?;
    let compared = files::compare(&before, &after, diff.same_process);
    let mut coverage = before.coverage.clone();
    let new = after
        .coverage
        .iter()
        .filter(|note| !before.coverage.contains(note));
    coverage.extend(new.cloned());
    if args.strict {
        crate::failure::not_exact(&coverage, &["totals", "blocks"])?;
    }
    if args.json {
        output::json(&FilesDiff {
            from: FileFacts::of(&before),
            to: FileFacts::of(&after),
            matched_by: compared.matched_by,
            devices: &compared.devices,
            groups: &compared.groups,
            stacks: &compared.stacks,
            coverage: &coverage,
        })?;
    } else {
        let text = render::diff::files(&before, &after, &compared, &coverage, diff.limit, diff.by);
        output::text(&text)?;
    }
    Ok(Exit::Done)
}

fn boot_ns() -> Option<u64> {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).ok()?;
    let nanoseconds = u64::try_from(now.tv_nsec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

pub(super) async fn ask_stats(client: &Client, pid: u32) -> Result<v1::StatsResponse, Failure> {
    client
        .ask(v1::StatsRequest { pid }, async |mut rpc, request| {
            rpc.stats(request).await
        })
        .await
}

pub(super) async fn stats(
    client: &Client,
    processes: &args::Processes,
    json: bool,
) -> Result<Exit, Failure> {
    let ask = async |pid| ask_stats(client, pid).await;
    let (_, exit) = each(client, processes, json, ask, render::stats::stats, whole).await?;
    Ok(exit.unwrap_or(Exit::Done))
}

pub(super) async fn leaks(
    client: &Client,
    leaks: &args::Leaks,
    json: bool,
) -> Result<Exit, Failure> {
    let ask = async |pid| {
        let question = v1::LeaksRequest {
            pid,
            min_age_ns: nanoseconds(leaks.min_age),
            include_steady: leaks.all_groups,
            limit: leaks.limit,
            sure_after_steps: leaks.sure_after,
        };
        client
            .ask(question, async |mut rpc, request| rpc.leaks(request).await)
            .await
    };
    let show = |answer: &_| render::leaks::leaks(answer, leaks.all_groups);
    let (answers, exit) = each(client, &leaks.processes, json, ask, show, whole).await?;
    // What is found in one process is found; and one that cannot be asked or judged is no all-clear of the others.
    Ok(if !leaks.exit_code {
        exit.unwrap_or(Exit::Done)
    } else if answers.iter().any(|answer| answer.growing_groups > 0) {
        Exit::Growing
    } else if let Some(exit) = exit {
        exit
    } else if answers.iter().any(cannot_tell) {
        Exit::CannotTell
    } else {
        Exit::Done
    })
}

/// Whether nothing is said to grow of a process of which nobody can tell.
fn cannot_tell(answer: &v1::LeaksResponse) -> bool {
    answer.young.is_some() || render::leaks::never_read(answer)
}

pub(super) async fn steps(
    client: &Client,
    steps: &args::Steps,
    json: bool,
) -> Result<Exit, Failure> {
    let question = v1::StepsRequest {
        pid: client.choose(steps.process.pid()).await?,
        limit: steps.last,
        survivors: steps.survivors,
        every: steps.every,
    };
    let answer = client
        .ask(question, async |mut rpc, request| rpc.steps(request).await)
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::steps::steps(&answer))?;
    }
    Ok(Exit::Done)
}

pub(super) async fn mark(client: &Client, mark: &args::Mark, json: bool) -> Result<Exit, Failure> {
    let pid = client.choose(mark.process.pid).await?;
    let question = v1::MarkRequest {
        pid,
        name: mark.name.clone().unwrap_or_default(),
        step: mark.step,
    };
    let answer = client
        .ask(question, async |mut rpc, request| rpc.mark(request).await)
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        let event = answer.event.unwrap_or_default().sequence;
        output::text(&format!("Marked process {pid} at event {event}.\n"))?;
    }
    Ok(Exit::Done)
}

pub(super) async fn marks(
    client: &Client,
    marks: &args::Marks,
    json: bool,
) -> Result<Exit, Failure> {
    let question = v1::MarksRequest {
        pid: client.choose(marks.process.pid()).await?,
        limit: marks.last,
        include_framework: marks.all,
    };
    let answer = client
        .ask(question, async |mut rpc, request| rpc.marks(request).await)
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::marks::marks(&answer, marks.all))?;
    }
    Ok(Exit::Done)
}

pub(super) async fn fluctuation(
    client: &Client,
    fluctuation: &args::Fluctuation,
    json: bool,
) -> Result<Exit, Failure> {
    let question = v1::FluctuationRequest {
        pid: client.choose(fluctuation.process.pid()).await?,
        window_ns: nanoseconds(fluctuation.window),
        intervals: fluctuation.intervals,
    };
    let answer = client
        .ask(question, async |mut rpc, request| {
            rpc.fluctuation(request).await
        })
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::leaks::fluctuation(&answer))?;
    }
    Ok(Exit::Done)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
