//! Which module of a model made what the autograd graph has saved.
//!
//! An operation of the forward pass that uses a parameter belongs to the module that has the parameter. One that uses none lies between
//! operations that do, before it and behind it: it belongs to what these have in common. So a name never says more than the graph shows.
//!
//! Owns: which operations belong to which module. Refuses: to know which parameter a module has, which `uses` reads.

use std::collections::{HashMap, HashSet};

use memscope_memory::Memory;

use crate::graph::{Graph, NODE, Phase, Vertex};
use crate::heap::Heap;
use crate::objects::{Found, Label, Reference};
use crate::pages::ByAddress;
use crate::uses::{Place, Uses};

/// The operations that only pass on a parameter, as the graph calls them: they change its shape, its type or its device.
const PASS_ON: [&str; 16] = [
    "AliasBackward0",
    "AsStridedBackward0",
    "ExpandBackward0",
    "PermuteBackward0",
    "ReshapeAliasBackward0",
    "SelectBackward0",
    "SliceBackward0",
    "SplitBackward0",
    "SqueezeBackward1",
    "TBackward0",
    "ToCopyBackward0",
    "TransposeBackward0",
    "UnbindBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
];
/// The end of the graph at a parameter.
const END: &str = "AccumulateGrad";

/// The number of a place that is not known, and of none that has all of what it should have.
const UNKNOWN: u32 = u32::MAX;
const SEVERAL: u32 = u32::MAX - 1;

/// Places by numbers, so that nodes have them without a copy.
#[derive(Default)]
struct Places {
    all: Vec<Place>,
    numbers: HashMap<Place, u32>,
    both: HashMap<(u32, u32), u32>,
}

impl Places {
    fn number(&mut self, place: Option<&Place>) -> u32 {
        let Some(place) = place else {
            return SEVERAL;
        };
        if let Some(known) = self.numbers.get(place) {
            return *known;
        }
        let number = self.all.len() as u32;
        self.all.push(place.clone());
        self.numbers.insert(place.clone(), number);
        number
    }

    fn place(&self, number: u32) -> Option<&Place> {
        self.all.get(number as usize)
    }

