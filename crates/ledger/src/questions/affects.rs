//! What each coverage note makes inexact, and what each answer depends on.
//!
//! Owns: the one table of codes, and the one table of answers. Refuses: the sentences of the notes; the code that makes
//! a note writes them. A code that is not in the table makes everything inexact, so whoever adds a note has to enter
//! its code here.

use memscope_proto::v1;

/// A kind of number that a coverage note may make inexact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Affects {
    /// Allocated and reserved bytes at the moment of the answer.
    Totals,
    /// Which blocks live, how many, and how large they are.
    Blocks,
    /// How segments are divided, and their streams, at an earlier moment. For the present moment a reading shows them.
    Layout,
    /// How segments are divided now: their streams, their private pools and the requested sizes.
    Segments,
    /// What happened over time: counts of allocations and frees, peaks, the trace, the course of levels.
    History,
    /// Which stack allocated a block.
    Stacks,
    /// How many steps there were, and where each of them ended.
    Steps,
    /// Memory held from the runtime and the driver outside the framework's pool.
    Driver,
    /// Memory of pools that report themselves through mstx.
    Regions,
    /// Which groups of blocks grow.
    Growth,
    /// How often memory ran out.
    Failures,
    /// Which labels the program has given to blocks.
    Labels,
}

impl Affects {
    /// All kinds.
    pub const ALL: [Affects; 12] = [
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
        Affects::Failures,
        Affects::Labels,
    ];

    /// The word for it in answers.
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
            Affects::Failures => "failures",
            Affects::Labels => "labels",
        }
    }
}

/// How one coverage note affects the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The kinds of numbers that it makes inexact; none where the note only explains something.
    pub affects: &'static [Affects],
    /// These numbers can only be too small: something may be missing in them, and nothing is counted that is not there.
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

/// Codes of coverage notes, and how each affects the numbers. The page docs/what-limits-numbers.md has the same for
/// users, and a test compares the two.
pub const EFFECTS: &[(&[&str], Effect)] = {
    use Affects::{
        Blocks, Driver, Failures, Growth, History, Labels, Layout, Regions, Segments, Stacks,
        Steps, Totals,
    };
    &[
        // These notes only explain something; all numbers are exact.
        (
            &[
                "baseline_read",
                "both_ways",
                // What is told there is right, but not as fine as was asked for.
                "course_coarse",
                "forked",
                "import_microseconds",
                "import_no_segments",
                "import_requests_left_out",
                "import_time_of_file",
                "import_words_left_out",
                "import_shadow",
                // Who uses which block says nothing of what is held.
                "accesses_partly",
                "ipc_import",
                "level_reduced",
                "library_replaced",
            ],
            Effect::NOTHING,
        ),
        // Allocations that came and went before the probes are in no count, and those that stayed have no stack.
        (
            &["probed_late"],
            Effect::at_least(&[Blocks, Growth, History, Stacks]),
        ),
        // What the process held before the attach is missing.
        (
            &["attached_late", "baseline_not_read"],
            Effect::at_least(&[Blocks, Growth]),
        ),
        (
            &["driver_baseline_unknown"],
            Effect::at_least(&[Totals, Blocks, Driver, Growth]),
        ),
        // Nobody knows what came and went between two moments.
        (
            &["attached_anew"],
            Effect::either_way(&[Blocks, Stacks, History]),
        ),
        // Of a process with a pool, whose own totals have what it held before.
        (&["direct_baseline_unknown"], Effect::at_least(&[Driver])),
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
                "regions_full",
                "regions_untold",
            ],
            Effect::at_least(&[Regions]),
        ),
        // Records are missing, so counts and peaks lack them. Other codes say whether totals and blocks are right.
        (&["records_lost"], Effect::at_least(&[History])),
        (
            &["inexact_after_loss"],
            Effect::either_way(&[Blocks, Growth]),
        ),
        // Another block may have taken the place of one that went, and has the stack and the group of that one.
        (&["stayed_by_place"], Effect::either_way(&[Stacks, Growth])),
        (
            &["totals_inexact_after_loss"],
            Effect::either_way(&[Totals, Blocks, Driver, History, Growth]),
        ),
        (
            &["driver_inexact_after_loss"],
            Effect::either_way(&[Driver]),
        ),
        // Nothing reads these anew, so they stay inexact.
        (
            &["regions_inexact_after_loss"],
            Effect::either_way(&[Regions]),
        ),
        (&["steps_inexact_after_loss"], Effect::either_way(&[Steps])),
        // A table of the BPF programs was full: a call that was not seen may have allocated or freed memory.
        (
            &["inflight_table_full"],
            Effect::either_way(&[Totals, Blocks, History, Driver, Growth]),
        ),
        (
            &["device_table_full"],
            Effect::at_least(&[Totals, Blocks, Driver, Growth]),
        ),
        // Memory was short, and a part of what was known was given up.
        (
            &["trace_shed", "trace_dropped"],
            Effect::at_least(&[History]),
        ),
        (&["history_shed"], Effect::either_way(&[History, Growth])),
        (&["given_up"], Effect::either_way(&Affects::ALL)),
        (
            &["devices_full"],
            Effect::either_way(&[Totals, Blocks, History, Driver, Growth]),
        ),
        // Parts of a recording are missing.
        (&["recording_damaged"], Effect::either_way(&Affects::ALL)),
        (
            &["journal_begins_late"],
            Effect::at_least(&[Totals, Blocks, History, Driver, Regions, Growth, Steps]),
        ),
        // A newer reading failed or was refused, so the numbers are those of an older one.
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
        // The level at which the process is watched does not show these numbers.
        (&["level_read"], Effect::at_least(&[History, Driver])),
        (
            &["level_segments"],
            Effect::at_least(&[Blocks, History, Growth]),
        ),
        (&["level_blocks"], Effect::either_way(&[Layout])),
        (&["not_probed"], Effect::at_least(&[Driver, History])),
        // Particular numbers of the pool and of the driver.
        (&["rounded_size_unknown"], Effect::at_least(&[Blocks])),
        (
            &["failures_full", "oom_unseen"],
            Effect::at_least(&[Failures]),
        ),
        (&["sizes_untold"], Effect::at_least(&[History])),
        (
            &["layout_not_read", "pool_ids_unknown"],
            Effect::either_way(&[Layout, Segments]),
        ),
        (
            &["physical_not_shown", "segments_unknown"],
            Effect::at_least(&[Layout, Segments]),
        ),
        (
            &["pool_device_unknown"],
            Effect::either_way(&[Totals, Blocks, History, Growth]),
        ),
        (&["snapshot_device_unknown"], Effect::at_least(&[History])),
        (&["leak_groups_full"], Effect::either_way(&[Growth])),
        (&["device_unknown"], Effect::at_least(&[Driver])),
        (&["array_alloc"], Effect::at_least(&[Driver])),
        // What was never counted makes nothing too large when it goes.
        (&["vmm_unknown"], Effect::at_least(&[Driver])),
        // A dump that was made by another tool has only what that tool collected.
        (
            &["imported", "import_rows_left_out", "import_sizes_unknown"],
            Effect::at_least(&Affects::ALL),
        ),
        // A snapshot of PyTorch's has its pool, and the time of its trace.
        (
            &["imported_snapshot"],
            Effect::at_least(&[History, Driver, Regions]),
        ),
        (&["import_no_trace"], Effect::at_least(&[History])),
        (&["matched_by_place"], Effect::either_way(&[Blocks])),
        (
            &[
                "import_sizes_rounded",
                "import_contradictions",
                "import_actions_left_out",
            ],
            Effect::either_way(&[History]),
        ),
        (
            &["import_segments_left_out"],
            Effect::either_way(&[Layout, Segments]),
        ),
        (&["import_padding_unknown"], Effect::at_least(&[History])),
        (&["import_totals_added_up"], Effect::at_least(&[Totals])),
        (&["import_times_moved"], Effect::either_way(&[History])),
        // Their order is known, and so are counts and peaks.
        (&["import_times_unknown"], Effect::either_way(&[Growth])),
        // Stacks are missing or inexact.
        (
            &[
                "came_unseen",
                "no_python_stacks",
                "no_native_stacks",
                "stacks_sampled",
                "stacks_reduced",
                "code_deaths_unseen",
                "code_table_full",
                "names_full",
                "stacks_shed",
                "npu_task_queue",
                "import_c_stacks",
            ],
            Effect::either_way(&[Stacks]),
        ),
        (
            &["labels_full", "labels_lost"],
            Effect::either_way(&[Labels]),
        ),
    ]
};

