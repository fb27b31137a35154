//! What memory was for at several moments, side by side, and what changed from the first to the last.

use std::collections::{BTreeMap, HashMap};

use super::words::{short, what, words};
use crate::render::table::{Column, table};
use crate::render::{coverage, name};
use crate::units::{bytes, grouped, moment, plain, signed_bytes};
use memscope_proto::v1;

/// What a row is recognised by at another moment.
type Key<'a> = (&'a str, Option<i32>, &'a str, &'a str, &'a str, &'a str);

/// The tables: the categories of each device at each moment, in the order in which they were asked for, and what changed most, in at
/// most so many rows (0: all).
pub(super) fn text(answers: &[(String, v1::OwnersResponse)], limit: u32) -> String {
    let (Some((first_at, first)), Some((last_at, last))) = (answers.first(), answers.last()) else {
        return String::new();
    };
    let process = last.process.as_ref();
    let mut text = format!(
        "{}\n",
        process.map_or_else(|| format!("pid {}", last.pid), name)
    );
    for (at, answer) in answers {
        text.push_str(&format!("{at}: as of {}\n", moment(answer.as_of)));
    }
    text.push_str(&categories(answers));
    text.push_str(&format!("\nFrom {first_at} to {last_at}\n"));
    text.push_str(&changes(first, last, limit));
    if first.more > 0 || last.more > 0 {
        text.push_str(
            "not all rows fit into the answers: the smallest are missing in these changes\n",
        );
    }
    let mut notes: Vec<v1::CoverageNote> = Vec::new();
    for note in answers.iter().flat_map(|(_, answer)| &answer.coverage) {
        let is_new = |other: &v1::CoverageNote| other.code != note.code || other.text != note.text;
        if notes.iter().all(is_new) {
            notes.push(note.clone());
        }
    }
    text.push_str(&coverage(&notes));
    text
}

fn categories(answers: &[(String, v1::OwnersResponse)]) -> String {
    // By device and category the bytes at each moment.
    let mut all: BTreeMap<Option<i32>, BTreeMap<&str, Vec<u64>>> = BTreeMap::new();
    for (number, (_, answer)) in answers.iter().enumerate() {
        for device in &answer.devices {
            let rows = all.entry(device.device).or_default();
            for one in &device.categories {
                let row = rows.entry(one.category.as_str());
                let row = row.or_insert_with(|| vec![0; answers.len()]);
                row[number] += one.blocks.unwrap_or_default().bytes;
            }
        }
    }
    let mut head = vec![Column::Left("FOR")];
    head.extend(answers.iter().map(|(at, _)| Column::Named(at.clone())));
    head.push(Column::Right("CHANGE"));
    let cells = |title: String, row: &[u64]| {
        let mut cells = vec![title];
        cells.extend(row.iter().map(|size| bytes(*size)));
        cells.push(change(row[0], row[row.len() - 1]));
        cells
    };
    let mut text = String::new();
    for (device, rows) in all {
        let mut sum = vec![0; answers.len()];
        for row in rows.values() {
            for (sum, size) in sum.iter_mut().zip(row) {
                *sum += size;
            }
        }
        let mut rows: Vec<(&str, Vec<u64>)> = rows.into_iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.last().copied()));
        let mut lines: Vec<Vec<String>> = rows
            .iter()
            .map(|(category, row)| cells(words(category), row))
            .collect();
        lines.push(cells("(all in use)".to_owned(), &sum));
        let title = match device {
            Some(ordinal) => format!("device {ordinal}"),
            None => "device not known".to_owned(),
        };
        text.push_str(&format!("\n{title}\n{}", table(&head, lines)));
    }
    text
}

fn change(before: u64, now: u64) -> String {
    match now.wrapping_sub(before).cast_signed() {
        0 => String::new(),
        change => signed_bytes(change),
    }
}

/// A row, and what it had at the first moment and has at the last.
struct Pair<'a> {
    owner: &'a v1::Owner,
    blocks: [v1::Amount; 2],
}

