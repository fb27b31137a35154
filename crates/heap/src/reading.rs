//! A reading: what is asked, and what was found.

use std::collections::{HashMap, HashSet};

use memscope_memory::Memory;

use crate::answer::{Held, Origin, Reading, Wanted};
use crate::error::HeapError;
use crate::graph::{Graph, IMPL, NODE, NONE, Phase, Vertex};
use crate::heap::Heap;
use crate::modules;
use crate::objects::{Found, Label, What};
use crate::pages::ByAddress;
use crate::telling::{MOST_HELD, Telling};
use crate::uses::{Made, Place, Users, Uses};

/// How often more than twice it is looked at what is used for what, if that changes meanwhile.
const LOOKS: u32 = 3;

/// Reads which objects of an interpreter keep the blocks alive.
///
/// # Errors
/// Where the interpreter's threads and modules cannot be found. All else is left out, and told.
pub fn read<M: Memory + ?Sized>(memory: &M, wanted: &Wanted) -> Result<Reading, HeapError> {
    let mut heap = Heap::new(memory, wanted.layout, wanted.code_type);
    let threads = |source| HeapError::Threads { source };
    let runtime = wanted.runtime;
    let interpreters = heap.interpreters(memory, runtime).map_err(threads)?;
    let blocks: ByAddress<u32> = wanted.blocks.iter().copied().zip(0..).collect();
    let tracked = heap.tracked(&interpreters);
    heap.learn(&tracked.tensors, &blocks);
    let seeds = heap
        .seeds(memory, runtime, &interpreters)
        .map_err(threads)?;
    if !seeds
        .iter()
        .any(|(seed, _)| matches!(seed.label, Label::Module(_)))
    {
        return Err(HeapError::NoModules);
    }
    let mut graph = Graph::of(tracked.objects.len());
    graph.search(&mut heap, &seeds, Phase::Named);
    graph.rest(&mut heap, &tracked.objects);

    let mut answer = Answer::new(&graph);
    answer.find(&mut heap, &blocks);
    answer.find_objects(&wanted.objects);
    let users = Users::new(&mut heap, &graph);
    let uses = users.read(&mut heap, &blocks);
    let modules_of = |heap: &mut Heap<'_, M>, uses: &Uses| match wanted.modules {
        true => modules::of_saved(heap, &graph, uses),
        false => ByAddress::default(),
    };
    let modules = modules_of(&mut heap, &uses);
    answer.owners = uses.made.iter().map(|made| made.owner).collect();
    answer
        .owners
        .extend(modules.values().map(|place| place.owner));
    answer.owners.sort_unstable();
    answer.owners.dedup();
    heap.forget();
    let again = heap
        .seeds(memory, runtime, &interpreters)
        .map_err(threads)?;
    let again = again.into_iter().map(|(seed, _)| (seed.label, seed.target));
    let sure = answer.look_again(&mut heap, &again.collect());
    let left_out = uses.left_out;
    let (mut made, mut second) = (uses.made, users.read(&mut heap, &blocks));
    let mut same: HashSet<Made> = second.made.iter().cloned().collect();
    for _ in 0..LOOKS {
        if same.len() == made.len() && made.iter().all(|one| same.contains(one)) {
            break;
        }
        // A library was just changing what the modules have. The next look meets another part of them.
        heap.forget();
        made = std::mem::take(&mut second.made);
        second = users.read(&mut heap, &blocks);
        same = second.made.iter().cloned().collect();
    }
    let mut same_modules = modules_of(&mut heap, &second);
    // The graph may have changed in between, as a backward pass does it.
    same_modules.retain(|block, place| modules.get(block) == Some(place));
    let mut reading = answer.tell(&mut heap, &sure, made, &same, &same_modules);
    reading.uses_left_out += left_out;
    reading.bytes = heap.pages.read;
    reading.knows_tensors = heap.knows_tensors();
    reading.knows_graphs = heap.knows_graphs();
    Ok(reading)
}

/// The way to a block.
struct Way {
    block: u64,
    vertex: u32,
    others: u32,
}

/// The making of an answer.
struct Answer<'g> {
    graph: &'g Graph,
    ways: Vec<Way>,
    /// The vertices of the modules and the optimizers that blocks belong to.
    owners: Vec<u32>,
}

impl<'g> Answer<'g> {
    fn new(graph: &'g Graph) -> Answer<'g> {
        Answer {
            graph,
            ways: Vec::new(),
            owners: Vec::new(),
        }
    }

    fn vertex(&self, number: u32) -> &'g Vertex {
        &self.graph.vertices[number as usize]
    }

    /// Finds the tensor of each block that is reached on the shortest way.
    fn find<M: Memory + ?Sized>(&mut self, heap: &mut Heap<'_, M>, blocks: &ByAddress<u32>) {
        let mut best: ByAddress<(u32, u32)> = ByAddress::default();
        for (number, vertex) in (0u32..).zip(&self.graph.vertices) {
            if vertex.kind != IMPL || vertex.phase == Phase::Nowhere {
                continue;
            }
            let Some(block) = heap.memory_of(vertex.address) else {
                continue;
            };
            if !blocks.contains_key(&block) {
                continue;
            }
            let references = self.references(heap, number);
            let entry = best.entry(block).or_insert((number, 0));
            entry.1 = entry.1.saturating_add(references);
            let before = self.vertex(entry.0);
            if (vertex.phase, vertex.distance) < (before.phase, before.distance) {
                entry.0 = number;
            }
        }
        self.ways = best
            .into_iter()
            .map(|(block, (vertex, references))| Way {
                block,
                vertex,
                others: references.saturating_sub(1),
            })
            .collect();
        self.ways.sort_unstable_by_key(|way| way.block);
    }

