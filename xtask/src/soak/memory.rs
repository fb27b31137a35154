//! The daemon's memory over time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Growth in KiB between the middle and the end that counts as none: what the process holds may grow a little, too.
const FLAT_KIB: u64 = 16 << 10;
/// Growth of the anonymous memory at rest in per cent that counts as none while processes come and go.
const LEVEL_PERCENT: f64 = 2.0;
/// Of the 45 pairs of ten measurements at rest, so many more that rise than fall come by chance once in 28 runs (Kendall's test).
const RISES: i64 = 21;

/// Measurements of the memory of one daemon.
pub struct Memory {
    pid: u32,
    /// Measurements: seconds since the start, resident KiB, and how many of these are anonymous.
    looks: Vec<(u64, u64, u64)>,
    /// Moments in which the daemon had nothing to do.
    rests: Vec<Rest>,
}

/// A moment in which the daemon had nothing to do.
#[derive(Clone, Copy, Default)]
struct Rest {
    /// Seconds since the run began.
    seconds: u64,
    /// All anonymous memory of the daemon, in KiB.
    kib: u64,
    /// The part of it that is kept of processes, as the daemon says: this may grow up to its limit.
    kept_kib: u64,
}

impl Rest {
    /// What it takes beside what is kept of processes, which is an estimate and may be more than all.
    const fn own_kib(&self) -> i64 {
        self.kib.cast_signed() - self.kept_kib.cast_signed()
    }
}

/// The daemon is at rest once it has used no more than so many ticks of processor time in [`IDLE`]: what it does by the clock takes 1 to 3 % of a
/// processor while it has much; to drain the ring or to write a checkpoint takes nearly all of one.
const IDLE_TICKS: u64 = 20;
const IDLE: Duration = Duration::from_secs(2);
/// How long it may take until it is at rest: what it has of the ring, and a checkpoint.
const REST: Duration = Duration::from_secs(120);

impl Memory {
    /// No measurements yet, of the daemon with this process id.
    pub fn of(pid: u32) -> Memory {
        Memory {
            pid,
            looks: Vec::new(),
            rests: Vec::new(),
        }
    }

    /// Waits until the daemon has nothing to do any more, and measures. Nobody may ask it anything meanwhile.
    pub fn rest(&mut self, started: Instant) -> Result<()> {
        let end = Instant::now() + REST;
        let mut before = self.ticks()?;
        loop {
            std::thread::sleep(IDLE);
            let now = self.ticks()?;
            if now - before <= IDLE_TICKS {
                let (seconds, _, kib) = self.measure(started)?;
                let kept_kib = 0;
                self.rests.push(Rest {
                    seconds,
                    kib,
                    kept_kib,
                });
                return Ok(());
            }
            if Instant::now() > end {
                bail!(
                    "the daemon still works {REST:?} after all else has stopped: {} ticks of processor time in the last {IDLE:?}. {}",
                    now - before,
                    self.level().0
                );
            }
            before = now;
        }
    }

    /// Notes what the daemon says that it keeps of processes, in bytes, at the last moment of rest.
    pub fn keeps(&mut self, bytes: u64) {
        if let Some(rest) = self.rests.last_mut() {
            rest.kept_kib = bytes >> 10;
        }
    }

    /// The processor time that the daemon has used, in ticks.
    fn ticks(&self) -> Result<u64> {
        let path = format!("/proc/{}/stat", self.pid);
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after_name.split_whitespace().skip(11).take(2);
        let ticks: Option<u64> = ticks.map(|word| word.parse::<u64>().ok()).sum();
        ticks.with_context(|| format!("{path} has no processor time"))
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
        let look = self.measure(started)?;
        self.looks.push(look);
        Ok(())
    }

    fn measure(&self, started: Instant) -> Result<(u64, u64, u64)> {
        let path = format!("/proc/{}/status", self.pid);
        let status =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            number.with_context(|| format!("{path} has no {name}"))
        };
        Ok((
            started.elapsed().as_secs(),
            field("VmRSS:")?,
            field("RssAnon:")?,
        ))
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

    /// Whether the anonymous memory at rest, without what is kept of processes, stays level while processes come and go, and how that is
    /// seen. It does not where it rises more often than chance lets it ([`RISES`]), and by more than [`LEVEL_PERCENT`] of all.
    pub fn level(&self) -> (String, bool) {
        let rests: Vec<i64> = self.rests.iter().map(Rest::own_kib).collect();
        let all: Vec<u64> = self.rests.iter().map(|rest| rest.kib).collect();
        let trend = Trend::of(&rests, middle(all));
        let mib = |kib: u64| kib as f64 / 1024.0;
        let said: Vec<String> = self
            .rests
            .iter()
            .map(|rest| {
                let (all, kept) = (mib(rest.kib), mib(rest.kept_kib));
                format!("{all:.1} ({kept:.1}) after {} s", rest.seconds)
            })
            .collect();
        let said = format!(
            "With all else stopped, the daemon's anonymous memory was, in MiB (of it kept of processes): {}. The trend of the difference is {:+.1} % \
             of all over the whole time; of the {} pairs, those in which it rose less those in which it fell are {}",
            said.join(", "),
            trend.percent,
            rests.len() * rests.len().saturating_sub(1) / 2,
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

/// Whether numbers rise with time.
struct Trend {
    /// Pairs of which the later one is higher, less those of which it is lower.
    rises: i64,
    /// The median slope (Theil–Sen) times the whole time, in per cent of something.
    percent: f64,
}

/// The median of some numbers; 0 if there are none.
fn middle(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}

impl Trend {
    fn of(numbers: &[i64], whole: u64) -> Trend {
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
        let rise = slope * numbers.len().saturating_sub(1) as f64;
        Trend {
            rises: rises.sum(),
            percent: rise * 100.0 / whole.max(1) as f64,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A run with ten moments at rest, whose memory is what this gives for the number of each.
    fn is_level(kib: impl Fn(u64) -> u64) -> bool {
        // What is kept of processes may grow, and is an estimate: it may be more than all there is.
        let level = |more: u64| {
            let rests = (0..10).map(|at| Rest {
                seconds: at * 360,
                kib: kib(at) + at * 1_000,
                kept_kib: at * 1_000 + more,
            });
            let memory = Memory {
                rests: rests.collect(),
                ..Memory::of(0)
            };
            memory.level().1
        };
        let is_level = level(0);
        assert_eq!(level(200_000), is_level);
        is_level
    }

    /// A number below 65,536 that looks like chance.
    fn chance(at: u64) -> u64 {
        (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33 & 0xffff
    }

    #[test]
    fn what_comes_and_goes_is_no_growth() {
        assert!(is_level(|_| 100_000));
        assert!(is_level(|at| 100_000 + chance(at)));
        assert!(is_level(|at| 100_000 - at * 1000));
        // One per cent in an hour is below what is judged.
        assert!(is_level(|at| 100_000 + at * 100));
    }

    #[test]
    fn what_stays_is_growth() {
        assert!(!is_level(|at| 100_000 + at * 300));
        assert!(!is_level(|at| 100_000 + chance(at) / 8 + at * 3_000));
    }

    #[test]
    fn a_process_that_waits_is_at_rest() {
        let mut waits = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut memory = Memory::of(waits.id());
        memory.rest(Instant::now()).unwrap();
        assert!(memory.rests[0].kib > 0);
        drop(waits.stdin.take());
        waits.wait().unwrap();
    }
}
