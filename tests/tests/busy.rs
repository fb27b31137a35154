//! Processes whose threads allocate without a pause, attached at random moments: the state is PyTorch's
//! own or is said not to be known, and never wrong.
//!
//! `MEMSCOPE_ROUNDS=50 cargo test -p memscope-tests --test busy -- --nocapture` prints the rows of
//! docs/evidence/late-attach.md.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use memscope_tests::{
    Daemon, LONG, Torch, Value, assert_totals, claims_to_know, compared, coverage, number, until,
};

/// Threads of the process.
const THREADS: u32 = 8;
/// Attaches of each kind.
const ROUNDS: u32 = 5;

/// What became of the attaches of one kind.
#[derive(Debug, Default)]
struct Outcomes {
    at_once: u32,
    retried: u32,
    fell_back: u32,
    lost_records: u32,
    wrong: u32,
    /// Attempts that were made again, of those accepted.
    again: Vec<u64>,
    /// From the question to the answer of the attach.
    answered: Vec<Duration>,
}

/// Median and maximum.
fn middle<T: Ord + Copy + Default>(values: &[T]) -> (T, T) {
    let mut sorted = values.to_vec();
    sorted.sort();
    (
        sorted.get(sorted.len() / 2).copied().unwrap_or_default(),
        sorted.last().copied().unwrap_or_default(),
    )
}

impl Outcomes {
    fn row(&self, kind: &str, torch: &str) -> String {
        let (again, most) = middle(&self.again);
        let (answered, longest) = middle(&self.answered);
        format!(
            "| {torch} | {kind} | {} | {} | {} | {again} / {most} | {} | {:.2} / {:.2} | {} | {} |",
            self.at_once + self.retried + self.fell_back,
            self.at_once,
            self.retried,
            self.fell_back,
            answered.as_secs_f64(),
            longest.as_secs_f64(),
            self.lost_records,
            self.wrong,
        )
    }
}

/// A random moment: after a random number of allocations.
fn wait_for_a_random_moment(torch: &mut Torch, seed: &mut u64) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    let due = torch.operations() + 1 + *seed % 20_000;
    until(LONG, "the threads allocate", || {
        (torch.operations() >= due).then_some(())
    });
}

/// Two such processes at once would leave no moment to either.
static ALONE: Mutex<()> = Mutex::new(());

fn attached_while_busy(kind: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = std::env::var("MEMSCOPE_ROUNDS").ok();
    let rounds = asked.as_ref().map_or(ROUNDS, |text| text.parse().unwrap());
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    torch.hammer(kind, THREADS);
    let pid = torch.pid();
    let mut seed = 88172645463325252;
    let mut outcomes = Outcomes::default();
    for round in 0..rounds {
        torch.ask("go");
        wait_for_a_random_moment(&mut torch, &mut seed);
        let began = Instant::now();
        let attached = daemon.attach(pid, "trace");
        outcomes.answered.push(began.elapsed());
        let stats = until(LONG, "the reading ended", || {
            let stats = daemon.stats(pid);
            let failed = coverage(&stats).contains(&"baseline_not_read");
            (failed || stats["reading"].is_object()).then_some(stats)
        });
        let told = torch.ask("hold");
        if coverage(&stats).contains(&"baseline_not_read") {
            outcomes.fell_back += 1;
        } else {
            let devices = stats["devices"].as_array().unwrap();
            let refused: u64 = devices.iter().map(|d| number(&d["readings_refused"])).sum();
            let cost = match &attached["baseline"]["cost"] {
                Value::Null => &stats["reading"],
                cost => cost,
            };
            let again = number(&cost["raced"]) + refused;
            outcomes.at_once += u32::from(again == 0);
            outcomes.retried += u32::from(again > 0);
            outcomes.again.push(again);
        }
        // What is not known is read again, and now nothing hinders that.
        let stats = until(LONG, "every block is known", || {
            let stats = daemon.stats(pid);
            claims_to_know(&stats).then_some(stats)
        });
        outcomes.lost_records += u32::from(number(&stats["lost_records"]) > 0);
        assert_totals(&stats, &told);
        let told = compared(&daemon, &mut torch);
        if told["exported"] != told["own"] {
            outcomes.wrong += 1;
            eprintln!("round {round}: {told}\n{stats:#}");
        }
        daemon.detach(pid);
    }
    if asked.is_some() {
        println!("{}", outcomes.row(kind, &torch.version));
    }
    assert_eq!(outcomes.wrong, 0, "{outcomes:?}");
    // Whether any moment could be found depends on the machine, where no lock holds the threads back.
    if kind == "python" {
        assert!(outcomes.at_once + outcomes.retried > 0, "{outcomes:?}");
    }
    torch.finish();
}

#[test]
fn by_python_threads() {
    attached_while_busy("python");
}

#[test]
fn by_threads_without_pythons_lock() {
    attached_while_busy("native");
}