    /// Finds the objects that were asked for.
    fn find_objects(&mut self, objects: &[u64]) {
        if objects.is_empty() {
            return;
        }
        let objects: HashSet<u64> = objects.iter().copied().collect();
        let found = (0u32..).zip(&self.graph.vertices).filter(|(_, vertex)| {
            vertex.phase != Phase::Nowhere && objects.contains(&vertex.address)
        });
        self.ways.extend(found.map(|(number, vertex)| Way {
            block: vertex.address,
            vertex: number,
            others: vertex.references.saturating_sub(1),
        }));
    }

    /// References to a tensor, those to its Python object included, without those between the two.
    fn references<M: Memory + ?Sized>(&self, heap: &mut Heap<'_, M>, number: u32) -> u32 {
        let vertex = self.vertex(number);
        let object = heap.object_of(vertex.address);
        let Some(object) = object.and_then(|object| self.graph.number_of(object)) else {
            return vertex.references;
        };
        let object = self.vertex(object);
        let between = [(vertex, object), (object, vertex)].map(|(from, to)| {
            let found = Graph::references(heap, from);
            let found = found
                .iter()
                .filter(|reference| reference.target == to.address);
            found.count() as u32
        });
        (object.references + vertex.references).saturating_sub(between.iter().sum())
    }

    /// Looks at all references on the ways once more. Returns the vertices for which they are the same all the way.
    fn look_again<M: Memory + ?Sized>(
        &self,
        heap: &mut Heap<'_, M>,
        seeds: &HashSet<(Label, u64)>,
    ) -> HashSet<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut first = Vec::new();
        let mut seen = HashSet::new();
        let ends = self.ways.iter().map(|way| way.vertex);
        for end in ends.chain(self.owners.iter().copied()) {
            let mut number = end;
            while seen.insert(number) {
                let parent = self.vertex(number).parent;
                if parent == NONE {
                    first.push(number);
                    break;
                }
                children.entry(parent).or_default().push(number);
                number = parent;
            }
        }
        let mut sure: HashSet<u32> = first
            .into_iter()
            .filter(|number| {
                let vertex = self.vertex(*number);
                match vertex.label {
                    Label::Garbage | Label::Outside => {
                        // Something that was garbage stays so, and its count cannot change.
                        Graph::count(heap, vertex)
                            .is_some_and(|count| count == u64::from(vertex.references))
                            || vertex.label == Label::Outside
                    }
                    label => seeds.contains(&(label, vertex.address)),
                }
            })
            .collect();
        let mut waiting: Vec<u32> = sure.iter().copied().collect();
        while let Some(number) = waiting.pop() {
            let Some(children) = children.get(&number) else {
                continue;
            };
            let vertex = self.vertex(number);
            let is_same = match vertex.kind {
                IMPL => true,
                NODE => heap.cpp(vertex.address) == Some(What::Node),
                kind => heap.type_of(vertex.address) == Some(kind),
            };
            if !is_same {
                continue;
            }
            let found: Found = Graph::references(heap, vertex);
            let found: HashSet<(Label, u64)> = found
                .iter()
                .map(|reference| (reference.label, reference.target))
                .collect();
            for child in children {
                let made = self.vertex(*child);
                if found.contains(&(made.label, made.address)) && sure.insert(*child) {
                    waiting.push(*child);
                }
            }
        }
        // The block must be the tensor's still.
        for way in &self.ways {
            let vertex = self.vertex(way.vertex);
            if vertex.kind == IMPL && heap.memory_of(vertex.address) != Some(way.block) {
                sure.remove(&way.vertex);
            }
        }
        sure
    }

    fn tell<M: Memory + ?Sized>(
        &self,
        heap: &mut Heap<'_, M>,
        sure: &HashSet<u32>,
        uses: Vec<Made>,
        same: &HashSet<Made>,
        modules: &ByAddress<Place>,
    ) -> Reading {
        let mut telling = Telling::new(self.graph, sure);
        for owner in &self.owners {
            telling.way(heap, *owner);
        }
        telling.uses(heap, uses, same);
        for way in &self.ways {
            let has_room = telling.reading.held.len() < MOST_HELD;
            let told = has_room.then(|| telling.way_or_alike(heap, way.vertex));
            let Some(holder) = told.flatten() else {
                telling.reading.left_out += 1;
                continue;
            };
            let origin = match self.vertex(way.vertex).phase {
                Phase::Named => Origin::Named,
                Phase::Garbage => Origin::Garbage,
                Phase::Outside | Phase::Nowhere => Origin::Outside,
            };
            let place = modules.get(&way.block);
            let module = place.and_then(|place| telling.module(place));
            telling.reading.held.push(Held {
                block: way.block,
                holder,
                origin,
                others: way.others,
                module,
            });
        }
        telling.reading
    }
}
