//! The ways of a reading, each in a bounded number of steps.

use crate::answer::{Holder, Link, Reading};

/// Most steps of a way that are told: half of them from its beginning, and half from its end; of what lies behind the step into the
/// autograd graph half as many more. The way to the last element of a linked
/// list is as long as the list, and all of them together would take the square of that.
pub const MOST_STEPS: usize = 256;
const HALF: usize = MOST_STEPS / 2;

/// What is known of the way to a holder.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Number of holders before it.
    depth: usize,
    /// The last holder on the way that is among the first half of the most steps.
    head: u32,
    /// The first step into the autograd graph, if there is one.
    graph: Option<u32>,
    /// Whether every holder on the way is sure.
    is_sure: bool,
}

/// The ways to all holders of a reading. What they have in common is looked at once.
#[derive(Debug)]
pub struct Ways<'r> {
    reading: &'r Reading,
    marks: Vec<Mark>,
}

/// A way to a holder.
#[derive(Debug)]
pub struct Steps<'r> {
    /// The holders, the first first.
    pub steps: Vec<&'r Holder>,
    /// What each adds to the text of the way (see [`Reading::parts`]); `…` stands before one that is not reached from the step before
    /// it, but from steps that are left out.
    pub parts: Vec<String>,
    /// Whether every holder on the way, also of the steps that are left out, was there with the same
    /// reference when it was read for a second time.
    pub is_sure: bool,
}

impl<'r> Ways<'r> {
    /// Looks at each holder once.
    pub fn new(reading: &'r Reading) -> Ways<'r> {
        let mut marks: Vec<Mark> = Vec::with_capacity(reading.holders.len());
        for (number, holder) in (0u32..).zip(&reading.holders) {
            // A parent stands before its children; whoever says otherwise gets a way that begins here.
            let before = holder.parent.and_then(|parent| marks.get(parent as usize));
            let is_graph = matches!(holder.link, Link::GradFn);
            let depth = before.map_or(0, |before| before.depth + 1);
            marks.push(Mark {
                depth,
                head: match before {
                    Some(before) if depth >= HALF => before.head,
                    _ => number,
                },
                graph: before
                    .and_then(|before| before.graph)
                    .or(is_graph.then_some(number)),
                is_sure: holder.is_sure && before.is_none_or(|before| before.is_sure),
            });
        }
        Ways { reading, marks }
    }

    /// The way to a holder. What the autograd graph adds to a way is told apart from what leads to the graph, so that the step into the
    /// graph is always told.
    pub fn to(&self, holder: u32) -> Steps<'r> {
        let mut steps = Vec::new();
        let mut gaps = Vec::new();
        let mark = self.marks.get(holder as usize);
        let graph = mark
            .and_then(|mark| mark.graph)
            .filter(|graph| *graph != holder);
        if let Some(graph) = graph {
            self.add(graph, &mut steps, &mut gaps);
            let end = self.last(holder, HALF, Some(graph));
            let first = end
                .last()
                .and_then(|first| self.reading.holders.get(*first as usize));
            // Of the graph itself only the end is told. What has left it again has a gap like any other.
            let is_graph = |first: &Holder| matches!(first.link, Link::Next | Link::Saved);
            if first.is_some_and(|first| first.parent != Some(graph) && !is_graph(first)) {
                gaps.push(steps.len());
            }
            steps.extend(end.iter().rev());
        } else {
            self.add(holder, &mut steps, &mut gaps);
        }
        let steps: Vec<&Holder> = steps
            .into_iter()
            .filter_map(|number| self.reading.holders.get(number as usize))
            .collect();
        let mut parts = self.reading.parts(&steps);
        for gap in gaps {
            if let Some(part) = parts.get_mut(gap) {
                part.insert(0, '…');
            }
        }
        Steps {
            steps,
            parts,
            is_sure: mark.is_some_and(|mark| mark.is_sure),
        }
    }

    /// The text of the way to a holder.
    pub fn path(&self, holder: u32) -> String {
        self.to(holder).parts.concat()
    }

