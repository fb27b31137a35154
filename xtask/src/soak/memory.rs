//! The daemon's memory over time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Growth in KiB between the middle and the end that counts as none: what the process holds may grow a little, too.
const FLAT_KIB: u64 = 16 << 10;
/// Growth of the anonymous memory in per cent that counts as none while processes come and go.
const LEVEL_PERCENT: u64 = 2;

/// Measurements of the memory of one daemon.
pub struct Memory {
    pid: u32,
    /// Measurements: seconds since the start, resident KiB, and how many of these are anonymous.
    looks: Vec<(u64, u64, u64)>,
}

impl Memory {
    /// No measurements yet, of the daemon with this process id.
    pub fn of(pid: u32) -> Memory {
        Memory {
            pid,
            looks: Vec::new(),
        }
    }

    /// Measures every `every` until the time `until` after the start.
    pub fn watch_until(
        &mut self,
        started: Instant,
        until: Duration,
        every: Duration,
    ) -> Result<()> {
        self.watch_while(started, until, every, || true)
    }

    /// The same, as long as it is wanted.
    pub fn watch_while(
        &mut self,
        started: Instant,
        until: Duration,
        every: Duration,
        wanted: impl Fn() -> bool,
    ) -> Result<()> {
        loop {
            self.look(started)?;
            let left = until.saturating_sub(started.elapsed());
            if left.is_zero() || !wanted() {
                return Ok(());
            }
            std::thread::sleep(left.min(every));
        }
    }

    fn look(&mut self, started: Instant) -> Result<()> {
        let path = format!("/proc/{}/status", self.pid);
        let status =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            number.with_context(|| format!("{path} has no {name}"))
        };
        let look = (
            started.elapsed().as_secs(),
            field("VmRSS:")?,
            field("RssAnon:")?,
        );
        self.looks.push(look);
        Ok(())
    }

    /// The last measurement in words.
    pub fn last(&self) -> String {
        let (_, resident, anonymous) = self.looks.last().copied().unwrap_or_default();
        format!(
            "resident {} MiB, anonymous {} MiB",
            resident >> 10,
            anonymous >> 10
        )
    }

    /// The measurements of a part of the time, `from` and `to` in tenths of it. A measurement waits while questions are
    /// answered, so the parts do not all have the same number of them.
    fn part(&self, from: u64, to: u64) -> Vec<&(u64, u64, u64)> {
        let end = self.looks.last().map_or(0, |look| look.0) + 1;
        let within = |look: &&(u64, u64, u64)| (end * from..end * to).contains(&(look.0 * 10));
        self.looks.iter().filter(within).collect()
    }

    /// The median of a number in a part of the time, in KiB.
    fn middle_of(&self, from: u64, to: u64, of: fn(&(u64, u64, u64)) -> u64) -> u64 {
        let mut part: Vec<u64> = self.part(from, to).into_iter().map(of).collect();
        part.sort_unstable();
        part.get(part.len() / 2).copied().unwrap_or(0)
    }

    /// Whether the median of the last fifth of the time is no higher than that of the middle fifth, but for
    /// [`FLAT_KIB`].
    pub fn is_flat(&self) -> bool {
        let [middle, last] =
            [(4, 6), (8, 10)].map(|(from, to)| self.middle_of(from, to, |look| look.1));
        last <= middle + FLAT_KIB
    }

    /// The median of the anonymous memory in the middle fifth of the time and in the last one, in KiB, and whether the
    /// last one is no more than [`LEVEL_PERCENT`] higher.
    pub fn level(&self) -> (u64, u64, bool) {
        let [middle, last] =
            [(4, 6), (8, 10)].map(|(from, to)| self.middle_of(from, to, |look| look.2));
        (middle, last, last * 100 <= middle * (100 + LEVEL_PERCENT))
    }

    /// The most anonymous memory at a time, in bytes.
    pub fn most_bytes(&self) -> u64 {
        let kib = self.looks.iter().map(|look| look.2).max();
        kib.unwrap_or(0) << 10
    }

    /// Ten parts of the time, as a table in Markdown.
    pub fn table(&self) -> String {
        let mut text = "| until, s | resident, middle, MiB | resident, most, MiB | anonymous, most, MiB |\n|---|---|---|---|\n".to_owned();
        for tenth in 0..10 {
            let part = self.part(tenth, tenth + 1);
            let most = |of: fn(&(u64, u64, u64)) -> u64| {
                part.iter().map(|look| of(look)).max().unwrap_or(0) >> 10
            };
            text.push_str(&format!(
                "| {} | {} | {} | {} |\n",
                part.last().map_or(0, |look| look.0),
                self.middle_of(tenth, tenth + 1, |look| look.1) >> 10,
                most(|look| look.1),
                most(|look| look.2),
            ));
        }
        text
    }
}
