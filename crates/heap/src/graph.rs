//! The search: from where names begin to all that they keep alive, on the shortest way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memscope_memory::Memory;

use crate::cycles;
use crate::heap::{Heap, Minor};
use crate::numbers::Numbers;
use crate::objects::{Found, Label, Reference, TELLS_LITTLE, What};
use crate::shapes::{Kind, Part, Seen};

/// The number that stands for no vertex.
pub(crate) const NONE: u32 = u32::MAX;
/// [`Vertex::kind`] of a tensor in PyTorch's own memory.
pub(crate) const IMPL: u32 = u32::MAX;
/// [`Vertex::kind`] of a node of the autograd graph.
pub(crate) const NODE: u32 = u32::MAX - 1;
/// Most objects that a reading looks at; it ends with what it has.
pub const MOST_OBJECTS: usize = 3_000_000;
/// Up to this distance there is a list of its own for each.
const FURTHEST: usize = 1 << 16;
/// No way was found.
const NEVER: u32 = u32::MAX;

/// From where something was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// A module or a frame.
    Named,
    /// Something that is kept alive by what is not Python.
    Outside,
    /// Something that only keeps itself alive.
    Garbage,
    /// It was not reached from anything so far.
    Nowhere,
}

/// An object, a tensor or a node of the autograd graph.
#[derive(Clone, Debug)]
pub(crate) struct Vertex {
    pub address: u64,
    /// Number of its type, or [`IMPL`] or [`NODE`].
    pub kind: u32,
    /// Whose reference is the last one on the shortest way.
    pub parent: u32,
    pub label: Label,
    pub distance: u32,
    pub phase: Phase,
    /// Number of references to it from what was looked at.
    pub references: u32,
    expanded: bool,
}

impl Vertex {
    fn what(&self) -> What {
        match self.kind {
            IMPL => What::Impl,
            NODE => What::Node,
            _ => What::Object,
        }
    }
}

/// All that was found.
#[derive(Default)]
pub(crate) struct Graph {
    pub vertices: Vec<Vertex>,
    numbers: Numbers,
    /// Vertices by their distance, which are still to be looked at.
    waiting: Vec<Vec<u32>>,
    /// The same from [`FURTHEST`] on, where few are: their distances and numbers.
    far: BinaryHeap<Reverse<(u32, u32)>>,
    /// References to what makes an object a module of `torch.nn` or an optimizer.
    pub parts: Vec<Seen>,
    /// Whether there were more objects than are looked at.
    pub is_cut: bool,
}

impl Graph {
    /// One with room for what so many objects that the collector knows lead to.
    pub fn of(objects: usize) -> Graph {
        let room = (objects + objects / 2).min(MOST_OBJECTS);
        Graph {
            vertices: Vec::with_capacity(room),
            ..Graph::default()
        }
    }

    /// The vertex at the end of a reference; `None` for what cannot lead to a tensor.
    fn vertex<M: Memory + ?Sized>(
        &mut self,
        heap: &mut Heap<'_, M>,
        target: u64,
        what: What,
    ) -> Option<u32> {
        // Most references lead to numbers and texts, which are told by their types; to look for them among the vertices costs more.
        let kind = match what {
            What::Impl => IMPL,
            What::Node => NODE,
            What::Object => {
                let number = heap.type_of(target)?;
                match heap.types[number as usize].kind {
                    Kind::Leaf => return None,
                    _ => number,
                }
            }
        };
        if let Some(known) = self.numbers.get(target) {
            return Some(known);
        }
        if self.vertices.len() >= MOST_OBJECTS {
            self.is_cut = true;
            return None;
        }
        let number = self.vertices.len() as u32;
        self.vertices.push(Vertex {
            address: target,
            kind,
            parent: NONE,
            label: Label::Outside,
            distance: NEVER,
            phase: Phase::Nowhere,
            references: 0,
            expanded: false,
        });
        self.numbers.insert(target, number);
        Some(number)
    }

    /// The vertex at this address, if something leads there.
    pub fn number_of(&self, address: u64) -> Option<u32> {
        self.numbers.find(address)
    }

    fn expand<M: Memory + ?Sized>(heap: &mut Heap<'_, M>, vertex: &Vertex, found: &mut Found) {
        found.clear();
        match vertex.kind {
            IMPL => heap.references_of_tensor(vertex.address, found),
            NODE => heap.references_of_node(vertex.address, found),
            number => heap.references(vertex.address, number, found),
        }
    }

