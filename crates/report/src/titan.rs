//! What torchtitan's memory_analysis writes: the report as text, and the comparison of two runs.

use crate::decided::Row;
use crate::figures::{Figures, Sums};
use memscope_units::{bytes, grouped, signed_bytes};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const WIDE: usize = 80;

/// Sums over all ranks.
pub(crate) fn all(ranks: &[Figures]) -> Sums {
    let mut sums = Sums::default();
    for rank in ranks {
        sums.add(&rank.sums);
    }
    sums
}

/// Rows of one name as one row each, most bytes first.
#[must_use]
pub fn together<'f>(rows: impl IntoIterator<Item = &'f Row>) -> Vec<Row> {
    let mut sums: std::collections::BTreeMap<&str, (u64, u64)> = std::collections::BTreeMap::new();
    for row in rows {
        let sum = sums.entry(&row.name).or_default();
        *sum = (sum.0.saturating_add(row.bytes), sum.1 + row.blocks);
    }
    let row = |(name, (bytes, blocks)): (&str, (u64, u64))| Row {
        name: name.to_owned(),
        bytes,
        blocks,
    };
    let mut rows: Vec<Row> = sums.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

fn heading(text: &mut String, name: &str) {
    let _ = writeln!(text, "\n{}\n{name}\n{}", "=".repeat(WIDE), "-".repeat(WIDE));
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "not known".to_owned(), |share| format!("{share:.2} %"))
}

/// A name without what would break a line of text.
pub(crate) fn one_line(name: &str) -> String {
    let is_fine = |char: char| !char.is_control();
    name.chars()
        .map(|char| if is_fine(char) { char } else { '\u{fffd}' })
        .collect()
}

/// Writes `analysis_report.txt`.
pub(crate) fn report(name: &str, ranks: &[Figures]) -> String {
    let sums = all(ranks);
    let mut text = String::new();
    let out = &mut text;
    let _ = writeln!(out, "GPU MEMORY ANALYSIS: {}", one_line(name));
    heading(out, "SUMMARY");
    for (what, value) in [
        ("Allocated", bytes(sums.allocated)),
        ("Reserved", bytes(sums.reserved)),
        ("Cache", bytes(sums.cache())),
        ("Efficiency", percent(sums.efficiency())),
        ("Fragmentation", percent(sums.cached_share())),
    ] {
        let _ = writeln!(out, "{what:<16}{value:>16}");
    }
    if ranks.len() > 1 {
        heading(out, "BY RANK");
        let _ = writeln!(
            out,
            "{:<8}{:>14}{:>14}{:>14}{:>12}",
            "Rank", "Allocated", "Reserved", "Peak", "Efficiency"
        );
        for rank in ranks {
            let _ = writeln!(
                out,
                "{:<8}{:>14}{:>14}{:>14}{:>12}",
                rank.rank,
                bytes(rank.sums.allocated),
                bytes(rank.sums.reserved),
                rank.peak_bytes().map_or_else(|| "not known".into(), bytes),
                percent(rank.sums.efficiency())
            );
        }
    }
    heading(out, "MEMORY BY CATEGORY");
    for row in together(ranks.iter().flat_map(|rank| &rank.categories)) {
        let share = 100.0 * row.bytes as f64 / sums.allocated.max(1) as f64;
        let _ = writeln!(
            out,
            "{:<24}{:>16}{share:>10.2} %",
            row.name,
            bytes(row.bytes)
        );
    }
    heading(out, "TOP 50 ALLOCATIONS");
    let _ = writeln!(out, "{:<8}{:>16}  Category", "Rank", "Size");
    for (place, top) in (1..).zip(largest(ranks)) {
        let _ = writeln!(out, "{place:<8}{:>16}  {}", bytes(top.bytes), top.category);
    }
    heading(out, "FRAGMENTATION ANALYSIS");
    for (what, value) in [
        ("Active blocks", grouped(sums.active)),
        ("Inactive blocks", grouped(sums.inactive)),
        ("Fragmentation", percent(sums.cached_share())),
        ("Inactive blocks > 100 MiB", grouped(sums.large)),
        ("Their sum", bytes(sums.large_bytes)),
    ] {
        let _ = writeln!(out, "{what:<28}{value:>16}");
    }
    heading(out, "OPTIMIZATION RECOMMENDATIONS");
    for line in recommendations(&sums) {
        let _ = writeln!(out, "- {line}");
    }
    text
}

