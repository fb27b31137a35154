//! What was decided about stacks, and sums by name.

use crate::picture::{Picture, own_line};
use crate::rules::RuleSets;
use std::collections::HashMap;

/// A name with how many blocks and bytes it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the blocks were put together by: a category, or a line of the program.
    pub name: String,
    /// Sum of the sizes of these blocks, bytes.
    pub bytes: u64,
    /// Number of these blocks.
    pub blocks: u64,
}

/// Sums by name.
#[derive(Default)]
pub(crate) struct Tally(HashMap<String, (u64, u64)>);

impl Tally {
    pub(crate) fn add(&mut self, name: &str, bytes: u64) {
        if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), (0, 0));
        }
        if let Some(sum) = self.0.get_mut(name) {
            *sum = (sum.0.saturating_add(bytes), sum.1 + 1);
        }
    }

    /// The rows, most bytes first.
    pub(crate) fn rows(self) -> Vec<Row> {
        let row = |(name, (bytes, blocks))| Row {
            name,
            bytes,
            blocks,
        };
        let mut rows: Vec<Row> = self.0.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}

/// What was decided about stacks: each is looked at once, however many blocks have it.
pub(crate) struct Decided<'p> {
    picture: &'p Picture,
    rules: &'p RuleSets,
    titan: HashMap<Option<u32>, String>,
    keywords: HashMap<Option<u32>, String>,
    lines: HashMap<Option<u32>, String>,
}

impl<'p> Decided<'p> {
    pub(crate) fn new(picture: &'p Picture, rules: &'p RuleSets) -> Decided<'p> {
        Decided {
            picture,
            rules,
            titan: HashMap::new(),
            keywords: HashMap::new(),
            lines: HashMap::new(),
        }
    }

    /// The category of torchtitan's analyzer.
    pub(crate) fn titan(&mut self, stack: Option<u32>) -> String {
        let (picture, rules) = (self.picture, self.rules);
        let decide = || rules.titan(picture.frames(stack));
        self.titan.entry(stack).or_insert_with(decide).clone()
    }

    /// The category of torchtitan's comparison.
    pub(crate) fn keyword(&mut self, stack: Option<u32>) -> String {
        let (picture, rules) = (self.picture, self.rules);
        let decide = || rules.keyword(picture.frames(stack));
        self.keywords.entry(stack).or_insert_with(decide).clone()
    }

    /// The program's own line.
    pub(crate) fn line(&mut self, stack: Option<u32>) -> String {
        let picture = self.picture;
        let decide = || own_line(picture.frames(stack)).map_or_else(String::new, |f| f.text());
        self.lines.entry(stack).or_insert_with(decide).clone()
    }
}
