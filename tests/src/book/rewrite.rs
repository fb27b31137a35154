//! The lines of an answer as a page shows them, made of a new answer: what was left out before is left out again.

use std::collections::HashMap;

use crate::book::mask::{LEFT_OUT, masked};

/// Lines less alike than this are not the same line, changed.
const ALIKE: f64 = 0.5;

/// The new answer in place of what a page shows. Where the page leaves lines out (`…` alone), the lines of the new answer that
/// are most like those that it shows are shown, and all between two of them that had nothing left out between them.
///
/// `columns` is the width that the answer was asked for in: a line that was broken there is shown whole or not at all.
pub fn shortened(page: &[String], answer: &[String], columns: usize) -> Vec<String> {
    let answer = &whole_lines(answer, columns);
    shown(page, answer)
        .iter()
        .flat_map(|line| line.split('\n').map(str::to_owned))
        .collect()
}

/// How much further in than its beginning the rest of a sentence stands at most.
const REST: usize = 8;

/// Lines with what was broken for want of room put together again, with a line break in between.
fn whole_lines(answer: &[String], columns: usize) -> Vec<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut whole: Vec<String> = Vec::new();
    // What was put together last, and the indentation of its first line.
    let mut last = (String::new(), 0);
    for line in answer {
        let word = line.split_whitespace().next().unwrap_or_default();
        let no_room = last.0.chars().count() + 1 + word.chars().count() > columns;
        // What belongs to a column stands further in than the rest of a sentence.
        let deeper = indent(line).saturating_sub(last.1);
        let goes_on = !word.is_empty() && (1..=REST).contains(&deeper) && no_room;
        match whole.last_mut() {
            Some(begun) if goes_on => {
                begun.push('\n');
                begun.push_str(line);
                last.0.clone_from(line);
            }
            _ => {
                last = (line.clone(), indent(line));
                whole.push(line.clone());
            }
        }
    }
    whole
}

fn shown(page: &[String], answer: &[String]) -> Vec<String> {
    let left_out = |line: &String| line.trim() == LEFT_OUT;
    if !page.iter().any(left_out) {
        return answer.to_vec();
    }
    // Index among the page's lines, and index of the line of the answer that it has become.
    let pairs = aligned(page, answer);
    let Some((&(first_page, first), &(last_page, last))) = pairs.first().zip(pairs.last()) else {
        return vec![LEFT_OUT.to_owned()];
    };
    let gap = |lines: &[String]| lines.iter().find(|line| left_out(line)).cloned();
    let mut shown = Vec::new();
    match gap(&page[..first_page]) {
        Some(line) if first > 0 => shown.push(line),
        Some(_) => {}
        None => shown.extend_from_slice(&answer[..first]),
    }
    shown.push(answer[first].clone());
    for two in pairs.windows(2) {
        let [(page_from, from), (page_to, to)] = two else {
            continue;
        };
        match gap(&page[*page_from..*page_to]) {
            Some(line) if to - from > 1 => shown.push(line),
            Some(_) => {}
            None => shown.extend_from_slice(&answer[from + 1..*to]),
        }
        shown.push(answer[*to].clone());
    }
    match gap(&page[last_page..]) {
        Some(line) if last + 1 < answer.len() => shown.push(line),
        Some(_) => {}
        None => shown.extend_from_slice(&answer[last + 1..]),
    }
    shown
}

/// Which line of the answer each line of the page has become: the pairs, in the order of both, that are most alike together.
fn aligned(page: &[String], answer: &[String]) -> Vec<(usize, usize)> {
    let likeness = |at: usize, on: usize| {
        let alike = likeness(&page[at], &answer[on]);
        (page[at].trim() != LEFT_OUT && alike >= ALIKE).then_some(alike)
    };
    // best[at][on]: the sum of likeness that the lines from `at` and `on` on can have.
    let mut best = vec![vec![0.0f64; answer.len() + 1]; page.len() + 1];
    for at in (0..page.len()).rev() {
        for on in (0..answer.len()).rev() {
            let paired = likeness(at, on).map_or(0.0, |alike| alike + best[at + 1][on + 1]);
            best[at][on] = paired.max(best[at + 1][on]).max(best[at][on + 1]);
        }
    }
    let (mut at, mut on, mut pairs) = (0, 0, Vec::new());
    while at < page.len() && on < answer.len() {
        let paired = likeness(at, on).map_or(0.0, |alike| alike + best[at + 1][on + 1]);
        if paired > 0.0 && paired >= best[at][on] {
            pairs.push((at, on));
            (at, on) = (at + 1, on + 1);
        } else if best[at + 1][on] >= best[at][on + 1] {
            at += 1;
        } else {
            on += 1;
        }
    }
    pairs
}

/// The share of the masked words that two lines have in common. `…` in a line of the page takes the place of words, and so
/// only the words before it count.
fn likeness(page: &str, answer: &str) -> f64 {
    let cut = page.split(LEFT_OUT).next().unwrap_or_default();
    let (page_words, mut answer_words) = (masked(cut), masked(answer));
    if cut.len() < page.len() {
        answer_words.truncate(page_words.len());
    }
    let total = page_words.len() + answer_words.len();
    if total == 0 {
        return 0.0;
    }
    let mut left: HashMap<&String, usize> = HashMap::new();
    for word in &answer_words {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in &page_words {
        if let Some(count) = left.get_mut(word)
            && *count > 0
        {
            *count -= 1;
            common += 1;
        }
    }
    2.0 * f64::from(common) / total as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_was_left_out_is_left_out_again() {
        let page = lines(
            "…\n allocated  5 MiB\n reserved  6 MiB\n…\nWhat is not shown\n  baseline: 3 MiB",
        );
        let answer = lines(
            "python, as of\n\n allocated now  7.00 MiB\n pending  0 B\n reserved  9.00 MiB\n peak  1 MiB\n\n\
             What is not shown\n  baseline: 4 MiB",
        );
        let shown = lines(
            "…\n allocated now  7.00 MiB\n pending  0 B\n reserved  9.00 MiB\n…\nWhat is not shown\n  baseline: 4 MiB",
        );
        assert_eq!(shortened(&page, &answer, 100), shown);
        assert_eq!(shortened(&lines("old"), &answer, 100), answer);
        // What was broken into two lines at 20 columns.
        let page = lines("first line\n…");
        let answer = lines("first line of two or\n    three\nsecond");
        let shown = lines("first line of two or\n    three\n…");
        assert_eq!(shortened(&page, &answer, 20), shown);
    }
}
