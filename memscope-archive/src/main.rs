//! memscope-archive: writes what memscoped knows into a directory or an object store, as Parquet.
//!
//! Owns: asking memscoped, the spool, and the upload. Refuses: what the columns mean (`memscope-archive-rows`), and anything that needs a right:
//! it is a client of memscoped like others, and runs as a user of its own.

mod batch;
mod closing;
mod cursor;
mod daemon;
mod disk;
mod ear;
mod node;
mod options;
mod spool;
mod store;
mod upload;

use anyhow::{Context as _, Result};
use batch::{Ears, Room};
use clap::{CommandFactory as _, Parser as _};
use closing::{Shared, lock};
use cursor::Cursor;
use daemon::Daemon;
use ear::{Ear, MOST_EVENTS};
use memscope_archive_rows::rows::Node;
use memscope_pages::Section;
use options::{Events, Options};
use std::error::Error;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Kinds of events that are always archived, in a table of their own.
const ALERTS: &[&str] = &["finding"];
/// How long the last upload may take when the program is told to end.
const LAST_UPLOAD: Duration = Duration::from_secs(5);

fn main() -> Result<ExitCode> {
    if let Some(ended) = memscope_pages::asked(Options::command, Section::Daemons) {
        return Ok(ended);
    }
    archive(Options::parse()).map(|()| ExitCode::SUCCESS)
}

#[tokio::main]
async fn archive(options: Options) -> Result<()> {
    let words = std::env::var("MEMSCOPE_LOG").ok();
    let own = Targets::new()
        .with_default(Level::WARN)
        .with_target("memscope_archive", Level::INFO);
    let filter = words.and_then(|words| words.parse().ok()).unwrap_or(own);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    // The HTTP client has no TLS of its own choice. If there is a provider already, it is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = Store::open(&options.to)?;
    let node = node::node(options.node.as_deref())?;
    if options.check {
        return check(&options, &store, &node).await;
    }
    run(&options, store, node).await
}

/// Sees whether everything is in place.
async fn check(options: &Options, store: &Store, node: &Node) -> Result<()> {
    let daemon = Daemon::connect(&options.socket).await?;
    let status = daemon.status().await?;
    let listed = daemon.list().await?.len();
    println!(
        "memscoped {} answers, and shows {listed} processes",
        status.version
    );
    if status.totals_left_out {
        println!("it does not show the processes of other users: see its setting --see-all-user");
    }
    let name = memscope_archive_rows::encoded(&node.name);
    store
        .try_it(&name)
        .await
        .with_context(|| format!("{} does not take a small object", store.url))?;
    println!("{} takes objects", store.url);
    Ok(())
}

async fn run(options: &Options, store: Store, node: Node) -> Result<()> {
    let limit = options.spool_mib << 20;
    let (spool, cursor) = spool::Spool::open(&options.spool, limit, disk::Disk::default())
        .context("the spool cannot be used")?;
    tracing::info!(
        to = store.url,
        spool = %options.spool.display(),
        waiting = spool.files(),
        "the archive begins"
    );
    let room = Room::of(limit);
    let spool: Arc<Shared> = Arc::new(Mutex::new(spool));
    let closed = Arc::new(Notify::new());
    let alerts = Ear::new(ALERTS, MOST_EVENTS);
    let events = (options.events == Events::All).then(|| Ear::new(&[], MOST_EVENTS));
    for ear in [Some(&alerts), events.as_ref()].into_iter().flatten() {
        tokio::spawn(Arc::clone(ear).listen(options.socket.clone()));
    }
    let uploads = upload::for_ever(Arc::clone(&spool), store.clone(), Arc::clone(&closed));
    let uploads = tokio::spawn(uploads);
    let mut archive = Archive {
        options,
        node,
        spool: Arc::clone(&spool),
        cursor,
        room,
        alerts,
        events,
        problem: None,
    };
    let mut terminate = signal(SignalKind::terminate()).context("no signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("no signals")?;
    let mut ticks = tokio::time::interval(Duration::from_secs(options.every));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let filling = archive.events.as_ref().unwrap_or(&archive.alerts);
    let filling = Arc::clone(&filling.filling);
    let mut made = Made::All;
    loop {
        let ends = tokio::select! {
            () = is_due(&mut ticks, &filling, made) => false,
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
        };
        loop {
            made = archive.batch().await;
            if made != Made::More {
                break;
            }
            closed.notify_one();
        }
        closed.notify_one();
        if ends {
            break;
        }
    }
    // What is not uploaded now waits in the spool.
    uploads.abort();
    let _ = uploads.await;
    lock(&spool).not_uploaded();
    let last = async { while upload::one(&spool, &store).await.is_ok_and(|more| more) {} };
    let _ = tokio::time::timeout(LAST_UPLOAD, last).await;
    tracing::info!(waiting = lock(&spool).files(), "the archive ends");
    Ok(())
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// It is closed, and there is more already.
    More,
    /// It is closed, or there was nothing to close.
    All,
    /// It is not closed.
    Nothing,
}

/// Waits until the next batch is due: in time, or when an ear fills. If the last one could not be closed, an ear that is full anyway says
/// nothing new: else each event would begin a batch, with all questions to memscoped.
async fn is_due(ticks: &mut tokio::time::Interval, filling: &Notify, made: Made) {
    tokio::select! {
        _ = ticks.tick() => {}
        () = filling.notified(), if made != Made::Nothing => {}
    }
}

/// What batches are made of.
struct Archive<'a> {
    options: &'a Options,
    node: Node,
    spool: Arc<Shared>,
    cursor: Cursor,
    /// For the next batch.
    room: Room,
    alerts: Arc<Ear>,
    events: Option<Arc<Ear>>,
    /// Why the last batch was not closed, so that it is told once.
    problem: Option<String>,
}

