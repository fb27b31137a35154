//! Progress of a file that is being received, or of nodes that are asked, on standard error, for a person who watches.
//!
//! Owns: a bar that appears while that takes its time, and is removed at the end. Refuses: writing a byte where standard
//! error is no terminal.

use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Time between two steps of the spinner.
const STEP: Duration = Duration::from_millis(100);
/// Template of the line while the amount of work is not known.
const WHEEL: &str = "{spinner} {msg} ({elapsed})";
const BAR: &str = "{bar:40} {percent:>3} %  {msg}, {eta} left";

/// The bar or spinner. It is removed from the terminal when this is dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Whether the daemon has said how much work there is.
    known: bool,
}

impl Progress {
    /// Shows a spinner that waits for the first bytes.
    pub(crate) fn start() -> Progress {
        Progress::of("waiting for the snapshot")
    }

    /// Says what is being done now.
    pub(crate) fn now(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Shows a spinner, and what is being done.
    pub(crate) fn of(what: &'static str) -> Progress {
        // The bar is hidden where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if !bar.is_hidden() {
            bar.set_style(style(WHEEL));
            bar.set_message(what);
            bar.enable_steady_tick(STEP);
        }
        Progress { bar, known: false }
    }

    /// Shows that `done` of `of` units of work are done (`of` 0: not known), and that `bytes` bytes are written.
    pub(crate) fn reached(&mut self, done: u64, of: u64, bytes: u64) {
        if self.bar.is_hidden() {
            return;
        }
        if of > 0 && !self.known {
            self.known = true;
            self.bar.set_style(style(BAR));
        }
        if self.known {
            self.bar.set_length(of);
            self.bar.set_position(done);
        }
        self.bar
            .set_message(format!("{} written", units::bytes(bytes)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Template of the line that counts nodes.
const NODES: &str = "{spinner} {pos} of {len} nodes have answered{msg} ({elapsed})";

/// How many nodes have answered so far. It is removed from the terminal when this is dropped.
pub(crate) struct Count {
    bar: ProgressBar,
    failed: std::cell::Cell<u64>,
}

impl Count {
    /// Shows that none of `nodes` nodes has answered yet, if anybody is to be shown.
    pub(crate) fn start(nodes: usize, is_shown: bool) -> Count {
        // The bar is hidden where standard error is no terminal.
        let target = match is_shown {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(nodes as u64), target);
        if !bar.is_hidden() {
            bar.set_style(style(NODES));
            bar.enable_steady_tick(STEP);
        }
        Count {
            bar,
            failed: std::cell::Cell::new(0),
        }
    }

    /// One more node has answered, or has failed to.
    pub(crate) fn one_more(&self, failed: bool) {
        if failed {
            self.failed.set(self.failed.get() + 1);
            self.bar
                .set_message(format!(", {} have failed", self.failed.get()));
        } else {
            self.bar.inc(1);
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_styles_are_understood() {
        for template in [WHEEL, BAR, NODES] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