/// What grew or shrank most from one answer to another.
fn changes(first: &v1::OwnersResponse, last: &v1::OwnersResponse, limit: u32) -> String {
    let mut pairs: HashMap<Key<'_>, Pair<'_>> = HashMap::new();
    for (number, answer) in [first, last].into_iter().enumerate() {
        for owner in &answer.owners {
            let key = (
                owner.category.as_str(),
                owner.device,
                owner.owner.as_str(),
                owner.name.as_str(),
                owner.key.as_str(),
                owner.place.as_str(),
            );
            let pair = pairs.entry(key).or_insert(Pair {
                owner,
                blocks: Default::default(),
            });
            let blocks = owner.blocks.unwrap_or_default();
            pair.blocks[number].count += blocks.count;
            pair.blocks[number].bytes += blocks.bytes;
        }
    }
    let mut rows: Vec<(Key<'_>, Pair<'_>)> = pairs
        .into_iter()
        .filter(|(_, pair)| pair.blocks[0].bytes != pair.blocks[1].bytes)
        .collect();
    if rows.is_empty() {
        return "nothing changed\n".to_owned();
    }
    rows.sort_by_key(|(key, Pair { blocks, .. })| {
        let size = blocks[0].bytes.abs_diff(blocks[1].bytes);
        (std::cmp::Reverse(size), *key)
    });
    let shown = match limit {
        0 => rows.len(),
        limit => limit as usize,
    };
    let head = [
        Column::Left("FOR"),
        Column::Left("WHAT"),
        Column::Right("BLOCKS"),
        Column::Right("SIZE"),
        Column::Right("CHANGE"),
        Column::Left("ALLOCATED AT"),
    ];
    let lines = rows.iter().take(shown).map(|(_, Pair { owner, blocks })| {
        let [before, now] = blocks;
        vec![
            words(&owner.category),
            what(owner),
            grouped(now.count),
            bytes(now.bytes),
            change(before.bytes, now.bytes),
            plain(&short(&owner.place)),
        ]
    });
    let mut text = table(&head, lines.collect());
    if rows.len() > shown {
        let more = grouped((rows.len() - shown) as u64);
        text.push_str(&format!("and {more} more (--limit 0 shows all)\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(category: &str, name: &str, count: u64, label: &str) -> v1::Owner {
        v1::Owner {
            category: category.to_owned(),
            device: Some(0),
            owner: name.to_owned(),
            blocks: Some(v1::Amount {
                count,
                bytes: count << 20,
            }),
            labels: vec![label.to_owned()],
            ..v1::Owner::default()
        }
    }

    /// An answer whose only device has these rows.
    fn answer(owners: Vec<v1::Owner>, note: &str) -> v1::OwnersResponse {
        let mut categories: Vec<v1::OwnerCategory> = Vec::new();
        for owner in &owners {
            categories.push(v1::OwnerCategory {
                category: owner.category.clone(),
                blocks: owner.blocks,
                unsure: None,
            });
        }
        v1::OwnersResponse {
            pid: 7,
            owners,
            devices: vec![v1::OwnedDevice {
                device: Some(0),
                categories,
                ..v1::OwnedDevice::default()
            }],
            coverage: vec![v1::CoverageNote {
                code: "unsure".to_owned(),
                text: note.to_owned(),
                ..v1::CoverageNote::default()
            }],
            ..v1::OwnersResponse::default()
        }
    }

    fn lines<'t>(text: &'t str, title: &str) -> Vec<&'t str> {
        let found = text
            .lines()
            .find(|line| line.trim_start().starts_with(title));
        found
            .unwrap_or_else(|| panic!("no {title}: {text}"))
            .split_whitespace()
            .collect()
    }

    #[test]
    fn moments_stand_side_by_side_and_changes_below() {
        let weights = || owner("weights", "__main__.model", 8, "");
        let first = answer(vec![weights(), owner("activations", "loss", 3, "")], "one");
        let middle = answer(vec![weights()], "one");
        // Rows that differ by their labels alone are one.
        let kept = |count, label| owner("program", "__main__.kept[*]", count, label);
        let last = answer(vec![weights(), kept(5, "a"), kept(2, "b")], "two");
        let answers = [("-5m", first), ("peak", middle), ("now", last)];
        let answers = answers.map(|(at, answer)| (at.to_owned(), answer));
        let text = text(&answers, 1);
        assert_eq!(lines(&text, "FOR"), ["FOR", "-5m", "peak", "now", "CHANGE"]);
        let mib = |row: &str| row.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            lines(&text, "weights"),
            mib("weights 8.00 MiB 8.00 MiB 8.00 MiB")
        );
        assert_eq!(
            lines(&text, "activations"),
            mib("activations 3.00 MiB 0 B 0 B -3.00 MiB")
        );
        assert_eq!(
            lines(&text, "(all in use)"),
            mib("(all in use) 11.00 MiB 8.00 MiB 15.00 MiB +4.00 MiB")
        );
        let changes = text.split("From -5m to now").nth(1).unwrap_or_default();
        assert_eq!(
            lines(changes, "program"),
            mib("program __main__.kept[*] 7 7.00 MiB +7.00 MiB")
        );
        assert!(changes.contains("and 1 more"), "{text}");
        for note in ["one", "two"] {
            assert_eq!(text.matches(note).count(), 1, "{text}");
        }
        let same = [answers[0].clone(), answers[0].clone()];
        assert!(super::text(&same, 0).contains("nothing changed"));
    }
}