/// Whether the table of effects has an entry for a code.
pub fn is_judged(code: &str) -> bool {
    EFFECTS.iter().any(|(codes, _)| codes.contains(&code))
}

/// How a coverage note affects the numbers, by its code. A code that is not in the table makes everything inexact.
pub fn effect(code: &str) -> Effect {
    let found = EFFECTS.iter().find(|(codes, _)| codes.contains(&code));
    found.map_or(Effect::either_way(&Affects::ALL), |(_, effect)| *effect)
}

/// Kinds of answers that have numbers in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What a process holds, by device.
    Stats,
    /// Groups of blocks that grow.
    Leaks,
    /// How the levels of the pools went up and down over time.
    Fluctuation,
    /// Steps and their levels.
    Steps,
    /// Segments and blocks of the present moment.
    Picture,
    /// Segments and blocks of an earlier moment, or a comparison with one.
    EarlierPicture,
    /// Segments and blocks, and how they changed over time.
    Course,
    /// Live blocks by the stack that allocated them.
    Stacks,
    /// Blocks that lived at the peak or were allocated since the attach, by the stack that allocated them.
    StacksOverTime,
    /// Who owns blocks, beside what is known of the blocks themselves.
    Owners,
}

impl Answer {
    /// The kinds of numbers that it contains.
    pub fn depends_on(self) -> &'static [Affects] {
        use Affects::{
            Blocks, Driver, Failures, Growth, History, Labels, Layout, Regions, Segments, Stacks,
            Steps, Totals,
        };
        match self {
            Answer::Stats => &[Totals, Blocks, History, Driver, Regions, Failures],
            Answer::Leaks => &[Blocks, Growth, Stacks, Steps],
            Answer::Fluctuation => &[Totals, History],
            Answer::Steps => &[Totals, History, Steps],
            Answer::Picture => &[Totals, Blocks, Segments],
            Answer::EarlierPicture => &[Totals, Blocks, Layout],
            Answer::Course => &[Totals, Blocks, Layout, History],
            Answer::Stacks => &[Blocks, Stacks],
            Answer::StacksOverTime => &[Blocks, Stacks, History],
            Answer::Owners => &[Labels],
        }
    }
}

/// The notes that make an answer inexact; none where it is exact.
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
