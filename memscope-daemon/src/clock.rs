//! Readings of the system's clocks.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    (t.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(t.tv_nsec as u64)
}

/// The present time of `CLOCK_BOOTTIME`, in nanoseconds.
pub fn boot_ns() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// Processor time that this thread has had so far.
pub fn of_this_thread() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ThreadCPUTime))
}

/// Processor time that all threads of a process have had so far, to the nanosecond; `None` if there is no such process.
pub fn processor_time_of(pid: u32) -> Option<Duration> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let mut clock = 0;
    // SAFETY: it writes the number of a clock.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes a time.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
}

/// A reading of one clock, then a reading of another clock, then a second reading of the first clock.
type Sample = (u64, u64, u64);

/// Number of samples from which a pair is chosen.
const TRIES: usize = 8;

/// The times of `CLOCK_BOOTTIME` and `CLOCK_REALTIME` at one moment, in nanoseconds. The thread may be interrupted
/// for a long time between two readings, so of several samples the one that took the shortest time is used.
pub fn pair() -> (u64, u64) {
    let sample = || (boot_ns(), nanoseconds(ClockId::Realtime), boot_ns());
    closest((0..TRIES).map(|_| sample()))
}

fn closest(samples: impl Iterator<Item = Sample>) -> (u64, u64) {
    let closest = samples.min_by_key(|(before, _, after)| after.saturating_sub(*before));
    closest.map_or((0, 0), |(before, other, after)| {
        (before + after.saturating_sub(before) / 2, other)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    /// A process that runs only while it answers.
    pub(crate) struct Answers {
        child: Child,
        input: ChildStdin,
        output: BufReader<ChildStdout>,
    }

    impl Answers {
        pub(crate) fn start() -> Answers {
            let mut child = Command::new("cat")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            Answers {
                input: child.stdin.take().unwrap(),
                output: BufReader::new(child.stdout.take().unwrap()),
                child,
            }
        }

        pub(crate) fn pid(&self) -> u32 {
            self.child.id()
        }

        /// Has it answer, waits until it sleeps again, and returns its processor time.
        pub(crate) fn ask(&mut self) -> Duration {
            self.input.write_all(b"a\n").unwrap();
            self.output.read_line(&mut String::new()).unwrap();
            let pid = self.pid();
            let mut before = processor_time_of(pid).unwrap();
            loop {
                std::thread::yield_now();
                let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
                let now = processor_time_of(pid).unwrap();
                if now == before && status.contains(") S ") {
                    return now;
                }
                before = now;
            }
        }

        pub(crate) fn end(mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    #[test]
    fn processor_time_stands_still_exactly_while_a_process_does() {
        let mut answers = Answers::start();
        let pid = answers.pid();
        let first = answers.ask();
        assert_eq!(processor_time_of(pid), Some(first));
        assert!(answers.ask() > first);
        answers.end();
        assert_eq!(processor_time_of(pid), None);
        assert_eq!(processor_time_of(0), None);
    }

    #[test]
    fn an_interrupted_reading_is_not_taken() {
        let samples = [
            (1_000, 500_100, 41_000_000),
            (41_000_100, 541_000_150, 41_000_200),
            (41_000_300, 541_090_000, 41_100_000),
        ];
        assert_eq!(closest(samples.into_iter()), (41_000_150, 541_000_150));
        assert_eq!(closest(std::iter::empty()), (0, 0));
    }
}