impl Archive<'_> {
    /// Makes and closes a batch. A failure is told; what was not written is asked for again.
    async fn batch(&mut self) -> Made {
        match self.try_batch().await {
            Ok(more) => {
                if self.problem.take().is_some() {
                    tracing::info!("batches are closed again");
                }
                if more { Made::More } else { Made::All }
            }
            Err(error) => {
                let text = format!("{error:#}");
                if self.problem.as_ref() != Some(&text) {
                    let error: &(dyn Error + 'static) = error.as_ref();
                    tracing::warn!(error, "no batch is closed; it is tried again");
                }
                self.problem = Some(text);
                Made::Nothing
            }
        }
    }

    async fn try_batch(&mut self) -> Result<bool> {
        let ears = Ears {
            alerts: self.alerts.heard(),
            events: self.events.as_ref().map(|ear| ear.heard()),
        };
        let daemon = Daemon::connect(&self.options.socket).await?;
        let number = lock(&self.spool).next_batch();
        let origin = (&self.node, number, self.room);
        let mut batch = batch::make(&daemon, origin, &self.cursor, &ears).await?;
        if batch.rows.is_empty() && batch.cursor == self.cursor {
            self.room = self.room.after(&batch);
            self.written(&ears);
            return Ok(batch.more);
        }
        let rows = batch.rows.len();
        let cluster = self.options.cluster.clone();
        let (spool, node) = (Arc::clone(&self.spool), self.node.clone());
        // Compressing and flushing take their time, and events must be heard meanwhile.
        let closed = tokio::task::spawn_blocking(move || {
            let result = closing::close(&spool, &node, &cluster, &mut batch);
            (result, batch)
        });
        let (result, batch) = closed.await.context("closing a batch failed")?;
        // A batch that is in the spool counts, even if something of what comes after it failed.
        if lock(&self.spool).next_batch() > number {
            self.room = self.room.after(&batch);
            self.cursor = batch.cursor;
            self.written(&ears);
        }
        if let Err(error) = &result
            && error.is_larger_than_the_spool()
            && let Some(less) = self.room.less(rows)
        {
            tracing::info!(
                rows,
                "the spool does not take so many rows: they come in several batches"
            );
            self.room = less;
            return Ok(true);
        }
        let rows = result?;
        tracing::debug!(number, rows, "a batch is closed");
        Ok(batch.more)
    }

    fn written(&self, ears: &Ears) {
        self.alerts.written(&ears.alerts);
        if let (Some(ear), Some(heard)) = (&self.events, &ears.events) {
            ear.written(heard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[tokio::test]
    async fn an_ear_that_fills_begins_no_batch_where_none_can_be_closed() {
        let mut ticks = tokio::time::interval(Duration::from_secs(3600));
        ticks.tick().await;
        let filling = Notify::new();
        let mut polled = |made| {
            filling.notify_one();
            let due = pin!(is_due(&mut ticks, &filling, made));
            due.poll(&mut Context::from_waker(Waker::noop()))
        };
        assert_eq!(polled(Made::All), Poll::Ready(()));
        assert_eq!(polled(Made::Nothing), Poll::Pending);
        assert_eq!(polled(Made::Nothing), Poll::Pending);
        // After the next one that is closed it counts again.
        assert_eq!(polled(Made::All), Poll::Ready(()));
    }
}
