//! A reading: what is asked, and what was found.

use std::collections::{HashMap, HashSet};

use memscope_memory::Memory;
use memscope_python::Layout;
use serde::{Deserialize, Serialize};

use crate::error::HeapError;
use crate::graph::{Graph, IMPL, NODE, NONE, Phase, Vertex};
use crate::heap::Heap;
use crate::objects::{Found, Label, What};
use crate::pages::ByAddress;
use crate::shapes::Kind;

/// Most holders in an answer. Blocks beyond have none, and [`Reading::left_out`] counts them.
pub const MOST_HOLDERS: usize = 150_000;

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Offsets of the interpreter's structures.
    pub layout: Layout,
    /// Address of the type of code objects.
    pub code_type: u64,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Addresses of all blocks.
    pub blocks: Vec<u64>,
}

/// From where a block is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Origin {
    /// From a module or a local variable.
    Named,
    /// From something that is not Python, and not known.
    Outside,
    /// From nowhere: it waits for the garbage collector.
    Garbage,
}

/// How one holder refers to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Link {
    /// The first: a module, by its name, and its file, if it has one.
    Module {
        /// The name under which it was imported.
        name: String,
        /// Its `__file__`, or nothing.
        file: String,
    },
    /// A local variable of a frame: its name, and, where the frame is the first holder, its function, the function's file, and the line where it begins.
    Local {
        /// The variable.
        name: String,
        /// The function.
        function: String,
        /// The function's file.
        file: String,
        /// The line of its `def`.
        line: i64,
    },
    /// An attribute: of an object, a module or a class.
    Attribute(String),
    /// An entry of a dictionary.
    Key {
        /// The key as Python writes it: `'name'`, `7`.
        shown: String,
        /// Whether it is text.
        is_text: bool,
    },
    /// A key of a dictionary.
    OfKeys,
    /// An element of a list, a tuple or a deque.
    Index(u32),
    /// An element of a set.
    Element,
    /// A variable of a closure.
    Variable(String),
    /// A reference that has no name.
    Word(u32),
    /// What belongs to the one before: its dictionary, its cells, the tensor itself.
    Part,
    /// The gradient of a tensor.
    Gradient,
    /// The autograd graph that made a tensor.
    GradFn,
    /// A tensor that a node of the graph saved for the backward pass.
    Saved,
    /// A node whose result this node needs.
    Next,
    /// A Python object that a node of the graph belongs to.
    Function,
    /// The first: kept alive by something that is not Python.
    Outside,
    /// The first: kept alive by nothing.
    Garbage,
}

/// A holder, on the way to a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The number of the holder before it, in the same reading.
    pub parent: Option<u32>,
    /// How that one refers to it.
    pub link: Link,
    /// Number of its type's name in [`Reading::kinds`].
    pub kind: u32,
    /// Number of its elements, if it has some.
    pub length: Option<u64>,
    /// Whether it was there with the same reference when it was read for a second time.
    pub is_sure: bool,
}

/// A block that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// Its address.
    pub block: u64,
    /// The last holder on the shortest way to it.
    pub holder: u32,
    /// From where.
    pub origin: Origin,
    /// Number of other references to its tensors.
    pub others: u32,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reading {
    /// Number of objects that were looked at.
    pub objects: u64,
    /// Number of tensors among them, those of the autograd graph included.
    pub tensors: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Names of types.
    pub kinds: Vec<String>,
    /// All holders on the ways to blocks; each stands behind its parent.
    pub holders: Vec<Holder>,
    /// The blocks that are held.
    pub held: Vec<Held>,
    /// Number of held blocks that are not told, because there were too many holders.
    pub left_out: u64,
    /// Whether the reading ended early, because the process has too many objects.
    pub is_cut: bool,
    /// Whether it is known where tensors keep their memory. If not, nothing is held.
    pub knows_tensors: bool,
    /// Whether it is known where tensors keep their gradients and the graph.
    pub knows_graphs: bool,
}

impl Reading {
    /// The holders on the way to this one, the first first.
    pub fn way(&self, holder: u32) -> Vec<&Holder> {
        let mut way = Vec::new();
        let mut next = Some(holder);
        while let Some(holder) = next.and_then(|number| self.holders.get(number as usize)) {
            way.push(holder);
            // A parent stands before its children, so that this ends with whatever a reader says.
            next = holder.parent.filter(|parent| Some(*parent) < next);
        }
        way.reverse();
        way
    }

