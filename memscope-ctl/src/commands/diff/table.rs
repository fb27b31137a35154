//! Formats differences as tables.

use crate::files::{BY_PLACE, SnapshotFile};
use crate::render::frames::folded;
use crate::render::table::{Column, table};
use crate::render::{Known, coverage};
use crate::units::{bytes, grouped, moment, plain};
use memscope_diff::{Compared, MatchedBy, StackDiff};
use memscope_proto::v1;
use std::sync::Arc;

/// Largest number of lines that are shown of a stack, the same as the default of `stacks`.
const FRAMES: usize = 8;

/// The difference between two moments of a process.
pub(super) fn moments(answer: &v1::DiffResponse, limit: usize) -> String {
    let mut text = format!(
        "pid {}  from {} to {}\n",
        answer.pid,
        moment(answer.from_unix_ns),
        moment(answer.to_unix_ns)
    );
    text.push_str(&devices(&answer.devices, &answer.coverage));
    text.push_str(&groups(&answer.groups, limit, answer.omitted_groups));
    text.push_str(&coverage(&answer.coverage));
    text
}

/// The difference between two files.
pub(super) fn files(
    before: &SnapshotFile,
    after: &SnapshotFile,
    (matched_by, compared): (MatchedBy, &Compared<&[Arc<str>]>),
    notes: &[v1::CoverageNote],
    limit: usize,
    by_stack: bool,
) -> String {
    let head = |word: &str, kept: &SnapshotFile| {
        let mut line = format!("{word} {}", plain(&kept.path.display().to_string()));
        if let Some(image) = kept.image {
            line.push_str(&format!("  pid {}", image.pid));
        }
        if let Some(ns) = kept.as_of_ns {
            line.push_str(&format!("  {}", moment(ns)));
        }
        line + "\n"
    };
    let mut text = head("from", before) + &head("to  ", after);
    text.push_str(match matched_by {
        MatchedBy::Block => "Blocks are told apart one by one.\n",
        MatchedBy::Number => {
            "Blocks are counted by device, stream and size: nothing says that both files are of one \
             process (--same-process does).\n"
        }
    });
    text.push_str(&devices(&compared.devices, notes));
    match by_stack {
        false => text.push_str(&groups(&compared.groups, limit, 0)),
        true => text.push_str(&stacks(&compared.stacks, limit)),
    }
    text.push_str(&coverage(notes));
    text
}

fn devices(devices: &[v1::DeviceDiff], notes: &[v1::CoverageNote]) -> String {
    // Blocks that were taken for one change no total: less came and went by as much as more stayed.
    let (matching, of_files): (Vec<_>, Vec<_>) = notes
        .iter()
        .cloned()
        .partition(|note| [BY_PLACE, "attached_anew"].contains(&&*note.code));
    let notes = &of_files[..];
    let by_place = !matching.is_empty();
    let known = Known::of(notes, &["totals", "blocks"]);
    let reserved = Known::of(notes, &["totals"]);
    let mut text = String::new();
    if devices.is_empty() {
        text.push_str(match known {
            Known::Exactly => "Nothing was held on any device at either moment.\n",
            _ => "What was held at either moment is not known: the notes below say why.\n",
        });
    }
    let amount_of = |one: v1::Amount, bound: &str| {
        let number = format!("{} in {}", bytes(one.bytes), grouped(one.count));
        match (known, by_place) {
            (Known::Exactly, true) => format!("{bound} {number}"),
            // Of two bounds in opposite directions nothing is left.
            (Known::AtLeast, true) => crate::units::unknown(),
            _ => known.say(number),
        }
    };
    for one in devices {
        let (came, went, stayed) = (amount(one.came), amount(one.went), amount(one.stayed));
        text.push_str(&format!(
            "\nDevice {}: allocated {} to {}, reserved {} to {}\n  came {}, went {}, stayed {}\n",
            one.device,
            known.say(bytes(one.allocated_before_bytes)),
            known.say(bytes(one.allocated_after_bytes)),
            reserved.say(bytes(one.reserved_before_bytes)),
            reserved.say(bytes(one.reserved_after_bytes)),
            amount_of(came, "at least"),
            amount_of(went, "at least"),
            amount_of(stayed, "at most"),
        ));
    }
    if !devices.is_empty() {
        text.push_str(match (known, by_place) {
            (Known::Exactly, false) => "",
            (Known::Exactly, true) => {
                "\nAs the places of blocks tell it, and their stacks where they are compared:\n"
            }
            _ => "\nOf the blocks that are known:\n",
        });
    }
    text
}

/// How many rows are shown, where 0 stands for all.
const fn most(limit: usize) -> usize {
    match limit {
        0 => usize::MAX,
        limit => limit,
    }
}

