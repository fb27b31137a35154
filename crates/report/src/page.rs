//! `report.html`: one page that needs no network and no script.
//!
//! Every text is escaped by the template (`maud`), and the page's policy allows no script and no request, so that names out of a
//! hostile file are only ever shown.

use crate::contents::{Live, Others, Report};
use crate::decided::Row;
use crate::figures::{DeviceCourse, Figures};
use crate::titan::{self, Compared};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use memscope_ranks::{Judgement, Line, Metric, Rank};
use memscope_units::{bytes, grouped, moment, signed_bytes};

const STYLE: &str = include_str!("page.css");
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
/// Most rows of a table of this page.
const MOST_ROWS: usize = 50;
/// Most courses that are drawn.
const MOST_COURSES: usize = 16;
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 240.0;

fn or_unknown(number: Option<u64>) -> String {
    number.map_or_else(|| "not known".to_owned(), bytes)
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "not known".to_owned(), |share| format!("{share:.1} %"))
}

/// Writes the page.
pub(crate) fn page(report: &Report) -> String {
    let ranks = &report.ranks;
    let sums = titan::all(ranks);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                title { "GPU memory: " (report.name) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "GPU memory: " (report.name) }
                p.soft { (report.made) }
                (summary(report))
                @for rank in ranks.iter().take(MOST_COURSES) {
                    @for course in &rank.courses { (course_of(rank, course, ranks.len() > 1)) }
                }
                (more(ranks.iter().skip(MOST_COURSES).map(|rank| rank.courses.len() as u64).sum(), "courses of further ranks, which are not drawn"))
                @if ranks.iter().map(|rank| rank.courses.len()).sum::<usize>() == 0 {
                    h2 { "Course" }
                    p { @if ranks.iter().any(|rank| rank.lacks_a_course) { "Peak and course are not known: what limits the numbers says why." } @else { "There is no trace: peak and course are not known." } }
                }
                h2 { "Handed out at the end, by category" }
                p.soft { "Categories by the frames of the stacks, as torchtitan's analyzer gives them." }
                (rows(&titan::together(ranks.iter().flat_map(|rank| &rank.categories)), "Category", Others::default()))
                @if let Some(live) = &report.live { (of_live(live)) }
                h2 { "Largest blocks" }
                table {
                    tr { th.n { "#" } th.n { "Size" } th { "Category" } th { "The program's own line" } }
                    @for (place, top) in (1..).zip(titan::largest(ranks)) {
                        tr {
                            td.n { (place) } td.n { (bytes(top.bytes)) } td { (top.category) }
                            td.w { @if top.line.is_empty() { "not known" } @else { (top.line) } }
                        }
                    }
                }
                h2 { "Fragmentation" }
                table {
                    tr { td { "Blocks handed out" } td.n { (grouped(sums.active)) } }
                    tr { td { "Free blocks" } td.n { (grouped(sums.inactive)) } }
                    tr { td { "Free bytes" } td.n { (bytes(sums.free)) } }
                    tr { td { "Largest free block" } td.n { (bytes(sums.largest_free)) } }
                    tr { td { "Free, but not in the largest free block of its device" } td.n { (percent(sums.scattered())) } }
                    tr { td { "Free blocks above 100 MiB" } td.n { (sums.large) ", " (bytes(sums.large_bytes)) } }
                }
                @for line in titan::recommendations(&sums) { p { (line) } }
                @if ranks.len() > 1 { (beside(ranks)) }
                @if let Some((other, compared)) = &report.compared { (compared_with(other, &report.name, compared)) }
                h2 { "What limits the numbers" }
                @if ranks.iter().all(|rank| rank.notes.is_empty()) && report.live.as_ref().is_none_or(|l| l.notes.is_empty()) {
                    p { "Nothing is known that limits them, except this: the course is as the trace has it, in bytes that were asked for; sizes \
                         of blocks are rounded up by the pool." }
                } @else {
                    ul {
                        @for rank in ranks { @for note in &rank.notes {
                            li { @if ranks.len() > 1 { "Rank " (rank.rank) ": " } (note) }
                        } }
                        @if let Some(live) = &report.live { @for note in &live.notes { li { (note) } } }
                    }
                }
                h2 { "How this was made" }
                p.w { (report.made_by) }
                ul { @for rank in ranks { li.w { "Rank " (rank.rank) ": " (rank.source) } } }
            }
        }
    };
    markup.into_string()
}

