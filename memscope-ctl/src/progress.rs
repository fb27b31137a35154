//! How far a file is, on standard error, for a person who watches.
//!
//! Owns: a bar that comes when a file takes its time and goes with it. Refuses: to write a byte where
//! standard error is no terminal.

use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Between two steps of the wheel that turns while nothing can be said.
const STEP: Duration = Duration::from_millis(100);
/// While nobody has said how much there is.
const WHEEL: &str = "{spinner} {msg} ({elapsed})";
const BAR: &str = "{bar:40} {percent:>3} %  {msg}, {eta} left";

/// Removes itself when it is dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Whether it is known how much there is.
    known: bool,
}

impl Progress {
    /// Begins with a wait for the first bytes.
    pub(crate) fn start() -> Progress {
        // Hidden, where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if !bar.is_hidden() {
            bar.set_style(style(WHEEL));
            bar.set_message("waiting for the snapshot");
            bar.enable_steady_tick(STEP);
        }
        Progress { bar, known: false }
    }

    /// So much is done `of` so much (0: not known), and so many bytes are written.
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

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_styles_are_understood() {
        for template in [WHEEL, BAR] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
