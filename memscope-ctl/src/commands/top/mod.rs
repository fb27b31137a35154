//! `top` on a terminal: a view that stays open.
//!
//! [`model`] is the state, to which keys and answers come; [`view`] draws it; both are pure. [`feed`] asks the daemon beside them, and
//! [`terminal`] owns the terminal. Here they are put together.

mod ask;
mod feed;
mod history;
mod model;
mod page;
mod pages;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use super::run::Run;
use super::stacks::command::Stacks;
use crate::failure::{Exit, Failure};
use crate::fleet::Fleet;
use crate::output;
use crate::session::Session;
use crate::signals::interrupted;
use crate::units::parse_timeout;
use ask::{Ask, Heard};
use feed::{Asking, unix_ns};
use model::{Effect, Model, Now, Options};
use std::time::{Duration, Instant};
use terminal::{Input, Screen, cannot, listen};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use view::Palette;

/// Walk through all of this by keys, in a view that stays open: processes, devices, owners, stacks, leaks, steps.
///
/// Enter goes further in: from a process to what grows in it, and from the line to its whole stack and what holds its blocks. The key ?
/// shows all keys. Space pauses, and the left arrow then looks back: owners and stacks ask the daemon about that moment, the other views
/// show what they have seen.
///
/// Where standard output is no terminal, with --json, or with any of the options of `stacks`, it prints the table of `stacks`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl top
  memscope-ctl top --pid 4242,4243 --interval 5s
  memscope-ctl --recording run.mscope top")]
pub(crate) struct Top {
    #[command(flatten)]
    stacks: Stacks,
    /// Time between two looks of the view.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_timeout)]
    interval: Duration,
}

impl Top {
    /// Whether the table of `stacks` is meant.
    fn is_table(&self, session: &Session) -> bool {
        session.global.json || self.stacks.has_options() || !output::is_terminal()
    }
}

impl Run for Top {
    const FLEET: bool = true;

    fn check(&self, session: &Session) -> Result<(), Failure> {
        self.stacks.check(session)
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        match self.is_table(session) {
            true => self.stacks.run(session).await,
            false => self.view(session).await,
        }
    }

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        if self.is_table(session) {
            return self.stacks.fleet(session, fleet).await;
        }
        Err(Failure::Usage {
            what: "the view is of one node".into(),
            hint: "memscope-ctl --connect ADDRESS top shows one; with --fleet, ps, leaks, devices and stacks show all".into(),
        })
    }
}

/// Keys that may wait to be looked at, and questions and answers likewise.
const WAITING: usize = 64;
/// Time between two drawings while nothing happens: what is said about seconds changes with them.
const TICK: Duration = Duration::from_secs(1);
/// Time in which the program is stopped and goes on, if anything stops it.
const STOPPED: Duration = Duration::from_millis(200);

impl Top {
    async fn view(&self, session: &Session) -> Result<Exit, Failure> {
        // Whoever cannot be reached at all is told of as by every other command.
        let client = session.client().await?;
        client.list().await?;
        let interval_ms = u64::try_from(self.interval.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let recording = session.global.recording.as_ref();
        let asking = Asking {
            session,
            interval_ms,
            is_recording: recording.is_some(),
        };
        let options = Options {
            pids: self.stacks.processes.named(),
            interval_ms,
            recording: recording.map(|path| path.display().to_string()),
        };
        let (ask, questions) = mpsc::channel(WAITING);
        let (told, heard) = mpsc::channel(WAITING);
        let feed = asking.run(client, questions, told);
        tokio::select! {
            ended = self.show(options, ask, heard) => ended,
            // It ends only when the other one does.
            () = feed => Ok(Exit::Done),
        }
    }

    /// Shows the view until somebody quits, or a signal ends it.
    async fn show(
        &self,
        options: Options,
        ask: mpsc::Sender<Ask>,
        mut heard: mpsc::Receiver<Heard>,
    ) -> Result<Exit, Failure> {
        let begun = Instant::now();
        let now = || Now {
            ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            unix_ns: unix_ns(),
        };
        let interval = Duration::from_millis(options.interval_ms).min(TICK);
        let mut model = Model::new(options, now());
        let mut hung_up = signal(SignalKind::hangup()).map_err(cannot)?;
        let mut continued = signal(SignalKind::from_raw(CONTINUED)).map_err(cannot)?;
        let mut ended = std::pin::pin!(interrupted());
        tokio::select! {
            biased;
            // The signals are listened to from here on, before the terminal is taken.
            () = &mut ended => return Ok(Exit::Failed),
            () = std::future::ready(()) => {}
        }
        let palette = Palette::of_environment();
        let mut screen = Screen::take()?;
        let (press, mut keys) = mpsc::channel(WAITING);
        listen(press);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            for question in model.due(now()) {
                // There is no room while the one that asks looks for a daemon that has gone.
                if let Err(error) = ask.try_send(question) {
                    model.not_asked(&error.into_inner());
                }
            }
            let size = screen.terminal.size().map_err(cannot)?;
            model.resize(size.width, size.height);
            let drawn = screen
                .terminal
                .draw(|frame| view::draw(&model, now(), palette, frame.buffer_mut()));
            drawn.map_err(cannot)?;
            tokio::select! {
                _ = ticks.tick() => {}
                Some(heard_now) = heard.recv() => {
                    model.heard(heard_now, now());
                    // Answers that have come at the same time are drawn once.
                    while let Ok(more) = heard.try_recv() {
                        model.heard(more, now());
                    }
                }
                input = keys.recv() => match input {
                    Some(Input::Key(key)) => match model.key(key, now()) {
                        None => {}
                        Some(Effect::Quit) => return Ok(Exit::Done),
                        Some(Effect::Redraw) => screen.again()?,
                        Some(Effect::Copy(text)) => screen.copy(&text)?,
                        Some(Effect::Suspend) => {
                            screen.leave();
                            suspend();
                            // Where nothing has stopped the program (a group without a shell), it goes on at once.
                            let _ = tokio::time::timeout(STOPPED, continued.recv()).await;
                            screen.again()?;
                        }
                    },
                    Some(Input::Resized) => {}
                    // The terminal is gone.
                    Some(Input::Closed) | None => return Ok(Exit::Failed),
                },
                // Somebody has stopped the program and lets it go on: the terminal may have been another's meanwhile.
                _ = continued.recv() => screen.again()?,
                _ = hung_up.recv() => return Ok(Exit::Failed),
                () = &mut ended => return Ok(Exit::Failed),
            }
        }
    }
}

/// The number of SIGCONT.
const CONTINUED: i32 = 18;

/// Stops all programs of this job, as the terminal does when Ctrl-Z is pressed.
fn suspend() {
    let group = rustix::process::getpgrp();
    // An error means that there is no such group any more, and nothing to be stopped.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::TSTP);
}
