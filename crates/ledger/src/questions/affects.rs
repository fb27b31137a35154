//! What each coverage note makes inexact, and what each answer depends on.
//!
//! Owns: the one table of codes, and the one table of answers. Refuses: the sentences, which those who say a note
//! make. A code that is not in the table makes everything inexact: whoever adds a note has to say here what it
//! leaves exact.

use memscope_proto::v1;

/// A kind of number that a coverage note may make inexact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Affects {
    /// Bytes handed out and reserved at the moment of the answer.
    Totals,
    /// Which blocks live, how many, and how large they are.
    Blocks,
    /// How segments are divided, and streams, where an earlier moment is asked for. Of now, it is read.
    Layout,
    /// How segments are divided now: their streams and private pools, and what was asked for.
    Segments,
    /// What happened over time: counts of allocations and frees, peaks, the trace, courses.
    History,
    /// Who allocated a block.
    Stacks,
    /// How many steps there were, and which.
    Steps,
    /// What is held from the runtime and the driver beside the framework's pool.
    Driver,
    /// Pools that tell of themselves through mstx.
    Regions,
    /// Which groups of blocks grow.
    Growth,
}

impl Affects {
    /// Every kind.
    pub const ALL: [Affects; 10] = [
        Affects::Totals,
        Affects::Blocks,
        Affects::Layout,
        Affects::Segments,
        Affects::History,
        Affects::Stacks,
        Affects::Steps,
        Affects::Driver,
        Affects::Regions,
        Affects::Growth,
    ];

    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Affects::Totals => "totals",
            Affects::Blocks => "blocks",
            Affects::Layout => "layout",
            Affects::Segments => "segments",
            Affects::History => "history",
            Affects::Stacks => "stacks",
            Affects::Steps => "steps",
            Affects::Driver => "driver",
            Affects::Regions => "regions",
            Affects::Growth => "growth",
        }
    }
}

/// What one note does to the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The kinds of numbers that are not exact because of it; none where it only explains.
    pub affects: &'static [Affects],
    /// They can only be too small: something is missing in them, nothing is too much.
    pub lower_bound: bool,
}

impl Effect {
    const NOTHING: Effect = Effect {
        affects: &[],
        lower_bound: false,
    };

    const fn at_least(affects: &'static [Affects]) -> Effect {
        Effect {
            affects,
            lower_bound: true,
        }
    }

    const fn either_way(affects: &'static [Affects]) -> Effect {
        Effect {
            affects,
            lower_bound: false,
        }
    }
}