    /// The references that a vertex has now.
    pub fn references<M: Memory + ?Sized>(heap: &mut Heap<'_, M>, vertex: &Vertex) -> Found {
        let mut found = Found::new();
        Self::expand(heap, vertex, &mut found);
        found
    }

    fn reach(&mut self, number: u32, parent: u32, label: Label, distance: u32, phase: Phase) {
        let vertex = &mut self.vertices[number as usize];
        // A module is called by its name, also where a variable has it.
        let is_module = vertex.parent == NONE && matches!(vertex.label, Label::Module(_));
        if is_module || (phase, distance) >= (vertex.phase, vertex.distance) {
            return;
        }
        (vertex.parent, vertex.label) = (parent, label);
        (vertex.distance, vertex.phase) = (distance, phase);
        let at = distance as usize;
        if at >= FURTHEST {
            self.far.push(Reverse((distance, number)));
            return;
        }
        if self.waiting.len() <= at {
            self.waiting.resize_with(at + 1, Vec::new);
        }
        self.waiting[at].push(number);
    }

    /// The vertex that waits with the least distance, and that distance. None of those before `at` waits.
    fn nearest(&mut self, at: &mut usize) -> Option<(u32, u32)> {
        while let Some(waiting) = self.waiting.get_mut(*at) {
            match waiting.pop() {
                Some(number) => return Some((number, *at as u32)),
                None => *at += 1,
            }
        }
        self.far.pop().map(|Reverse((at, number))| (number, at))
    }

    /// Finds the shortest ways from these seeds, each with its distance, to all that was not reached in an earlier phase.
    pub fn search<M: Memory + ?Sized>(
        &mut self,
        heap: &mut Heap<'_, M>,
        seeds: &[(Reference, u32)],
        phase: Phase,
    ) {
        for (seed, distance) in seeds {
            if let Some(number) = self.vertex(heap, seed.target, seed.what) {
                if phase == Phase::Named {
                    self.vertices[number as usize].references += 1;
                }
                self.reach(number, NONE, seed.label, *distance, phase);
            }
        }
        let mut found = Found::new();
        let mut at = 0;
        while let Some((number, distance)) = self.nearest(&mut at) {
            let vertex = &mut self.vertices[number as usize];
            if vertex.distance != distance || vertex.phase != phase {
                continue;
            }
            let counts = !std::mem::replace(&mut vertex.expanded, true);
            let vertex = vertex.clone();
            Self::expand(heap, &vertex, &mut found);
            if heap.pages.is_spent() {
                self.is_cut = true;
                break;
            }
            for reference in &found {
                let Some(next) = self.vertex(heap, reference.target, reference.what) else {
                    continue;
                };
                let part = self.part(heap, reference, next);
                if counts {
                    self.vertices[next as usize].references += 1;
                    self.keep_part(number, part, reference.target);
                }
                // The dictionaries in which a module of `torch.nn` keeps what it consists of are no way of their own.
                let cost = match part {
                    Some(part) if part.is_of_module() => 0,
                    Some(Part::Groups) => TELLS_LITTLE,
                    _ => reference.label.cost(),
                };
                let distance = vertex.distance.saturating_add(cost);
                self.reach(next, number, reference.label, distance, phase);
            }
        }
        self.waiting.clear();
        self.far.clear();
    }

    /// Whether this is a reference to what makes an object a module of `torch.nn` or an optimizer.
    fn part<M: Memory + ?Sized>(
        &self,
        heap: &mut Heap<'_, M>,
        reference: &Reference,
        next: u32,
    ) -> Option<Part> {
        let (Label::Key(name) | Label::Attribute(name)) = reference.label else {
            return None;
        };
        let kind = heap
            .types
            .get(self.vertices[next as usize].kind as usize)?
            .kind;
        if !matches!(kind, Kind::Dict | Kind::List) {
            return None;
        }
        match heap.texts.get(&name) {
            Some(known) => Part::of(known.as_deref()?, kind),
            None => Part::of(&heap.string(name)?, kind),
        }
    }

    fn keep_part(&mut self, from: u32, part: Option<Part>, address: u64) {
        if let Some(part) = part {
            self.parts.push(Seen {
                from,
                part,
                address,
            });
        }
    }