    /// Adds the way to a holder, and the place of the step before which some are left out.
    fn add(&self, holder: u32, steps: &mut Vec<u32>, gaps: &mut Vec<usize>) {
        let Some(mark) = self.marks.get(holder as usize) else {
            return;
        };
        if mark.depth < MOST_STEPS {
            steps.extend(self.last(holder, MOST_STEPS, None).iter().rev());
            return;
        }
        steps.extend(self.last(mark.head, HALF, None).iter().rev());
        gaps.push(steps.len());
        steps.extend(self.last(holder, HALF, None).iter().rev());
    }

    /// At most so many holders from this one towards the beginning of its way, without `until`.
    fn last(&self, holder: u32, most: usize, until: Option<u32>) -> Vec<u32> {
        let mut found = Vec::new();
        let mut next = Some(holder);
        while let Some(number) = next.filter(|number| Some(*number) != until && found.len() < most)
        {
            let Some(holder) = self.reading.holders.get(number as usize) else {
                break;
            };
            found.push(number);
            next = holder.parent.filter(|parent| *parent < number);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(links: impl IntoIterator<Item = Link>) -> Reading {
        let mut reading = Reading::default();
        reading.kinds.push("Node".to_owned());
        for link in links {
            let number = reading.holders.len() as u32;
            reading.holders.push(Holder {
                parent: number.checked_sub(1),
                link,
                kind: 0,
                length: None,
                is_sure: number != 300,
            });
        }
        reading
    }

    fn list(length: usize) -> Reading {
        let name = Link::Module {
            name: "m".to_owned(),
            file: String::new(),
        };
        let next = |_| Link::Attribute("next".to_owned());
        chain(std::iter::once(name).chain((1..length).map(next)))
    }

    #[test]
    fn a_way_that_is_not_long_is_told_as_it_is() {
        let reading = list(MOST_STEPS);
        let ways = Ways::new(&reading);
        for end in 0..MOST_STEPS as u32 {
            assert_eq!(ways.path(end), reading.path(end));
            assert_eq!(ways.to(end).steps, reading.way(end));
        }
    }

    #[test]
    fn of_a_long_way_the_beginning_and_the_end_are_told() {
        let reading = list(100_000);
        let ways = Ways::new(&reading);
        for end in [MOST_STEPS as u32, 299, 50_000, 99_999] {
            let way = ways.to(end);
            assert_eq!(way.steps.len(), MOST_STEPS);
            assert!(std::ptr::eq(way.steps[0], &reading.holders[0]));
            let last = &reading.holders[end as usize];
            assert!(std::ptr::eq(way.steps[MOST_STEPS - 1], last));
            // Ways that differ in what is left out read alike, so that what they lead to is one row.
            let half = ".next".repeat(HALF - 1);
            assert_eq!(way.parts.concat(), format!("m{half}….next{half}"));
            assert_eq!(way.is_sure, end < 300);
        }
    }

    #[test]
    fn the_step_into_the_graph_is_told_whatever_follows() {
        let mut links = vec![Link::Attribute("loss".to_owned()), Link::GradFn];
        links.extend(std::iter::repeat_n(Link::Next, 70_000));
        links.push(Link::Saved);
        let reading = chain(links);
        let ways = Ways::new(&reading);
        let way = ways.to(reading.holders.len() as u32 - 1);
        assert!(way.steps.len() <= MOST_STEPS);
        assert_eq!(way.parts.concat(), ".loss.grad_fn<Node>.saved");
        // A Python object that belongs to the graph has a long list.
        let mut links = vec![Link::Attribute("loss".to_owned()), Link::GradFn];
        links.push(Link::Function);
        links.extend((0..300).map(|_| Link::Attribute("next".to_owned())));
        let reading = chain(links);
        let end = reading.holders.len() as u32 - 1;
        let tail = ".next".repeat(HALF);
        assert_eq!(
            Ways::new(&reading).path(end),
            format!(".loss.grad_fn….next{}", &tail[5..])
        );
    }
}
