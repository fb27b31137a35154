//! The daemon's memory over time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Growth in KiB between the middle and the end that counts as none: what the process holds may grow a little, too.
const FLAT_KIB: u64 = 16 << 10;
/// Growth of the anonymous memory's floor in per cent that counts as none while processes come and go.
const LEVEL_PERCENT: f64 = 2.0;
/// Of the 45 pairs of ten floors, so many more that rise than fall come by chance once in 28 runs (Kendall's test).
const RISES: i64 = 21;

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

    /// What the anonymous memory does not fall below in each tenth of the time, but for a twentieth of it, in KiB. Copies
    /// for checkpoints and answers come and go; what is lost for good stays beneath them.
    fn floors(&self) -> Vec<u64> {
        let floor = |tenth| {
            let part = self.part(tenth, tenth + 1).into_iter();
            let mut part: Vec<u64> = part.map(|look| look.2).collect();
            part.sort_unstable();
            part.get(part.len() / 20).copied().unwrap_or(0)
        };
        (0..10).map(floor).collect()
    }

    /// Whether the anonymous memory stays level while processes come and go, and how that is seen. It does not where its
    /// floors rise more often than chance lets them ([`RISES`]), and by more than [`LEVEL_PERCENT`].
    pub fn level(&self) -> (String, bool) {
        let floors = self.floors();
        let trend = Trend::of(&floors);
        let said = format!(
            "The anonymous memory's floor was {} MiB in the median tenth of the time, and its trend {:+.1} % over the whole time; of the 45 \
             pairs of tenths, those in which it rose less those in which it fell are {}",
            trend.middle >> 10,
            trend.percent,
            trend.rises
        );
        let grows = trend.rises >= RISES && trend.percent > LEVEL_PERCENT;
        (said, !grows)
    }

    /// The most anonymous memory at a time, in bytes.
    pub fn most_bytes(&self) -> u64 {
        let kib = self.looks.iter().map(|look| look.2).max();
        kib.unwrap_or(0) << 10
    }

    /// Ten parts of the time, as a table in Markdown.
    pub fn table(&self) -> String {
        let mut text = "| until, s | resident, middle, MiB | resident, most, MiB | anonymous, most, MiB | anonymous, floor, MiB |\n|---|---|---|---|---|\n".to_owned();
        for (tenth, floor) in (0..10).zip(self.floors()) {
            let part = self.part(tenth, tenth + 1);
            let most = |of: fn(&(u64, u64, u64)) -> u64| {
                part.iter().map(|look| of(look)).max().unwrap_or(0) >> 10
            };
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} |\n",
                part.last().map_or(0, |look| look.0),
                self.middle_of(tenth, tenth + 1, |look| look.1) >> 10,
                most(|look| look.1),
                most(|look| look.2),
                floor >> 10,
            ));
        }
        text
    }
}

/// Whether numbers rise with time.
struct Trend {
    middle: u64,
    /// Pairs of which the later one is higher, less those of which it is lower.
    rises: i64,
    /// The median slope (Theil–Sen) times the whole time, by the median.
    percent: f64,
}

impl Trend {
    fn of(numbers: &[u64]) -> Trend {
        let pairs = || {
            let indexed = numbers.iter().enumerate();
            indexed.flat_map(|(at, early)| {
                let later = numbers.iter().enumerate().skip(at + 1);
                later.map(move |(to, late)| (to - at, *late as f64 - *early as f64))
            })
        };
        let rises = pairs().map(|(_, rise)| match rise {
            rise if rise > 0.0 => 1,
            rise if rise < 0.0 => -1,
            _ => 0,
        });
        let mut slopes: Vec<f64> = pairs().map(|(apart, rise)| rise / apart as f64).collect();
        slopes.sort_by(f64::total_cmp);
        let slope = slopes.get(slopes.len() / 2).copied().unwrap_or(0.0);
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
        let whole = slope * numbers.len().saturating_sub(1) as f64;
        Trend {
            middle,
            rises: rises.sum(),
            percent: whole * 100.0 / middle.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of an hour, looked at every two seconds, whose memory is what this gives for each second.
    fn run(kib: impl Fn(u64) -> u64) -> Memory {
        let looks = (0..3600).step_by(2);
        Memory {
            pid: 0,
            looks: looks.map(|at| (at, kib(at) + 50_000, kib(at))).collect(),
        }
    }

    /// A number below 100,000 that looks like chance.
    fn chance(at: u64) -> u64 {
        at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33 & 0xffff
    }

    #[test]
    fn what_comes_and_goes_is_no_growth() {
        assert!(run(|_| 100_000).level().1);
        assert!(run(|at| 100_000 + chance(at)).level().1);
        // High for some minutes here and there, as while the machine is busy otherwise; the last of them near the end.
        assert!(
            run(|at| 100_000 + chance(at) + if at / 300 % 3 == 2 { 60_000 } else { 0 })
                .level()
                .1
        );
        assert!(run(|at| 100_000 - at * 10).level().1);
    }

    #[test]
    fn what_stays_is_found_beneath_what_comes_and_goes() {
        assert!(!run(|at| 100_000 + at).level().1);
        assert!(!run(|at| 100_000 + chance(at) + at * 2).level().1);
        assert!(!run(|at| 100_000 + chance(at) + at / 600 * 2_000).level().1);
        // One per cent in an hour is below what is judged.
        assert!(run(|at| 100_000 + at / 4).level().1);
    }
}