    /// Looks at all objects that are not reached from any name, and says which are kept alive by something that is not Python, and which
    /// only keep one another alive: as the garbage collector does, by the references that are counted and were not seen.
    pub fn rest<M: Memory + ?Sized>(&mut self, heap: &mut Heap<'_, M>, tracked: &[u64]) {
        let mut found = Found::new();
        let mut rest = Vec::new();
        for object in tracked {
            // Most of them are vertices already.
            let known = self.numbers.get(*object);
            if let Some(number) = known.or_else(|| self.vertex(heap, *object, What::Object))
                && self.vertices[number as usize].phase == Phase::Nowhere
            {
                rest.push(number);
            }
        }
        let mut at = 0;
        while let Some(number) = rest.get(at).copied() {
            at += 1;
            let vertex = &mut self.vertices[number as usize];
            if std::mem::replace(&mut vertex.expanded, true) {
                continue;
            }
            let vertex = vertex.clone();
            Self::expand(heap, &vertex, &mut found);
            if heap.pages.is_spent() {
                self.is_cut = true;
                return;
            }
            for reference in &found {
                if let Some(next) = self.vertex(heap, reference.target, reference.what) {
                    let part = self.part(heap, reference, next);
                    self.keep_part(number, part, reference.target);
                    let next_one = &mut self.vertices[next as usize];
                    next_one.references += 1;
                    if next_one.phase == Phase::Nowhere && !next_one.expanded {
                        rest.push(next);
                    }
                }
            }
        }
        rest.sort_unstable();
        rest.dedup();
        let outside: Vec<(Reference, u32)> = rest
            .iter()
            .filter(|number| {
                let vertex = self.vertices[**number as usize].clone();
                // What cannot be counted is not taken for garbage.
                Self::count(heap, &vertex).is_none_or(|count| count > u64::from(vertex.references))
            })
            .map(|number| (self.seed(*number, Label::Outside), 0))
            .collect();
        self.search(heap, &outside, Phase::Outside);
        if self.is_cut {
            return;
        }
        rest.retain(|number| self.vertices[*number as usize].phase == Phase::Nowhere);
        let garbage: Vec<(Reference, u32)> = self
            .beginnings(heap, &rest)
            .into_iter()
            .map(|number| {
                let vertex = &self.vertices[number as usize];
                let kind = heap.types.get(vertex.kind as usize).map(|made| made.kind);
                // An object of a class says more of a cycle than a dictionary in it, and anything says more than the tensor itself.
                let distance = match kind {
                    Some(Kind::Other) => 0,
                    Some(Kind::Type) => 8,
                    Some(Kind::Tensor) | None => 32,
                    Some(_) => 16,
                };
                (self.seed(number, Label::Garbage), distance)
            })
            .collect();
        self.search(heap, &garbage, Phase::Garbage);
    }

    /// Those of these vertices, which are all the garbage, from which all of it is reached.
    fn beginnings<M: Memory + ?Sized>(&self, heap: &mut Heap<'_, M>, garbage: &[u32]) -> Vec<u32> {
        let mut found = Found::new();
        let mut edges = Vec::new();
        for (from, number) in (0u32..).zip(garbage) {
            Self::expand(heap, &self.vertices[*number as usize], &mut found);
            let targets = found
                .iter()
                .filter_map(|reference| self.numbers.find(reference.target))
                .filter_map(|number| garbage.binary_search(&number).ok());
            edges.extend(targets.map(|to| (from, to as u32)));
        }
        let is_first = cycles::beginnings(garbage.len(), &edges);
        let first = garbage
            .iter()
            .zip(is_first)
            .filter(|(_, is_first)| *is_first);
        first.map(|(number, _)| *number).collect()
    }

    fn seed(&self, number: u32, label: Label) -> Reference {
        let vertex = &self.vertices[number as usize];
        Reference {
            label,
            target: vertex.address,
            what: vertex.what(),
        }
    }

    /// How many references to a vertex there are, as it counts itself.
    pub fn count<M: Memory + ?Sized>(heap: &mut Heap<'_, M>, vertex: &Vertex) -> Option<u64> {
        match vertex.what() {
            What::Object => {
                let count = heap.pages.word(vertex.address)?;
                // From 3.12 on it is a number of 32 bits.
                Some(match heap.minor {
                    Minor(12..) => count & 0xffff_ffff,
                    Minor(_) => count,
                })
            }
            what => heap.count_of_cpp(vertex.address, what),
        }
    }
}