fn summary(report: &Report) -> Markup {
    let sums = titan::all(&report.ranks);
    let peaks: Option<Vec<u64>> = report.ranks.iter().map(Figures::peak_bytes).collect();
    let row = |name: &str, sums: &crate::figures::Sums, peak: Option<u64>| {
        html! {
            tr {
                td { (name) } td.n { (bytes(sums.allocated)) } td.n { (bytes(sums.reserved)) } td.n { (or_unknown(peak)) }
                td.n { (percent(sums.efficiency())) } td.n { (percent(sums.scattered())) }
            }
        }
    };
    html! {
        h2 { "Summary" }
        table {
            tr { th {} th.n { "Allocated" } th.n { "Reserved" } th.n { "Peak" } th.n { "Efficiency" } th.n { "Fragmentation" } }
            @for rank in &report.ranks { (row(&format!("Rank {}", rank.rank), &rank.sums, rank.peak_bytes())) }
            @if report.ranks.len() > 1 { (row("All", &sums, peaks.map(|peaks| peaks.into_iter().fold(0, u64::saturating_add)))) }
        }
        p.soft { "Efficiency: allocated of reserved. Fragmentation: free bytes that are not in the largest free block of their \
                  device. Peak: the most that the trace shows, in bytes that were asked for, where no note below says that they are rounded." }
    }
}

/// What is said of rows that are not shown: `and 12 more lines`, and nothing where there are none.
fn more(count: u64, what: &str) -> Markup {
    html! { @if count > 0 { p.soft { "and " (grouped(count)) " more " (what) } } }
}

/// A table of rows, and beneath it what there is beside them: those that are too many, and `others`, of which only the sum is known.
fn rows(rows: &[Row], what: &str, others: Others) -> Markup {
    let most = rows.iter().map(|row| row.bytes).max().unwrap_or(0).max(1);
    let left_out = rows.iter().skip(MOST_ROWS);
    let count = others.count.saturating_add(left_out.clone().count() as u64);
    let sum = left_out.map(|row| row.bytes);
    let sum = sum.fold(others.bytes, u64::saturating_add);
    html! {
        table {
            tr { th { (what) } th.n { "Bytes" } th.n { "Blocks" } th {} }
            @for row in rows.iter().take(MOST_ROWS) {
                tr {
                    td.w { @if row.name.is_empty() { "not known" } @else { (row.name) } }
                    td.n { (bytes(row.bytes)) } td.n { (grouped(row.blocks)) }
                    td.bar {
                        svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
                            rect class="a" width=(format!("{:.2}", 100.0 * row.bytes as f64 / most as f64)) height="8" {}
                        }
                    }
                }
            }
        }
        (more(count, &format!("of {} in all", bytes(sum))))
    }
}

fn course_of(rank: &Figures, course: &DeviceCourse, several: bool) -> Markup {
    let top = course
        .points
        .iter()
        .map(|p| p.reserved.map_or(p.allocated, |r| r.max(p.allocated)))
        .max();
    let top = top.unwrap_or(0).max(1) as f64;
    let last = course.points.last().map_or(1, |point| point.entry).max(1) as f64;
    let place = |entry: u64, level: u64| {
        let x = WIDTH * entry as f64 / last;
        (x, HEIGHT - (HEIGHT - 20.0) * level as f64 / top)
    };
    let line = |level: fn(&crate::figures::Point) -> Option<u64>| {
        let mut path = String::new();
        let points = course.points.iter();
        for (point, level) in points.filter_map(|point| Some((point, level(point)?))) {
            let (x, y) = place(point.entry, level);
            let word = if path.is_empty() { 'M' } else { 'L' };
            path.push_str(&format!("{word}{x:.1} {y:.1}"));
        }
        path
    };
    let allocated = line(|point| Some(point.allocated));
    let first_x = course.points.first().map_or(0.0, |p| place(p.entry, 0).0);
    let last_x = course.points.last().map_or(0.0, |p| place(p.entry, 0).0);
    let area = format!("{allocated}L{last_x:.1} {HEIGHT}L{first_x:.1} {HEIGHT}Z");
    let (x, y) = place(course.peak.entry, course.peak.allocated);
    let at = course
        .peak
        .time_us
        .map(|us| moment(us.saturating_mul(1000)));
    html! {
        h2 {
            "Course" @if several { " of rank " (rank.rank) } ", device " (course.device)
        }
        p {
            "Peak " b { (bytes(course.peak.allocated)) } " after entry " (grouped(course.peak.entry))
            @if let Some(at) = at { ", " (at) }
            @if let Some(reserved) = course.peak.reserved { ", with " (bytes(reserved)) " reserved." } @else { "." }
        }
        svg class="course" viewBox=(format!("0 0 {WIDTH} {}", HEIGHT + 20.0)) role="img"
            aria-label=(format!("handed out over the trace, with its peak of {}", bytes(course.peak.allocated))) {
            path class="area" d=(area) {}
            path class="level" d=(allocated) {}
            @if course.peak.reserved.is_some() { path class="over" d=(line(|point| point.reserved)) {} }
            line class="axis" x1="0" x2=(WIDTH) y1=(HEIGHT) y2=(HEIGHT) {}
            circle class="a" cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="4" {}
            text x="2" y="14" { (bytes(top as u64)) }
            text x="2" y=(HEIGHT + 15.0) { "entry 0" }
            text x=(WIDTH) y=(HEIGHT + 15.0) text-anchor="end" { "entry " (grouped(last as u64)) }
        }
        p.soft {
            "The area is what was handed out"
            @if course.peak.reserved.is_some() { ", the line above it what was reserved." } @else { ". What was reserved is not known." }
        }
        h3 { "At the peak, by category" }
        (rows(&course.categories, "Category", Others::default()))
        h3 { "At the peak, by the program's own line" }
        (rows(&course.lines, "Line", Others::default()))
        @if course.more_bytes > 0 { p.soft { "Other lines: " (bytes(course.more_bytes)) "." } }
    }
}