    /// The way to this holder as a text, as Python would write it where that is possible: `__main__.trainer.history[5]`.
    pub fn path(&self, holder: u32) -> String {
        self.parts(&self.way(holder)).concat()
    }

    /// What each holder of a way adds to its text.
    pub fn parts(&self, way: &[&Holder]) -> Vec<String> {
        let mut node = None;
        let part = |holder: &&Holder| {
            let kind = self.kinds.get(holder.kind as usize);
            let kind = kind.map_or("?", String::as_str);
            holder.link.shown(kind, &mut node).unwrap_or_default()
        };
        way.iter().map(part).collect()
    }
}

impl Link {
    /// The name that it has in the program: of a module, a variable, an attribute, or a key that is text.
    pub fn name(&self) -> Option<&str> {
        match self {
            Link::Attribute(name) | Link::Variable(name) => Some(name),
            Link::Module { name, .. } | Link::Local { name, .. } => Some(name),
            Link::Key { shown, is_text } if *is_text => {
                Some(shown.trim_start_matches('\'').trim_end_matches('\''))
            }
            _ => None,
        }
    }

    /// What a link adds to the text of a way. `kind` is the type of what it leads to, and `node` the node of the autograd graph at which
    /// the way is.
    fn shown(&self, kind: &str, node: &mut Option<String>) -> Option<String> {
        Some(match self {
            Link::Module { name, .. } => name.clone(),
            Link::Local { name, function, .. } => match function.is_empty() {
                true => format!(".{name}"),
                false => format!("{function}.<locals>.{name}"),
            },
            Link::Attribute(name) => format!(".{name}"),
            Link::Key { shown, .. } => format!("[{shown}]"),
            Link::OfKeys => ".<key>".to_owned(),
            Link::Index(index) => format!("[{index}]"),
            Link::Element => ".<element>".to_owned(),
            Link::Variable(name) => format!(".<closure>.{name}"),
            Link::Word(offset) => format!(".<+{offset}>"),
            Link::Part => return None,
            Link::Gradient => ".grad".to_owned(),
            Link::GradFn => {
                *node = Some(kind.to_owned());
                ".grad_fn".to_owned()
            }
            // Of a way through the graph only its end is told.
            Link::Next => {
                *node = Some(kind.to_owned());
                return None;
            }
            Link::Saved => match node.take() {
                Some(node) => format!("<{node}>.saved"),
                None => ".saved".to_owned(),
            },
            Link::Function => ".<function>".to_owned(),
            Link::Outside => "<not Python>".to_owned(),
            Link::Garbage => format!("<garbage {kind}>"),
        })
    }
}

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
    let is_tensor = |heap: &mut Heap<'_, M>, object: u64| {
        heap.type_of(object)
            .is_some_and(|number| heap.types[number as usize].kind == Kind::Tensor)
    };
    let tensors: Vec<u64> = tracked
        .iter()
        .copied()
        .filter(|object| is_tensor(&mut heap, *object))
        .collect();
    heap.learn(&tensors, &blocks);
    let seeds = heap
        .seeds(memory, runtime, &interpreters)
        .map_err(threads)?;
    if !seeds
        .iter()
        .any(|(seed, _)| matches!(seed.label, Label::Module(_)))
    {
        return Err(HeapError::NoModules);
    }
    let mut graph = Graph::default();
    graph.search(&mut heap, &seeds, Phase::Named);
    graph.rest(&mut heap, &tracked);

    let mut answer = Answer::new(&graph);
    answer.find(&mut heap, &blocks);
    heap.pages.forget();
    let again = heap
        .seeds(memory, runtime, &interpreters)
        .map_err(threads)?;
    let again = again.into_iter().map(|(seed, _)| (seed.label, seed.target));
    let sure = answer.look_again(&mut heap, &again.collect());
    let mut reading = answer.tell(&mut heap, &sure);
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
}