/// Codes of coverage notes, and what each does to the numbers. docs/what-limits-numbers.md says the same to users, and a test compares
/// the two.
pub const EFFECTS: &[(&[&str], Effect)] = {
    use Affects::{
        Blocks, Driver, Growth, History, Layout, Regions, Segments, Stacks, Steps, Totals,
    };
    &[
        // These explain, and the numbers are what they are said to be.
        (
            &[
                "baseline_read",
                "both_ways",
                "forked",
                "import_microseconds",
                "import_shadow",
                "ipc_import",
                "level_reduced",
                "library_replaced",
            ],
            Effect::NOTHING,
        ),
        // What was there before is missing.
        (
            &["attached_late", "baseline_not_read"],
            Effect::at_least(&[Blocks, Growth]),
        ),
        (
            &["driver_baseline_unknown"],
            Effect::at_least(&[Totals, Blocks, Driver, Growth]),
        ),
        (
            &["totals_unknown"],
            Effect::at_least(&[Totals, Blocks, Growth]),
        ),
        (
            &["child_attached_late"],
            Effect::at_least(&[Blocks, History, Driver]),
        ),
        (
            &[
                "regions_baseline_unknown",
                "regions_domain_unknown",
                "regions_untold",
            ],
            Effect::at_least(&[Regions]),
        ),
        // Records are missing: counts and peaks lack them. Whether levels and blocks are right is said apart.
        (&["records_lost"], Effect::at_least(&[History])),
        (
            &["inexact_after_loss"],
            Effect::either_way(&[Blocks, Growth]),
        ),
        (
            &["totals_inexact_after_loss"],
            Effect::either_way(&[Totals, Blocks, Driver, History, Growth]),
        ),
        (
            &["driver_inexact_after_loss"],
            Effect::either_way(&[Driver]),
        ),
        // A table of the programs had no room: a call that was not seen may have allocated or freed.
        (
            &["inflight_table_full"],
            Effect::either_way(&[Totals, Blocks, History, Driver, Growth]),
        ),
        (
            &["device_table_full"],
            Effect::at_least(&[Totals, Blocks, Driver, Growth]),
        ),
        // Parts of a recording are missing.
        (&["recording_damaged"], Effect::either_way(&Affects::ALL)),
        (
            &["journal_begins_late"],
            Effect::at_least(&[Totals, Blocks, History, Driver, Regions, Growth, Steps]),
        ),
        // An older reading stands where a newer one was to be.
        (
            &[
                "reading_failed",
                "reading_too_old",
                "reading_contradicted",
                "reading_incomplete",
            ],
            Effect::either_way(&[Blocks, Growth]),
        ),
        (&["totals_old"], Effect::either_way(&[Totals])),
        (
            &["pool_not_readable"],
            Effect::at_least(&[Totals, Blocks, History, Growth]),
        ),
        // The level does not see it.
        (&["level_read"], Effect::at_least(&[History, Driver])),
        (
            &["level_segments"],
            Effect::at_least(&[Blocks, History, Growth]),
        ),
        (&["level_blocks"], Effect::either_way(&[Layout])),
        (&["not_probed"], Effect::at_least(&[Driver, History])),
        // Single numbers of the pool and of the driver.
        (&["rounded_size_unknown"], Effect::at_least(&[Blocks])),
        (&["sizes_untold"], Effect::at_least(&[History])),
        (
            &["layout_not_read", "pool_ids_unknown"],
            Effect::either_way(&[Layout, Segments]),
        ),
        (&["segments_unknown"], Effect::at_least(&[Layout, Segments])),
        (
            &["pool_device_unknown"],
            Effect::either_way(&[Totals, Blocks, History, Growth]),
        ),
        (&["snapshot_device_unknown"], Effect::at_least(&[History])),
        (&["leak_groups_full"], Effect::either_way(&[Growth])),
        (&["device_unknown"], Effect::at_least(&[Driver])),
        (&["array_alloc"], Effect::at_least(&[Driver])),
        (&["vmm_unknown"], Effect::either_way(&[Driver])),
        // A dump of another tool's has in it what that tool collected.
        (
            &["imported", "import_rows_left_out", "import_sizes_unknown"],
            Effect::at_least(&Affects::ALL),
        ),
        (&["import_totals_added_up"], Effect::at_least(&[Totals])),
        (&["import_times_moved"], Effect::either_way(&[History])),
        // Who allocated it.
        (
            &[
                "no_python_stacks",
                "no_native_stacks",
                "stacks_sampled",
                "stacks_reduced",
                "code_deaths_unseen",
                "code_table_full",
                "npu_task_queue",
                "import_c_stacks",
            ],
            Effect::either_way(&[Stacks]),
        ),
    ]
};

/// Whether somebody has judged what a code does to the numbers.
pub fn is_judged(code: &str) -> bool {
    EFFECTS.iter().any(|(codes, _)| codes.contains(&code))
}

/// What a coverage note does to the numbers, by its code. A code that nobody has judged makes everything inexact.
pub fn effect(code: &str) -> Effect {
    let found = EFFECTS.iter().find(|(codes, _)| codes.contains(&code));
    found.map_or(Effect::either_way(&Affects::ALL), |(_, effect)| *effect)
}

/// An answer that consists of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What a process holds.
    Stats,
    /// What grows.
    Leaks,
    /// How the pools breathed.
    Fluctuation,
    /// Steps and their levels.
    Steps,
    /// Segments and blocks of now.
    Picture,
    /// Segments and blocks of an earlier moment, or a comparison with one.
    EarlierPicture,
    /// Segments and blocks and their course over time.
    Course,
    /// What lives, by who allocated it.
    Stacks,
    /// What lived at the peak or came since the attach, by who allocated it.
    StacksOverTime,
}