/// A table of the groups in which blocks came or went.
fn groups(groups: &[v1::GroupDiff], limit: usize, omitted: u64) -> String {
    let limit = most(limit);
    let mut text = String::new();
    let changed: Vec<&v1::GroupDiff> = groups
        .iter()
        .filter(|group| amount(group.came).count + amount(group.went).count > 0)
        .collect();
    if !changed.is_empty() {
        text.push('\n');
        let head = [
            Column::Right("DEVICE"),
            Column::Right("SIZE"),
            Column::Right("CAME"),
            Column::Right("WENT"),
            Column::Right("STAYED"),
            Column::Right("CHANGE"),
            Column::Right("STREAM"),
        ];
        let rows = changed.iter().take(limit).map(|group| {
            let (came, went) = (amount(group.came), amount(group.went));
            vec![
                group.device.to_string(),
                bytes(group.size_bytes),
                grouped(came.count),
                grouped(went.count),
                grouped(amount(group.stayed).count),
                change(came.bytes, went.bytes),
                format!("{:#x}", group.stream),
            ]
        });
        text.push_str(&table(&head, rows.collect()));
    }
    let left_out = changed.len().saturating_sub(limit) as u64 + omitted;
    if left_out > 0 {
        text.push_str(&format!(
            " and {} groups with smaller changes left out\n",
            grouped(left_out)
        ));
    }
    text
}

/// The stacks of which blocks came or went.
fn stacks(stacks: &[StackDiff<&[Arc<str>]>], limit: usize) -> String {
    let limit = most(limit);
    let mut text = String::new();
    let changed = |stack: &&StackDiff<&[Arc<str>]>| stack.came.count + stack.went.count > 0;
    for stack in stacks.iter().filter(changed).take(limit) {
        text.push_str(&format!(
            "\nDevice {}  {}  came {} in {}, went {} in {}, stayed {} in {}\n",
            stack.device,
            change(stack.came.bytes, stack.went.bytes),
            bytes(stack.came.bytes),
            grouped(stack.came.count),
            bytes(stack.went.bytes),
            grouped(stack.went.count),
            bytes(stack.stayed.bytes),
            grouped(stack.stayed.count),
        ));
        if stack.frames.is_empty() {
            text.push_str("    [the file has no stack]\n");
        }
        for line in folded(stack.frames, FRAMES) {
            text.push_str(&format!("    {line}\n"));
        }
    }
    let left_out = stacks.iter().filter(changed).count().saturating_sub(limit);
    if left_out > 0 {
        text.push_str(&format!(
            "\n and {} stacks with smaller changes left out\n",
            grouped(left_out as u64)
        ));
    }
    text
}

fn amount(amount: Option<v1::Amount>) -> v1::Amount {
    amount.unwrap_or_default()
}

fn change(came: u64, went: u64) -> String {
    if came >= went {
        format!("+{}", bytes(came - went))
    } else {
        format!("-{}", bytes(went - came))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody saw what came and went before the new attach. The totals are known all the same.
    #[test]
    fn a_new_attach_makes_bounds_of_what_came_and_went() {
        let amount = |count| {
            Some(v1::Amount {
                bytes: count << 20,
                count,
            })
        };
        let answer = v1::DiffResponse {
            devices: vec![v1::DeviceDiff {
                allocated_before_bytes: 4 << 20,
                allocated_after_bytes: 5 << 20,
                came: amount(2),
                went: amount(1),
                stayed: amount(3),
                ..v1::DeviceDiff::default()
            }],
            coverage: vec![v1::CoverageNote {
                code: "attached_anew".to_owned(),
                affects: ["blocks", "stacks", "history"].map(str::to_owned).to_vec(),
                ..v1::CoverageNote::default()
            }],
            ..v1::DiffResponse::default()
        };
        let text = moments(&answer, 10);
        for words in [
            "allocated 4.00 MiB to 5.00 MiB,",
            "came at least 2.00 MiB in 2, went at least 1.00 MiB in 1, stayed at most 3.00 MiB in 3",
        ] {
            assert!(text.contains(words), "{text}");
        }
        assert!(!text.contains("unknown"), "{text}");
    }

    #[test]
    fn a_limit_of_0_leaves_nothing_out() {
        let came = v1::Amount {
            bytes: 512,
            count: 1,
        };
        let group = |size_bytes| v1::GroupDiff {
            size_bytes,
            came: Some(came),
            ..v1::GroupDiff::default()
        };
        let all = [group(1024), group(2048), group(4096)];
        let rows = |text: &str| text.lines().filter(|line| line.contains("KiB")).count();
        let (whole, cut) = (groups(&all, 0, 0), groups(&all, 2, 0));
        assert_eq!((rows(&whole), rows(&cut)), (3, 2), "{whole}{cut}");
        assert!(!whole.contains("left out"), "{whole}");
        assert!(cut.ends_with(" and 1 groups with smaller changes left out\n"));
        let line: Arc<str> = "forward (/home/ada/train.py:7)".into();
        let frames = [line];
        let stack = StackDiff {
            device: 0,
            frames: &frames[..],
            came,
            went: v1::Amount::default(),
            stayed: v1::Amount::default(),
        };
        let (whole, cut) = (
            stacks(&[stack.clone(), stack.clone()], 0),
            stacks(&[stack.clone(), stack], 1),
        );
        assert_eq!(whole.matches("train.py:7").count(), 2, "{whole}");
        assert!(
            cut.contains("and 1 stacks with smaller changes left out"),
            "{cut}"
        );
    }
}
