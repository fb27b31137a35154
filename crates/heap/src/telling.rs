//! The writing of an answer: how holders and references are called.

use std::collections::{HashMap, HashSet};

use memscope_memory::Memory;

use crate::answer::{Holder, Link, Module, Reading, Used};
use crate::graph::{Graph, IMPL, NODE, NONE, Vertex};
use crate::heap::Heap;
use crate::objects::Label;
use crate::shapes::Kind;
use crate::uses::{Made, Place};

/// Most holders in an answer. A block beyond has the holder of another element of the same container, if there is one that is held alike;
/// else it has none, and [`Reading::left_out`] counts it.
pub const MOST_HOLDERS: usize = 150_000;
/// In a container with more elements than these, an element may stand for another one.
const MANY: u64 = 64;
/// Steps from an element of a container to a tensor that are looked at.
const STEPS: usize = 4;

/// Most bytes that the holders of an answer have, with the names of types and modules, and as many that its uses have. Names of modules and
/// attributes may be long. What is beyond counts as beyond the most holders or uses.
pub const MOST_BYTES: usize = 12 << 20;
/// Most held blocks in an answer. [`Reading::left_out`] counts those beyond.
pub const MOST_HELD: usize = 700_000;
/// Bytes that numbers of a holder, a use or a module take beside its texts.
const NUMBERS: usize = 32;

/// How a vertex is held: the container, and the kinds and references between it and the vertex, each with whether it is sure. The reference to
/// the element itself is `None`.
type Alike = (u32, Vec<(u32, Option<Label>, bool)>);

/// The writing of an answer.
pub(crate) struct Telling<'t> {
    names: Names<'t>,
    /// The vertices for which a second reading showed the same all the way.
    sure: &'t HashSet<u32>,
    /// The places of holders in the answer, by their vertices.
    told: HashMap<u32, u32>,
    kinds: HashMap<Box<str>, u32>,
    /// The holders that stand for others, by how they are held.
    alike: HashMap<Alike, u32>,
    modules: HashMap<Place, u32>,
    /// Bytes for which there still is room.
    room: usize,
    pub reading: Reading,
}

impl<'t> Telling<'t> {
    /// An answer that has nothing yet but its numbers.
    pub fn new(graph: &'t Graph, sure: &'t HashSet<u32>) -> Telling<'t> {
        let tensors = graph.vertices.iter().filter(|vertex| vertex.kind == IMPL);
        Telling {
            names: Names(graph),
            sure,
            told: HashMap::new(),
            kinds: HashMap::new(),
            alike: HashMap::new(),
            modules: HashMap::new(),
            room: MOST_BYTES,
            reading: Reading {
                objects: graph.vertices.len() as u64,
                tensors: tensors.count() as u64,
                is_cut: graph.is_cut,
                ..Reading::default()
            },
        }
    }

    /// Tells the way to a block's tensor, or one that is like it where there is no room. Returns the place of the last holder; `None` where there
    /// is no such way.
    pub fn way_or_alike<M: Memory + ?Sized>(
        &mut self,
        heap: &mut Heap<'_, M>,
        end: u32,
    ) -> Option<u32> {
        let alike = self.alike(heap, end);
        // The last places are for what is held in another way.
        if self.reading.holders.len() > MOST_HOLDERS / 4 * 3
            && let Some(told) = alike.as_ref().and_then(|alike| self.alike.get(alike))
        {
            return Some(*told);
        }
        let told = self.way(heap, end)?;
        if let Some(alike) = alike {
            self.alike.insert(alike, told);
        }
        Some(told)
    }

    /// How a vertex is held: by which container of many elements, and how it hangs on its element.
    fn alike<M: Memory + ?Sized>(&self, heap: &mut Heap<'_, M>, end: u32) -> Option<Alike> {
        let mut steps = Vec::new();
        let mut number = end;
        for _ in 0..STEPS {
            let vertex = self.names.vertex(number);
            if vertex.parent == NONE {
                return None;
            }
            let is_sure = self.sure.contains(&number);
            let is_element = matches!(
                vertex.label,
                Label::Index(_) | Label::Element | Label::Key(_)
            );
            if is_element {
                let container = self.names.vertex(vertex.parent);
                let kind = heap.types.get(container.kind as usize)?.kind;
                if heap.length(container.address, kind)? > MANY {
                    steps.push((vertex.kind, None, is_sure));
                    return Some((vertex.parent, steps));
                }
            }
            steps.push((vertex.kind, Some(vertex.label), is_sure));
            number = vertex.parent;
        }
        None
    }

    /// Tells the way to a vertex. Returns the place of the last holder; `None` where there is no room.
    pub fn way<M: Memory + ?Sized>(&mut self, heap: &mut Heap<'_, M>, end: u32) -> Option<u32> {
        let mut missing = Vec::new();
        let mut number = end;
        while number != NONE && !self.told.contains_key(&number) {
            missing.push(number);
            number = self.names.vertex(number).parent;
        }
        if self.reading.holders.len() + missing.len() > MOST_HOLDERS || self.room == 0 {
            return None;
        }
        while let Some(number) = missing.pop() {
            let vertex = self.names.vertex(number);
            let length = match heap.types.get(vertex.kind as usize) {
                Some(made) => {
                    let kind = made.kind;
                    heap.length(vertex.address, kind)
                }
                None => None,
            };
            let holder = Holder {
                parent: self.told.get(&vertex.parent).copied(),
                link: self.names.link(heap, vertex),
                kind: self.kind(heap, vertex),
                length,
                is_sure: self.sure.contains(&number),
            };
            self.room = self.room.saturating_sub(NUMBERS + length_of(&holder.link));
            self.told.insert(number, self.reading.holders.len() as u32);
            self.reading.holders.push(holder);
        }
        self.told.get(&end).copied()
    }

    /// The number of the name of a vertex's type.
    fn kind<M: Memory + ?Sized>(&mut self, heap: &mut Heap<'_, M>, vertex: &Vertex) -> u32 {
        let name = self.names.name_of_kind(heap, vertex);
        let next = self.kinds.len() as u32;
        *self.kinds.entry(name.clone()).or_insert_with(|| {
            self.room = self.room.saturating_sub(name.len());
            self.reading.kinds.push(name.into());
            next
        })
    }

    /// The number of a module in the answer; `None` if the way to its model is not told.
    pub fn module(&mut self, place: &Place) -> Option<u32> {
        if let Some(known) = self.modules.get(place) {
            return Some(*known);
        }
        let model = self.told.get(&place.owner).copied()?;
        self.room = self.room.checked_sub(NUMBERS + place.module.len())?;
        let number = self.reading.modules.len() as u32;
        self.reading.modules.push(Module {
            model,
            name: place.module.clone(),
        });
        self.modules.insert(place.clone(), number);
        Some(number)
    }

    /// Tells what blocks are used for; `same` is what a second reading showed.
    pub fn uses<M: Memory + ?Sized>(
        &mut self,
        heap: &mut Heap<'_, M>,
        uses: Vec<Made>,
        same: &HashSet<Made>,
    ) {
        let mut room = MOST_BYTES;
        for made in uses {
            let Some(left) = room.checked_sub(NUMBERS + made.name.len() + made.key.len()) else {
                self.reading.uses_left_out += 1;
                continue;
            };
            room = left;
            let is_sure = same.contains(&made);
            let class = self.kind(heap, self.names.vertex(made.direct));
            self.reading.uses.push(Used {
                block: made.block,
                what: made.what,
                owner: self.told.get(&made.owner).copied(),
                name: made.name,
                key: made.key,
                class,
                is_sure,
            });
        }
    }
}