impl Answer {
    /// The kinds of numbers that it consists of.
    pub fn depends_on(self) -> &'static [Affects] {
        use Affects::{
            Blocks, Driver, Growth, History, Layout, Regions, Segments, Stacks, Steps, Totals,
        };
        match self {
            Answer::Stats => &[Totals, Blocks, History, Driver, Regions],
            Answer::Leaks => &[Blocks, Growth, Stacks, Steps],
            Answer::Fluctuation => &[Totals, History],
            Answer::Steps => &[Totals, History, Steps],
            Answer::Picture => &[Totals, Blocks, Segments],
            Answer::EarlierPicture => &[Totals, Blocks, Layout],
            Answer::Course => &[Totals, Blocks, Layout, History],
            Answer::Stacks => &[Blocks, Stacks],
            Answer::StacksOverTime => &[Blocks, Stacks, History],
        }
    }
}

/// The notes because of which an answer is not exact; none where it is.
pub fn inexact(answer: Answer, notes: &[v1::CoverageNote]) -> Vec<&v1::CoverageNote> {
    let needed = answer.depends_on();
    let spoils = |note: &&v1::CoverageNote| {
        let affects = effect(&note.code).affects;
        affects.iter().any(|kind| needed.contains(kind))
    };
    notes.iter().filter(spoils).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(code: &str) -> v1::CoverageNote {
        v1::CoverageNote {
            code: code.to_owned(),
            text: "Said.".to_owned(),
            ..v1::CoverageNote::default()
        }
    }

    fn is_exact(answer: Answer, code: &str) -> bool {
        inexact(answer, &[note("forked"), note(code)]).is_empty()
    }

    #[test]
    fn what_only_explains_spoils_nothing() {
        for answer in [Answer::Stats, Answer::Leaks, Answer::Course, Answer::Stacks] {
            assert!(is_exact(answer, "baseline_read"), "{answer:?}");
        }
    }

    #[test]
    fn a_loss_that_a_reading_has_settled_leaves_levels_exact_and_counts_not() {
        assert!(is_exact(Answer::Picture, "records_lost"));
        assert!(!is_exact(Answer::Stats, "records_lost"));
        assert!(!is_exact(Answer::Picture, "inexact_after_loss"));
    }

    #[test]
    fn sampled_stacks_spoil_who_and_not_how_much() {
        assert!(is_exact(Answer::Stats, "stacks_sampled"));
        assert!(!is_exact(Answer::Stacks, "stacks_sampled"));
    }

    #[test]
    fn the_book_says_the_same_of_each_code() {
        let page = include_str!("../../../../docs/what-limits-numbers.md");
        for (codes, effect) in EFFECTS {
            for code in *codes {
                let quoted = format!("`{code}`");
                let row = page.lines().find(|line| {
                    let first = line
                        .strip_prefix('|')
                        .and_then(|rest| rest.split('|').next());
                    first.is_some_and(|cell| cell.contains(&quoted))
                });
                let row = row.unwrap_or_else(|| panic!("no row for {code}"));
                let cell = row.split('|').nth(2).unwrap_or_default();
                let cell = cell.split('(').next().unwrap_or_default();
                let mut said: Vec<&str> = cell.split(',').map(str::trim).collect();
                let mut is: Vec<&str> = effect.affects.iter().map(|kind| kind.word()).collect();
                said.sort_unstable();
                is.sort_unstable();
                match effect.affects {
                    [] => assert!(row.split('|').count() == 4, "{row}"),
                    all if all.len() == Affects::ALL.len() => {
                        assert_eq!(said, ["everything"], "{row}")
                    }
                    _ => assert_eq!(said, is, "{row}"),
                }
            }
        }
    }

    #[test]
    fn a_code_is_judged_once() {
        let mut all: Vec<&str> = EFFECTS
            .iter()
            .flat_map(|(codes, _)| *codes)
            .copied()
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_note_that_nobody_has_judged_spoils_everything() {
        for answer in [
            Answer::Stats,
            Answer::Leaks,
            Answer::Fluctuation,
            Answer::Steps,
            Answer::Picture,
            Answer::EarlierPicture,
            Answer::Course,
            Answer::Stacks,
            Answer::StacksOverTime,
        ] {
            assert!(!is_exact(answer, "made_up_today"), "{answer:?}");
        }
        assert!(!effect("made_up_today").lower_bound);
    }
}