fn of_live(live: &Live) -> Markup {
    html! {
        @if !live.owners.is_empty() {
            h2 { "What it is for" }
            p.soft { "As `memscope-ctl owners` says it." }
            (rows(&live.categories, "Category", Others::default()))
            h3 { "Whose it is" }
            (rows(&live.owners, "Owner", live.other_owners))
        }
        @if !live.owners_at_peak.is_empty() {
            h2 { "What it was for at the peak" }
            p.soft { "As `memscope-ctl owners --at peak` says it." }
            (rows(&live.categories_at_peak, "Category", Others::default()))
            h3 { "Whose it was at the peak" }
            (rows(&live.owners_at_peak, "Owner", live.other_owners_at_peak))
        }
        h2 { "Leaks" }
        p { (live.leaks_headline) }
        @if !live.leaks.is_empty() {
            table {
                tr { th { "Line" } th { "Verdict" } th.n { "Grew by" } th.n { "Live" } th { "Why" } }
                @for leak in live.leaks.iter().take(MOST_ROWS) {
                    tr {
                        td.w { @if leak.line.is_empty() { "not known" } @else { (leak.line) } } td { (leak.verdict) }
                        td.n { (bytes(leak.growth_bytes)) } td.n { (bytes(leak.live_bytes)) } td.w { (leak.reason) }
                    }
                }
            }
            (more(live.other_leaks.saturating_add(live.leaks.len().saturating_sub(MOST_ROWS) as u64), "lines, which grew by less"))
        }
    }
}

/// Judges which rank is unlike the others.
pub(crate) fn judged(ranks: &[Figures]) -> Judgement {
    let ranks: Vec<Rank> = ranks
        .iter()
        .map(|rank| Rank {
            rank: rank.rank,
            peak_bytes: rank.peak_bytes(),
            reserved_bytes: Some(rank.sums.reserved),
            lines: rank
                .lines
                .iter()
                .map(|(name, (live_bytes, peak_bytes))| Line {
                    name: name.clone(),
                    live_bytes: *live_bytes,
                    peak_bytes: *peak_bytes,
                })
                .collect(),
            ..Rank::default()
        })
        .collect();
    memscope_ranks::judge(&ranks)
}

const fn metric(metric: Metric) -> &'static str {
    match metric {
        Metric::Peak => "peak",
        Metric::Reserved => "reserved",
        Metric::Floor => "floor",
        Metric::Growth => "growth",
        Metric::StepTime => "time of a step",
    }
}