/// The vertices of a search by which things get their names.
#[derive(Clone, Copy)]
struct Names<'g>(&'g Graph);

impl<'g> Names<'g> {
    fn vertex(self, number: u32) -> &'g Vertex {
        &self.0.vertices[number as usize]
    }

    fn name_of_kind<M: Memory + ?Sized>(self, heap: &mut Heap<'_, M>, vertex: &Vertex) -> Box<str> {
        match vertex.kind {
            IMPL => "Tensor".into(),
            NODE => heap.node_name(vertex.address),
            number => heap.types[number as usize].name.clone(),
        }
    }

    fn link<M: Memory + ?Sized>(self, heap: &mut Heap<'_, M>, vertex: &Vertex) -> Link {
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
            Label::Word(offset) => match self.name_of_word(heap, vertex, offset) {
                Some(name) => Link::Attribute(name.to_owned()),
                None => Link::Word(offset),
            },
            Label::Class => Link::Attribute("__class__".to_owned()),
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
    fn entry<M: Memory + ?Sized>(self, heap: &mut Heap<'_, M>, vertex: &Vertex, key: u64) -> Link {
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
        self,
        heap: &Heap<'_, M>,
        vertex: &Vertex,
        offset: u32,
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
            (_, Kind::Type, ..) => Heap::<'_, M>::name_in_type(offset),
            (_, Kind::Descriptor, ..) => Some("__objclass__"),
            (_, Kind::Weak, ..) => Some("__callback__"),
            _ => None,
        }
    }

    /// The name of a variable, if this is a cell of the closure of a function.
    fn variable<M: Memory + ?Sized>(
        self,
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

/// Bytes of the texts of a link.
fn length_of(link: &Link) -> usize {
    match link {
        Link::Module { name, file } => name.len() + file.len(),
        Link::Local {
            name,
            function,
            file,
            ..
        } => name.len() + function.len() + file.len(),
        Link::Attribute(text) | Link::Variable(text) | Link::Key { shown: text, .. } => text.len(),
        _ => 0,
    }
}

fn is_kind<M: Memory + ?Sized>(heap: &Heap<'_, M>, number: u32, kind: Kind) -> bool {
    heap.types
        .get(number as usize)
        .is_some_and(|made| made.kind == kind)
}