/// The largest blocks of all ranks.
pub(crate) fn largest(ranks: &[Figures]) -> Vec<&crate::figures::Top> {
    let mut top: Vec<_> = ranks.iter().flat_map(|rank| &rank.top).collect();
    top.sort_by_key(|top| std::cmp::Reverse(top.bytes));
    top.truncate(crate::figures::MOST_TOP);
    top
}

/// What torchtitan's analyzer recommends.
pub(crate) fn recommendations(sums: &Sums) -> Vec<&'static str> {
    let Some(efficiency) = sums.efficiency() else {
        return vec!["Nothing is reserved: there is nothing to recommend."];
    };
    let mut said = vec![match efficiency {
        98.0.. => "Excellent: at least 98 % of what is reserved is in use.",
        95.0.. => "Good: at least 95 % of what is reserved is in use.",
        _ => {
            "Poor: less than 95 % of what is reserved is in use. The cache takes the rest; more aggressive settings of the \
             allocator (PYTORCH_CUDA_ALLOC_CONF) may help."
        }
    }];
    if sums.cache() as f64 > 0.1 * sums.reserved as f64 {
        said.push("High cache overhead: more than 10 % of what is reserved is cache. Lower max_split_size_mb.");
    }
    said
}

/// One category of two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The category.
    pub category: String,
    /// Bytes of the first run.
    pub a: u64,
    /// Bytes of the second.
    pub b: u64,
}

impl Compared {
    /// How many bytes the second has more; negative if it has less.
    #[must_use]
    pub const fn overhead(&self) -> i128 {
        self.b as i128 - self.a as i128
    }
}

/// Compares two runs by torchtitan's keywords: those of the largest difference first. `a` is what is compared with.
pub(crate) fn compare(a: &[Figures], b: &[Figures]) -> Vec<Compared> {
    let a = together(a.iter().flat_map(|rank| &rank.keywords));
    let b = together(b.iter().flat_map(|rank| &rank.keywords));
    let names: BTreeSet<&str> = a.iter().chain(&b).map(|row| &*row.name).collect();
    let of = |rows: &[Row], name: &str| {
        let found = rows.iter().find(|row| row.name == name);
        found.map_or(0, |row| row.bytes)
    };
    let mut rows: Vec<Compared> = names
        .into_iter()
        .map(|name| Compared {
            category: name.to_owned(),
            a: of(&a, name),
            b: of(&b, name),
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.overhead().unsigned_abs()));
    rows
}

/// What share of all overhead a row has, per cent; `None` where the sums are equal.
pub(crate) fn share(row: &Compared, rows: &[Compared]) -> Option<f64> {
    let total: i128 = rows.iter().map(Compared::overhead).sum();
    (total != 0).then(|| 100.0 * row.overhead() as f64 / total as f64)
}

pub(crate) fn change(bytes: i128) -> String {
    signed_bytes(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Writes the comparison as text.
pub(crate) fn comparison(names: (&str, &str), rows: &[Compared]) -> String {
    let mut text = format!(
        "A: {}\nB: {}\n\n{:<20}{:>14}{:>14}{:>16}{:>22}\n",
        one_line(names.0),
        one_line(names.1),
        "Category",
        "A",
        "B",
        "Overhead",
        "% of total overhead"
    );
    for row in rows {
        let share =
            share(row, rows).map_or_else(|| "-".to_owned(), |share| format!("{share:.2} %"));
        let _ = writeln!(
            text,
            "{:<20}{:>14}{:>14}{:>16}{share:>22}",
            row.category,
            bytes(row.a),
            bytes(row.b),
            change(row.overhead())
        );
    }
    let total: i128 = rows.iter().map(Compared::overhead).sum();
    let _ = writeln!(text, "{:<48}{:>16}", "Total", change(total));
    text
}