    /// The innermost module that has both; what is not known has no say.
    fn both(&mut self, one: u32, other: u32) -> u32 {
        if one == other || other == UNKNOWN {
            return one;
        }
        if one == UNKNOWN {
            return other;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(known) = self.both.get(&pair) {
            return *known;
        }
        let (Some(first), Some(second)) = (self.place(one), self.place(other)) else {
            return SEVERAL;
        };
        let both = first.and(second);
        let both = self.number(both.as_ref());
        self.both.insert(pair, both);
        both
    }

    /// All of the model.
    fn whole(&mut self, number: u32) -> u32 {
        match self.place(number).map(Place::whole) {
            Some(whole) => self.number(Some(&whole)),
            None => number,
        }
    }
}

/// A node of the graph.
#[derive(Default)]
struct Node {
    /// The nodes whose results it needs.
    needs: Vec<u32>,
    /// The tensors that it saved, and their blocks: of an end the parameter.
    saved: Vec<(u64, Option<u64>)>,
    passes_on: bool,
    /// Whether the graph ends here.
    is_end: bool,
}

/// For each block that the graph has saved, the module that made it, as far as it is known.
pub(crate) fn of_saved<M: Memory + ?Sized>(
    heap: &mut Heap<'_, M>,
    graph: &Graph,
    uses: &Uses,
) -> ByAddress<Place> {
    if uses.of_tensors.is_empty() {
        return ByAddress::default();
    }
    places(&nodes(heap, graph), uses)
}

/// The nodes of the graph that something keeps alive.
fn nodes<M: Memory + ?Sized>(heap: &mut Heap<'_, M>, graph: &Graph) -> Vec<Node> {
    let all = graph.vertices.iter();
    let all = all.filter(|vertex| vertex.kind == NODE && vertex.phase != Phase::Nowhere);
    let numbers: ByAddress<u32> = all
        .clone()
        .zip(0..)
        .map(|(vertex, number)| (vertex.address, number))
        .collect();
    let mut found = Found::new();
    all.map(|vertex| node(heap, vertex, &numbers, &mut found))
        .collect()
}

fn node<M: Memory + ?Sized>(
    heap: &mut Heap<'_, M>,
    vertex: &Vertex,
    numbers: &ByAddress<u32>,
    found: &mut Found,
) -> Node {
    let name = heap.node_name(vertex.address);
    let mut node = Node {
        passes_on: PASS_ON.contains(&&*name),
        is_end: &*name == END,
        ..Node::default()
    };
    found.clear();
    heap.references_of_node(vertex.address, found);
    // What a function in Python has saved is kept by its object.
    for at in 0..found.len() {
        let Reference { label, target, .. } = found[at];
        if label == Label::Function
            && let Some(number) = heap.type_of(target)
        {
            let end = found.len();
            heap.references(target, number, found);
            let mut own = found.split_off(end);
            own.retain(|reference| reference.label == Label::Saved);
            found.append(&mut own);
        }
    }
    for reference in found {
        match reference.label {
            Label::Next => node.needs.extend(numbers.get(&reference.target)),
            Label::Saved => {
                let block = heap.memory_of(reference.target);
                node.saved.push((reference.target, block));
            }
            _ => {}
        }
    }
    node
}

fn places(nodes: &[Node], uses: &Uses) -> ByAddress<Place> {
    let mut places = Places::default();
    let own: Vec<u32> = nodes
        .iter()
        .map(|node| match node.is_end || node.passes_on {
            true => UNKNOWN,
            false => own(node, nodes, uses, &mut places),
        })
        .collect();
    let needs = |node: u32| &nodes[node as usize].needs;
    let mut needed_by: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
    for (number, node) in (0..).zip(nodes) {
        for other in &node.needs {
            needed_by[*other as usize].push(number);
        }
    }
    let before = nearest(&own, |node| &needed_by[node as usize], &mut places);
    let behind = nearest(&own, needs, &mut places);
    let mut made: ByAddress<u32> = ByAddress::default();
    let save = |node: &Node| !node.is_end && !node.passes_on;
    for (number, node) in nodes.iter().enumerate().filter(|(_, node)| save(node)) {
        let place = match (own[number], before[number], behind[number]) {
            // It may be outside of all modules: a loss, or what is done with the inputs.
            (UNKNOWN, model, UNKNOWN) | (UNKNOWN, UNKNOWN, model) => places.whole(model),
            (UNKNOWN, before, behind) => places.both(before, behind),
            (own, ..) => own,
        };
        // Where one of several nodes is not known, nothing is.
        let place = if place == UNKNOWN { SEVERAL } else { place };
        for block in node.saved.iter().filter_map(|(_, block)| *block) {
            let all = made.entry(block).or_insert(place);
            *all = places.both(*all, place);
        }
    }
    let known = made
        .into_iter()
        .filter_map(|(block, number)| Some((block, places.place(number)?.clone())));
    known.collect()
}

/// What the modules have in common whose parameters a node uses itself; not known if it uses none.
fn own(node: &Node, nodes: &[Node], uses: &Uses, places: &mut Places) -> u32 {
    let mut all = UNKNOWN;
    let mut add = |place: Option<&Option<Place>>| {
        if let Some(place) = place {
            let number = places.number(place.as_ref());
            all = places.both(all, number);
        }
    };
    // A parameter that needs no gradient is no end of the graph, but it is saved.
    for block in node.saved.iter().filter_map(|(_, block)| *block) {
        add(uses.of_blocks.get(&block));
    }
    let mut waiting = node.needs.clone();
    let mut seen: HashSet<u32> = HashSet::new();
    while let Some(number) = waiting.pop() {
        let node = &nodes[number as usize];
        if node.is_end {
            for (tensor, _) in &node.saved {
                add(uses.of_tensors.get(tensor));
            }
        } else if node.passes_on && seen.insert(number) {
            waiting.extend(&node.needs);
        }
    }
    all
}

/// For each node that is reached on these edges, what the nearest nodes have in common from which it is reached.
fn nearest<'e>(from: &[u32], edges: impl Fn(u32) -> &'e Vec<u32>, places: &mut Places) -> Vec<u32> {
    let mut reached = vec![UNKNOWN; from.len()];
    let mut distance = vec![u32::MAX; from.len()];
    let first = (0..).zip(from).filter(|(_, place)| **place != UNKNOWN);
    let mut level: Vec<(u32, u32)> = first.map(|(node, place)| (node, *place)).collect();
    let mut at = 0;
    while !level.is_empty() {
        at += 1;
        let mut next = Vec::new();
        for (node, place) in level {
            for other in edges(node) {
                let number = *other as usize;
                if from[number] != UNKNOWN || distance[number] < at {
                    continue;
                }
                if distance[number] > at {
                    distance[number] = at;
                    next.push(*other);
                }
                reached[number] = places.both(reached[number], place);
            }
        }
        level = next
            .into_iter()
            .map(|node| (node, reached[node as usize]))
            .collect();
    }
    reached
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MODEL: u32 = 3;

    fn place(module: &str) -> Option<Place> {
        Some(Place {
            owner: MODEL,
            module: module.to_owned(),
        })
    }

    /// A graph, and which modules have its parameters.
    #[derive(Default)]
    struct Case {
        nodes: Vec<Node>,
        uses: Uses,
    }

    impl Case {
        /// A node that needs these, and has saved the block with its own number.
        fn node(&mut self, needs: &[u32]) -> u32 {
            let number = self.nodes.len() as u32;
            self.nodes.push(Node {
                needs: needs.to_vec(),
                saved: vec![(0, Some(u64::from(number)))],
                ..Node::default()
            });
            number
        }

        /// The same with a parameter that something passes on.
        fn with_parameter(&mut self, needs: &[u32], place: Option<Place>) -> u32 {
            let tensor = 1000 + self.nodes.len() as u64;
            self.uses.of_tensors.insert(tensor, place);
            let end = self.node(&[]);
            self.nodes[end as usize].is_end = true;
            self.nodes[end as usize].saved = vec![(tensor, Some(tensor))];
            let passes_on = self.node(&[end]);
            self.nodes[passes_on as usize].passes_on = true;
            self.nodes[passes_on as usize].saved.clear();
            self.node(&[needs, &[passes_on]].concat())
        }

        fn told(&self) -> ByAddress<Place> {
            places(&self.nodes, &self.uses)
        }

        fn of(&self, node: u32) -> Option<Place> {
            self.told().get(&u64::from(node)).cloned()
        }
    }

    #[test]
    fn between_two_modules() {
        // One layer and a part of the next, with what goes past the first.
        let mut case = Case::default();
        let up = case.with_parameter(&[], place("layers.1.up"));
        let activation = case.node(&[up]);
        let down = case.with_parameter(&[activation], place("layers.1.down"));
        let sum = case.node(&[up, down]);
        let next = case.with_parameter(&[sum], place("layers.10.up"));
        let loss = case.node(&[next]);
        assert_eq!(case.of(up), place("layers.1.up"));
        assert_eq!(case.of(activation), place("layers.1"));
        assert_eq!(case.of(down), place("layers.1.down"));
        assert_eq!(case.of(sum), place("layers"));
        assert_eq!(case.of(next), place("layers.10.up"));
        assert_eq!(case.of(loss), place(""));
        assert_eq!(case.told().len(), 6);
    }

    #[test]
    fn what_several_have_belongs_to_none_of_them() {
        let mut case = Case::default();
        let up = case.with_parameter(&[], place("a.up"));
        let down = case.with_parameter(&[up], place("a.down"));
        // Both have saved the same.
        case.nodes[down as usize].saved.push((0, Some(up.into())));
        // A parameter that several models have.
        let shared = case.with_parameter(&[down], None);
        assert_eq!(case.of(up), place("a"));
        assert_eq!(case.of(down), place("a.down"));
        assert_eq!(case.of(shared), None);
        // Between two models.
        let mut case = Case::default();
        let one = case.with_parameter(&[], place("a.up"));
        let between = case.node(&[one]);
        let other = Some(Place {
            owner: MODEL + 1,
            module: "a.up".to_owned(),
        });
        let two = case.with_parameter(&[between], other.clone());
        assert_eq!(case.of(one), place("a.up"));
        assert_eq!(case.of(between), None);
        assert_eq!(case.of(two), other);
    }

    #[test]
    fn of_graphs_without_parameters_and_torn_ones_nothing_is_told() {
        let mut case = Case::default();
        case.node(&[1]);
        case.node(&[0]);
        assert!(case.told().is_empty());
        // Nodes that pass on to one another, as no graph has them.
        case.nodes.iter_mut().for_each(|node| node.passes_on = true);
        case.node(&[0]);
        assert!(case.told().is_empty());
        // One that saved the same as a node of a model is not known.
        let up = case.with_parameter(&[], place("up"));
        assert_eq!(case.of(up), place("up"));
        let lonely = case.node(&[]);
        case.nodes[lonely as usize].saved = vec![(0, Some(up.into()))];
        assert_eq!(case.of(up), None);
    }
}
