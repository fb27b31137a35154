//! The links between pages.

use std::collections::HashMap;

use crate::book::page::{Page, all_pages};
use crate::places::root;

/// Each relative link of the book that points at nothing, as `PAGE:LINE: TARGET`.
pub fn broken_links() -> Vec<String> {
    let pages = all_pages();
    let mut anchors: HashMap<String, Vec<String>> = HashMap::new();
    let mut broken = Vec::new();
    for page in &pages {
        for (line, target) in links(page) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let wanted = if file.is_empty() {
                root().join(&page.name)
            } else {
                root().join(&page.name).with_file_name("").join(file)
            };
            let fault = match wanted.canonicalize() {
                Err(_) => Some("does not exist"),
                Ok(found) if !anchor.is_empty() => {
                    let name = found.to_string_lossy().into_owned();
                    let known = anchors.entry(name).or_insert_with(|| headings(&found));
                    (!known.iter().any(|known| known == anchor)).then_some("has no such heading")
                }
                Ok(_) => None,
            };
            if let Some(fault) = fault {
                broken.push(format!("{}:{line}: {target} {fault}", page.name));
            }
        }
    }
    broken
}

/// Pages of docs/ that SUMMARY.md, the book's table of contents, does not list, or lists twice, which mdBook refuses.
pub fn pages_without_one_place() -> Vec<String> {
    let pages = all_pages();
    let summary = pages.iter().find(|page| page.name == "docs/SUMMARY.md");
    let listed: Vec<String> = links(summary.expect("docs/SUMMARY.md"))
        .into_iter()
        .map(|(_, target)| format!("docs/{target}"))
        .collect();
    let places = |name: &String| listed.iter().filter(|listed| *listed == name).count();
    let names = pages.iter().map(|page| page.name.clone());
    names
        .filter(|name| name != "README.md" && name != "docs/SUMMARY.md" && places(name) != 1)
        .collect()
}

/// The targets of a page's links, with the number of the line in which each begins. A link's text may be broken into two lines.
fn links(page: &Page) -> Vec<(usize, String)> {
    let text = without_code(&page.prose().join("\n"));
    let mut found = Vec::new();
    for (at, _) in text.match_indices("](") {
        let target: String = text[at + 2..]
            .chars()
            .take_while(|end| *end != ')')
            .collect();
        found.push((text[..at].matches('\n').count() + 1, target));
    }
    found
}

/// A text with what is in backticks blanked.
fn without_code(text: &str) -> String {
    let mut inside = false;
    let blank = text.chars().map(|letter| {
        inside ^= letter == '`';
        if inside && letter != '\n' {
            ' '
        } else {
            letter
        }
    });
    blank.collect()
}

/// The anchors of a file's headings, as GitHub and mdBook make them: small letters, digits, `-` and `_`, with `-` for a space.
/// A heading that is there twice has `-1` at its end the second time.
fn headings(file: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut anchors: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        inside ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if inside || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().to_lowercase();
        let anchor: String = kept
            .chars()
            .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'))
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect();
        let again = anchors
            .iter()
            .filter(|other| {
                let rest = other.strip_prefix(anchor.as_str());
                rest.is_some_and(|rest| {
                    rest.is_empty() || rest.trim_start_matches('-').parse::<u32>().is_ok()
                })
            })
            .count();
        anchors.push(match again {
            0 => anchor,
            count => format!("{anchor}-{count}"),
        });
    }
    anchors
}