fn beside(ranks: &[Figures]) -> Markup {
    let judgement = judged(ranks);
    let most = ranks.iter().map(|rank| rank.sums.reserved).max();
    let most = most.unwrap_or(0).max(1) as f64;
    let whole = |number: f64| bytes(number.max(0.0) as u64);
    html! {
        h2 { "The ranks beside one another" }
        table {
            tr { th { "Rank" } th.n { "Allocated" } th.n { "Reserved" } th.n { "Peak" } th {} }
            @for rank in ranks {
                tr {
                    td { (rank.rank) } td.n { (bytes(rank.sums.allocated)) } td.n { (bytes(rank.sums.reserved)) }
                    td.n { (or_unknown(rank.peak_bytes())) }
                    td.bar {
                        svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
                            rect class="area" width=(format!("{:.2}", 100.0 * rank.sums.reserved as f64 / most)) height="8" {}
                            rect class="a" width=(format!("{:.2}", 100.0 * rank.sums.allocated as f64 / most)) height="8" {}
                        }
                    }
                }
            }
        }
        @for odd in &judgement.odd {
            p.bad {
                b { "Rank " (odd.rank) " stands out." }
                @for finding in &odd.findings {
                    " Its " (metric(finding.metric)) " is " (whole(finding.value)) "; the median of its peers is "
                    (whole(finding.peers_median)) "."
                }
            }
            @if let Some(explained) = &odd.explained {
                table {
                    tr { th { "Line" } th.n { "This rank" } th.n { "Its peers" } th.n { "Difference" } }
                    @for line in &explained.lines {
                        tr {
                            td.w { (line.name) } td.n { (bytes(line.bytes)) } td.n { (bytes(line.peers_bytes)) }
                            td.n { (signed_bytes(line.difference() as i64)) }
                        }
                    }
                }
                // Only the lines are told that make up most of it.
                @if let Some(share) = explained.share {
                    p.soft { "These lines make up " (percent(Some(100.0 * share))) " of the difference." }
                }
            }
        }
        @if judgement.odd.is_empty() {
            @if judgement.comparisons == 0 {
                p { "There are too few ranks, or too few alike, to say whether one of them stands out." }
            } @else { p { "No rank stands out." } }
        }
    }
}

fn compared_with(other: &str, name: &str, compared: &[Compared]) -> Markup {
    let total: i128 = compared.iter().map(Compared::overhead).sum();
    html! {
        h2 { "Compared with " (other) }
        p.soft { "A is " (other) ", B is " (name) ". Categories by keywords in the stacks, as torchtitan's comparison gives them." }
        table {
            tr { th { "Category" } th.n { "A" } th.n { "B" } th.n { "Overhead" } th.n { "% of total overhead" } }
            @for row in compared {
                tr {
                    td { (row.category) } td.n { (bytes(row.a)) } td.n { (bytes(row.b)) } td.n { (titan::change(row.overhead())) }
                    td.n { @if let Some(share) = titan::share(row, compared) { (format!("{share:.2} %")) } @else { "-" } }
                }
            }
            tr { td { b { "Total" } } td {} td {} td.n { (titan::change(total)) } td {} }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::Leak;
    use crate::figures::Point;

    fn rank(rank: u64) -> Figures {
        let held = if rank == 7 { 2 << 30 } else { 1 << 30 };
        let peak = Point {
            entry: 1,
            time_us: None,
            allocated: held,
            reserved: Some(held),
        };
        let lines = (0..30).map(|line| (format!("line {line}"), (34 << 20, 34 << 20)));
        Figures {
            rank,
            source: String::new(),
            sums: crate::figures::Sums {
                reserved: held,
                ..crate::figures::Sums::default()
            },
            categories: Vec::new(),
            keywords: Vec::new(),
            top: Vec::new(),
            lines: match rank {
                7 => lines.collect(),
                _ => std::collections::BTreeMap::from([("main".to_owned(), (1 << 20, 1 << 20))]),
            },
            sizes: std::collections::BTreeMap::new(),
            courses: vec![DeviceCourse {
                device: 0,
                points: vec![peak],
                peak,
                categories: Vec::new(),
                lines: Vec::new(),
                more_bytes: 0,
            }],
            lacks_a_course: false,
            peak: None,
            profiles: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn rows_that_are_not_shown_are_told() {
        let row = |number: u64| Row {
            name: format!("owner {number}"),
            bytes: 1 << 20,
            blocks: 1,
        };
        let live = Live {
            categories: vec![row(0)],
            owners: (0..60).map(row).collect(),
            other_owners: Others {
                count: 300,
                bytes: 90 << 20,
            },
            leaks: (0..60)
                .map(|line| Leak {
                    line: format!("line {line}"),
                    verdict: "grows".to_owned(),
                    growth_bytes: 1 << 20,
                    live_bytes: 1 << 20,
                    reason: String::new(),
                })
                .collect(),
            other_leaks: 5,
            ..Live::default()
        };
        let page = of_live(&live).into_string();
        assert!(
            page.contains(">and 310 more of 100.00 MiB in all<"),
            "{page}"
        );
        assert!(page.contains(">and 15 more lines, which grew by less<"));
        assert!(
            !rows(&live.categories, "Category", Others::default())
                .into_string()
                .contains("more")
        );
        let report = Report {
            name: "n".to_owned(),
            made: String::new(),
            made_by: String::new(),
            ranks: (0..20).map(rank).collect(),
            live: None,
            compared: None,
        };
        let page = super::page(&report);
        assert!(page.contains(">and 4 more courses of further ranks, which are not drawn<"));
        assert!(page.contains("Rank 7 stands out"));
        assert!(page.contains(">These lines make up 66.4 % of the difference.<"));
    }
}