impl<'g> Answer<'g> {
    fn new(graph: &'g Graph) -> Answer<'g> {
        Answer {
            graph,
            ways: Vec::new(),
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
            let references = self.references(number);
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

    /// References to a tensor, those to its Python object included.
    fn references(&self, number: u32) -> u32 {
        let vertex = self.vertex(number);
        match (vertex.label, vertex.parent) {
            (Label::Tensor, parent) if parent != NONE => {
                let object = self.vertex(parent).references;
                (object + vertex.references).saturating_sub(1)
            }
            _ => vertex.references,
        }
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
        for way in &self.ways {
            let mut number = way.vertex;
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
            if heap.memory_of(vertex.address) != Some(way.block) {
                sure.remove(&way.vertex);
            }
        }
        sure
    }

    fn tell<M: Memory + ?Sized>(&self, heap: &mut Heap<'_, M>, sure: &HashSet<u32>) -> Reading {
        let mut reading = Reading {
            objects: self.graph.vertices.len() as u64,
            tensors: self
                .graph
                .vertices
                .iter()
                .filter(|v| v.kind == IMPL)
                .count() as u64,
            is_cut: self.graph.is_cut,
            ..Reading::default()
        };
        let mut told: HashMap<u32, u32> = HashMap::new();
        let mut kinds: HashMap<Box<str>, u32> = HashMap::new();
        for way in &self.ways {
            let mut missing = Vec::new();
            let mut number = way.vertex;
            while number != NONE && !told.contains_key(&number) {
                missing.push(number);
                number = self.vertex(number).parent;
            }
            if reading.holders.len() + missing.len() > MOST_HOLDERS {
                reading.left_out += 1;
                continue;
            }
            while let Some(number) = missing.pop() {
                let vertex = self.vertex(number);
                let name = self.kind(heap, vertex);
                let next = kinds.len() as u32;
                let kind = *kinds.entry(name.clone()).or_insert_with(|| {
                    reading.kinds.push(name.into());
                    next
                });
                let holder = Holder {
                    parent: told.get(&vertex.parent).copied(),
                    link: self.link(heap, vertex),
                    kind,
                    length: match heap.types.get(vertex.kind as usize) {
                        Some(made) => {
                            let kind = made.kind;
                            heap.length(vertex.address, kind)
                        }
                        None => None,
                    },
                    is_sure: sure.contains(&number),
                };
                told.insert(number, reading.holders.len() as u32);
                reading.holders.push(holder);
            }
            let origin = match self.vertex(way.vertex).phase {
                Phase::Named => Origin::Named,
                Phase::Garbage => Origin::Garbage,
                Phase::Outside | Phase::Nowhere => Origin::Outside,
            };
            reading.held.push(Held {
                block: way.block,
                holder: told[&way.vertex],
                origin,
                others: way.others,
            });
        }
        reading
    }

    fn kind<M: Memory + ?Sized>(&self, heap: &mut Heap<'_, M>, vertex: &Vertex) -> Box<str> {
        match vertex.kind {
            IMPL => "Tensor".into(),
            NODE => heap.node_name(vertex.address),
            number => heap.types[number as usize].name.clone(),
        }
    }

    fn link<M: Memory + ?Sized>(&self, heap: &mut Heap<'_, M>, vertex: &Vertex) -> Link {
        let text = |heap: &mut Heap<'_, M>, key: u64| match heap.string(key) {
            Some(text) => text.into(),
            None => "?".to_owned(),
        };
        match vertex.label {
            Label::Module(key) => Link::Module {
                name: text(heap, key),
                file: heap.file_of_module(vertex.address).unwrap_or_default(),
            },
            Label::Local(code, number) => {
                let name = heap.name_of_local(code, u64::from(number));
                let code = match vertex.parent {
                    NONE => heap.code(code),
                    _ => None,
                };
                Link::Local {
                    name: name.map_or_else(|| "?".to_owned(), Into::into),
                    line: code.as_ref().map_or(0, |code| i64::from(code.first_line)),
                    function: code.as_ref().map_or_else(String::new, |code| {
                        let name = code.qualified_name.as_ref().unwrap_or(&code.name);
                        name.text.clone()
                    }),
                    file: code.map_or_else(String::new, |code| code.file_name.text),
                }
            }
            // What a module of `torch.nn` consists of is called as if it were the module's attributes, as the module itself does it.
            Label::Attribute(key) | Label::Key(key)
                if is_kind(heap, vertex.kind, Kind::Dict) && heap.is_part_of_module(key) =>
            {
                Link::Part
            }
            Label::Attribute(key) => Link::Attribute(text(heap, key)),
            Label::Key(key) => self.entry(heap, vertex, key),
            Label::Member(number, member) => {
                let members = heap.types.get(number as usize).map(|made| &made.members);
                match members.and_then(|members| members.get(member as usize)) {
                    Some(member) if &*member.name == "__closure__" => Link::Part,
                    Some(member) => Link::Attribute(member.name.to_string()),
                    None => Link::Attribute("?".to_owned()),
                }
            }
            Label::Index(index) => match self.variable(heap, vertex, index) {
                Some(name) => Link::Variable(name.into()),
                None => Link::Index(index),
            },
            Label::OfKeys => Link::OfKeys,
            Label::Element => Link::Element,
            Label::Dict | Label::Content | Label::Tensor => Link::Part,
            Label::Word(offset) => match self.name_of_word(heap, vertex) {
                Some(name) => Link::Attribute(name.to_owned()),
                None => Link::Word(offset),
            },
            Label::Gradient => Link::Gradient,
            Label::GradFn => Link::GradFn,
            Label::Saved => Link::Saved,
            Label::Next => Link::Next,
            Label::Function => Link::Function,
            Label::Outside => Link::Outside,
            Label::Garbage => Link::Garbage,
        }
    }

    /// An entry of a dictionary is an attribute if the dictionary is that of an object, a module or a class, or has the parts of a module
    /// of `torch.nn`.
    fn entry<M: Memory + ?Sized>(&self, heap: &mut Heap<'_, M>, vertex: &Vertex, key: u64) -> Link {
        let (shown, text) = heap.key(key);
        let is_attribute = vertex.parent != NONE && {
            let dict = self.vertex(vertex.parent);
            match dict.label {
                Label::Dict => true,
                Label::Key(name) | Label::Attribute(name) => {
                    dict.parent != NONE && heap.is_part_of_module(name)
                }
                _ => false,
            }
        };
        match text {
            Some(text) if is_attribute => Link::Attribute(text.into()),
            text => Link::Key {
                shown,
                is_text: text.is_some(),
            },
        }
    }

    /// What a reference is called that its type gives no name, where the types on both sides say it.
    fn name_of_word<M: Memory + ?Sized>(
        &self,
        heap: &Heap<'_, M>,
        vertex: &Vertex,
    ) -> Option<&'static str> {
        let parent = match vertex.parent {
            NONE => return None,
            parent => heap.types.get(self.vertex(parent).kind as usize)?,
        };
        let made = heap.types.get(vertex.kind as usize)?;
        match (&*parent.name, parent.kind, &*made.name, made.kind) {
            ("traceback", _, "traceback", _) => Some("tb_next"),
            (_, _, "traceback", _) => Some("__traceback__"),
            (_, Kind::Frame, _, Kind::Frame) => Some("f_back"),
            ("function", _, _, Kind::Tuple) => Some("__defaults__"),
            _ => None,
        }
    }

    /// The name of a variable, if this is a cell of the closure of a function.
    fn variable<M: Memory + ?Sized>(
        &self,
        heap: &mut Heap<'_, M>,
        vertex: &Vertex,
        index: u32,
    ) -> Option<Box<str>> {
        if !is_kind(heap, vertex.kind, Kind::Cell) || vertex.parent == NONE {
            return None;
        }
        let closure = self.vertex(vertex.parent);
        if !is_kind(heap, closure.kind, Kind::Tuple) || closure.parent == NONE {
            return None;
        }
        let count = heap.length(closure.address, Kind::Tuple)?;
        let function = self.vertex(closure.parent);
        let found = Graph::references(heap, function);
        // The function's code is one of its words; code objects are nothing that a search looks at.
        let code = found
            .iter()
            .map(|reference| reference.target)
            .find(|target| heap.is_code(*target))?;
        heap.name_of_free(code, u64::from(index), count)
    }
}

fn is_kind<M: Memory + ?Sized>(heap: &Heap<'_, M>, number: u32, kind: Kind) -> bool {
    heap.types
        .get(number as usize)
        .is_some_and(|made| made.kind == kind)
}
