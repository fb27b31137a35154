//! What tensors are for: the parameters and buffers of modules of `torch.nn`, their gradients, and the state of optimizers.
//!
//! A module is an object with the three dictionaries that `torch.nn.Module` gives each of its objects, an optimizer one with a dictionary
//! `state` and a list `param_groups`. Names are those that `named_parameters()` and `named_buffers()` would give, in the same order.
//!
//! Libraries that divide a model among processes put other tensors into its modules for as long as they compute with them. What belongs to
//! whom is in objects of their own: PyTorch's FSDP has `FSDPParam` and `FlatParamHandle`, DeepSpeed an attribute `ds_tensor`, Megatron
//! `main_grad` and `main_param`.

use std::collections::{HashMap, HashSet};

use memscope_memory::Memory;

use crate::answer::Use;
use crate::graph::{Graph, Vertex};
use crate::heap::Heap;
use crate::objects::{Found, Label};
use crate::pages::ByAddress;
use crate::shapes::{Kind, Part};

/// Most uses in an answer. [`crate::Reading::uses_left_out`] counts those beyond.
pub const MOST_USES: usize = 150_000;
/// How deep tensors in tensors, and containers in the state of an optimizer, are looked at.
const DEEPEST: u32 = 5;
/// The attributes of a parameter in which Megatron keeps its gradient, and the copy of it that the optimizer changes.
const MAIN_GRADIENT: &str = "main_grad";
const MAIN_PARAMETER: &str = "main_param";

/// A module or an optimizer, with the addresses of its parts; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    parameters: u64,
    buffers: u64,
    modules: u64,
    state: u64,
    groups: u64,
}

/// A use before its owner has a place in the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Made {
    pub block: u64,
    pub what: Use,
    /// The vertex of the owner.
    pub owner: u32,
    pub name: String,
    pub key: String,
    /// The vertex of the module or the optimizer that has it directly.
    pub direct: u32,
}

/// A module of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The vertex of the outermost module.
    pub owner: u32,
    /// Its name below that one; empty for that one itself.
    pub module: String,
}

impl Place {
    /// The innermost module that has both; `None` if there is none.
    pub fn and(&self, other: &Place) -> Option<Place> {
        let parts = self.module.split('.').zip(other.module.split('.'));
        let same: Vec<&str> = parts
            .take_while(|(one, two)| one == two)
            .map(|(part, _)| part)
            .collect();
        (self.owner == other.owner).then(|| Place {
            owner: self.owner,
            module: same.join("."),
        })
    }

    /// The outermost module.
    pub fn whole(&self) -> Place {
        Place {
            owner: self.owner,
            module: String::new(),
        }
    }
}

/// What is used for what.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub made: Vec<Made>,
    /// Number of uses that were met when there were [`MOST_USES`] already. A container in the state of an optimizer that was not
    /// looked into for that reason counts as one.
    pub left_out: u64,
    /// The modules that have parameters, by the addresses of these tensors in PyTorch's own memory. If several have one, what they have in
    /// common; `None` if that is nothing.
    pub of_tensors: ByAddress<Option<Place>>,
    /// The same by the addresses of their blocks.
    pub of_blocks: ByAddress<Option<Place>>,
}

/// The modules and optimizers of a process.
#[derive(Debug, Default)]
pub(crate) struct Users {
    /// Modules by the addresses of their objects.
    modules: ByAddress<(u32, Parts)>,
    /// Modules and optimizers in the order in which they are looked at: those first that are closest to a name.
    order: Vec<(u32, u64)>,
    optimizers: Vec<(u32, Parts)>,
    /// FSDP's objects for single parameters, and those for parameters that many others lie in.
    divided: Vec<u64>,
    flat: Vec<u64>,
}

/// How far away a vertex is.
const fn rank(vertex: &Vertex) -> (u8, u32, u64) {
    (vertex.phase as u8, vertex.distance, vertex.address)
}

impl Users {
    /// The modules and optimizers that the search has met.
    pub fn new<M: Memory + ?Sized>(heap: &mut Heap<'_, M>, graph: &Graph) -> Users {
        let objects = objects_of(heap, graph);
        let mut all: HashMap<u32, Parts> = HashMap::new();
        for seen in &graph.parts {
            let Some(object) = objects.get(&seen.from).copied() else {
                continue;
            };
            let parts = all.entry(object).or_default();
            *match seen.part {
                Part::Parameters => &mut parts.parameters,
                Part::Buffers => &mut parts.buffers,
                Part::Modules => &mut parts.modules,
                Part::State => &mut parts.state,
                Part::Groups => &mut parts.groups,
            } = seen.address;
        }
        let mut users = Users::default();
        for (number, parts) in all {
            let vertex = &graph.vertices[number as usize];
            if parts.parameters != 0 && parts.buffers != 0 && parts.modules != 0 {
                users.modules.insert(vertex.address, (number, parts));
                users.order.push((number, vertex.address));
            }
            if parts.state != 0 && parts.groups != 0 {
                users.optimizers.push((number, parts));
            }
        }
        (users.divided, users.flat) = divided(heap, graph);
        let by_rank = |number: &u32| rank(&graph.vertices[*number as usize]);
        users
            .order
            .sort_unstable_by_key(|(number, _)| by_rank(number));
        users
            .optimizers
            .sort_unstable_by_key(|(number, _)| by_rank(number));
        users
    }

    /// Reads what is used for what. Names and order are those of `named_parameters()` and `named_buffers()`.
    pub fn read<M: Memory + ?Sized>(
        &self,
        heap: &mut Heap<'_, M>,
        blocks: &ByAddress<u32>,
    ) -> Uses {
        // There are few of these, and libraries add and remove attributes of theirs at each step.
        let moves_from = std::mem::replace(&mut heap.moves_from, 0);
        let mut reading = Reading {
            heap,
            blocks,
            uses: Uses::default(),
            names: ByAddress::default(),
            gathered: HashSet::new(),
            parts: ByAddress::default(),
            lies: HashMap::new(),
            places: ByAddress::default(),
        };
        for divided in &self.divided {
            reading.note_gathered(*divided);
        }
        let flat = self.flat.iter().map(|handle| reading.flat(*handle));
        let flat: Vec<Lies> = flat.flatten().collect();
        for lies in &flat {
            if let Some(name) = reading.heap.string(lies.name) {
                let place = (lies.module, name);
                reading.lies.insert(place, lies.parameter);
            }
        }
        let mut children: HashSet<u64> = HashSet::new();
        let mut below: ByAddress<Vec<(Box<str>, u64)>> = ByAddress::default();
        for (_, object) in &self.order {
            let (_, parts) = self.modules[object];
            let found = reading.named(parts.modules);
            children.extend(
                found
                    .iter()
                    .map(|(_, child)| *child)
                    .filter(|child| child != object),
            );
            below.insert(*object, found);
        }
        let mut visited: HashSet<u64> = HashSet::new();
        // What only modules that hold one another have is found in the second round.
        let roots = self
            .order
            .iter()
            .filter(|(_, object)| !children.contains(object));
        for (root, object) in roots.chain(&self.order) {
            let mut waiting = vec![(*object, String::new())];
            while let Some((object, name)) = waiting.pop() {
                let Some((direct, parts)) = self.modules.get(&object) else {
                    continue;
                };
                if !visited.insert(object) {
                    continue;
                }
                reading.module(object, *root, *direct, parts, &name);
                let place = (*root, *direct, name.clone());
                reading.places.insert(object, place);
                // The first child is looked at first, and its children before the second.
                for (child, object) in below[&object].iter().rev() {
                    waiting.push((*object, joined(&name, child)));
                }
            }
        }
        for divided in &self.divided {
            reading.divided(*divided);
        }
        for lies in flat {
            reading.stays(lies.parameter, lies.module, lies.name);
        }
        for (number, parts) in &self.optimizers {
            reading.optimizer(*number, parts);
        }
        let Reading { heap, uses, .. } = reading;
        heap.moves_from = moves_from;
        uses
    }
}

/// Notes one more place of what is at an address.
fn add(places: &mut ByAddress<Option<Place>>, address: u64, place: &Place) {
    let all = match places.get(&address) {
        Some(known) => known.as_ref().and_then(|known| known.and(place)),
        None => Some(place.clone()),
    };
    places.insert(address, all);
}

fn joined(name: &str, child: &str) -> String {
    match name {
        "" => child.to_owned(),
        name => format!("{name}.{child}"),
    }
}

/// The objects whose dictionaries, or which themselves, have the references that were met.
fn objects_of<M: Memory + ?Sized>(heap: &mut Heap<'_, M>, graph: &Graph) -> HashMap<u32, u32> {
    let mut objects = HashMap::new();
    let mut dicts: ByAddress<u32> = ByAddress::default();
    for seen in &graph.parts {
        let vertex = &graph.vertices[seen.from as usize];
        let is_dict = heap
            .types
            .get(vertex.kind as usize)
            .is_some_and(|made| made.kind == Kind::Dict);
        match (is_dict, vertex.label, vertex.parent) {
            (false, ..) => {
                objects.insert(seen.from, seen.from);
            }
            (true, Label::Dict, parent) if parent != crate::graph::NONE => {
                objects.insert(seen.from, parent);
            }
            // Something else has the dictionary too, and is closer to a name.
            (true, ..) => {
                dicts.insert(vertex.address, seen.from);
            }
        }
    }
    if dicts.is_empty() {
        return objects;
    }
    let mut found = Found::new();
    for (number, vertex) in (0u32..).zip(&graph.vertices) {
        let is_object = heap
            .types
            .get(vertex.kind as usize)
            .is_some_and(|made| made.kind == Kind::Other);
        if !is_object {
            continue;
        }
        found.clear();
        heap.references(vertex.address, vertex.kind, &mut found);
        for reference in &found {
            if reference.label == Label::Dict
                && let Some(dict) = dicts.get(&reference.target)
            {
                objects.insert(*dict, number);
            }
        }
    }
    objects
}

/// FSDP's objects for single parameters, and those for parameters that many others lie in, by the names of their types.
fn divided<M: Memory + ?Sized>(heap: &Heap<'_, M>, graph: &Graph) -> (Vec<u64>, Vec<u64>) {
    let named = |name: &str| {
        let types = (0u32..).zip(&heap.types);
        let types: HashSet<u32> = types
            .filter(|(_, made)| &*made.name == name)
            .map(|(number, _)| number)
            .collect();
        let all = graph.vertices.iter();
        let of_types = all.filter(|vertex| types.contains(&vertex.kind));
        of_types.map(|vertex| vertex.address).collect()
    };
    (named("FSDPParam"), named("FlatParamHandle"))
}

/// The object that an attribute with this name has.
fn called(attributes: &[(Box<str>, u64)], name: &str) -> Option<u64> {
    let mut found = attributes.iter().filter(|(key, _)| &**key == name);
    found.next().map(|(_, object)| *object)
}

/// A parameter that lies in another one, the module that has it whenever that does not compute, and its name there: addresses.
struct Lies {
    parameter: u64,
    module: u64,
    name: u64,
}

/// One pass over the modules and optimizers.
struct Reading<'r, 'a, M: ?Sized> {
    heap: &'r mut Heap<'a, M>,
    blocks: &'r ByAddress<u32>,
    uses: Uses,
    /// The names of parameters by the addresses of their objects.
    names: ByAddress<String>,
    /// Parameters that stand in a module while it computes, and were gathered from those that stay.
    gathered: HashSet<u64>,
    /// Parameters that lie in another one, by the module that has each whenever it does not compute, and the name there.
    lies: HashMap<(u64, Box<str>), u64>,
    /// The blocks of parameters that lie in another one.
    parts: ByAddress<Vec<u64>>,
    /// The outermost module of each module, its own vertex, and its name.
    places: ByAddress<(u32, u32, String)>,
}

impl<M: Memory + ?Sized> Reading<'_, '_, M> {
    fn found(&mut self, object: u64) -> Found {
        let mut found = Found::new();
        if let Some(number) = self.heap.type_of(object) {
            self.heap.references(object, number, &mut found);
        }
        found
    }

    fn kind(&mut self, object: u64) -> Option<Kind> {
        let number = self.heap.type_of(object)?;
        Some(self.heap.types[number as usize].kind)
    }

    /// The entries of a dictionary whose keys are text, in its order.
    fn named(&mut self, dict: u64) -> Vec<(Box<str>, u64)> {
        let found = self.found(dict);
        let named = |reference: &crate::objects::Reference| match reference.label {
            Label::Key(key) => Some((self.heap.string(key)?, reference.target)),
            _ => None,
        };
        found.iter().filter_map(named).collect()
    }

    fn module(&mut self, object: u64, owner: u32, direct: u32, parts: &Parts, name: &str) {
        for (child, tensor) in self.named(parts.parameters) {
            if self.kind(tensor) != Some(Kind::Tensor) {
                continue;
            }
            self.is_of(tensor, owner, name);
            if self.names.contains_key(&tensor) {
                continue;
            }
            let name = joined(name, &child);
            // While a module computes it has a view of the whole in the place of a parameter that lies in another one.
            let lies = self.lies.get(&(object, child));
            let is_view = lies.is_some_and(|parameter| *parameter != tensor);
            if is_view || self.gathered.contains(&tensor) {
                self.gradient(owner, direct, tensor, &name);
            } else {
                self.parameter(owner, direct, tensor, name);
            }
        }
        for (child, tensor) in self.named(parts.buffers) {
            let name = joined(name, &child);
            for block in self.blocks_of(tensor) {
                self.push(block, Use::Buffer, owner, direct, &name, "");
            }
        }
    }

    /// Notes which module has a parameter.
    fn is_of(&mut self, parameter: u64, owner: u32, name: &str) {
        let place = Place {
            owner,
            module: name.to_owned(),
        };
        for block in self.blocks_of(parameter) {
            add(&mut self.uses.of_blocks, block, &place);
        }
        if let Some(tensor) = self.heap.made(parameter) {
            add(&mut self.uses.of_tensors, tensor, &place);
        }
    }

    fn parameter(&mut self, owner: u32, direct: u32, tensor: u64, name: String) {
        let attributes = self.attributes(tensor);
        let attribute = |name: &str| called(&attributes, name);
        // Of a parameter that many lie in, FSDP keeps a part; the whole is there only while it is computed with.
        let part = attribute("_local_shard").map(|part| self.blocks_of(part));
        let part = part.filter(|part| !part.is_empty());
        let mut blocks = match part.or_else(|| self.parts.get(&tensor).cloned()) {
            Some(part) => part,
            None => self.blocks_of(tensor),
        };
        if let Some(part) = attribute("ds_tensor") {
            let mut part = self.blocks_of(part);
            part.retain(|block| !blocks.contains(block));
            blocks.append(&mut part);
        }
        for block in blocks {
            self.push(block, Use::Parameter, owner, direct, &name, "");
        }
        self.gradient(owner, direct, tensor, &name);
        if let Some(gradient) = attribute(MAIN_GRADIENT) {
            for block in self.blocks_of(gradient) {
                self.push(block, Use::Gradient, owner, direct, &name, "");
            }
        }
        if let Some(main) = attribute(MAIN_PARAMETER) {
            for block in self.blocks_of(main) {
                self.push(block, Use::Parameter, owner, direct, &name, MAIN_PARAMETER);
            }
            self.gradient(owner, direct, main, &name);
            self.names.insert(main, name.clone());
        }
        self.names.insert(tensor, name);
    }

    fn gradient(&mut self, owner: u32, direct: u32, tensor: u64, name: &str) {
        if let Some(gradient) = self.heap.gradient_of(tensor) {
            let mut blocks = Vec::new();
            self.add_blocks_of_tensor(gradient, 0, &mut blocks);
            for block in blocks {
                self.push(block, Use::Gradient, owner, direct, name, "");
            }
        }
    }

    /// The attributes of an object that are its own.
    fn attributes(&mut self, object: u64) -> Vec<(Box<str>, u64)> {
        let mut all = Vec::new();
        for reference in self.found(object) {
            match reference.label {
                Label::Attribute(key) => {
                    if let Some(name) = self.heap.string(key) {
                        all.push((name, reference.target));
                    }
                }
                Label::Dict => all.extend(self.named(reference.target)),
                _ => {}
            }
        }
        all
    }

    fn attribute(&mut self, object: u64, name: &str) -> Option<u64> {
        called(&self.attributes(object), name)
    }

    /// The elements of a list or a tuple.
    fn elements(&mut self, object: u64) -> Vec<u64> {
        let found = self.found(object);
        let of_index = found
            .iter()
            .filter(|reference| matches!(reference.label, Label::Index(_)));
        of_index.map(|reference| reference.target).collect()
    }

    /// FSDP's object for a parameter has the part that stays, and the whole that was gathered from all processes.
    fn note_gathered(&mut self, divided: u64) {
        let kept = self.attribute(divided, "sharded_param");
        let whole = self.attribute(divided, "_unsharded_param");
        if let (Some(kept), Some(whole)) = (kept, whole)
            && kept != whole
            && self.kind(whole) == Some(Kind::Tensor)
        {
            self.gathered.insert(whole);
        }
    }

    /// Names the part of a parameter that stays, which is in no module while that computes.
    fn divided(&mut self, divided: u64) {
        let Some(about) = self.attribute(divided, "_module_info") else {
            return;
        };
        let module = self.attribute(about, "module");
        let name = self.attribute(about, "param_name");
        if let (Some(kept), Some(module), Some(name)) =
            (self.attribute(divided, "sharded_param"), module, name)
        {
            self.stays(kept, module, name);
        }
    }

    /// Reads which parameters lie in another one, and which part of that one stays.
    fn flat(&mut self, handle: u64) -> Vec<Lies> {
        let Some(flat) = self.attribute(handle, "flat_param") else {
            return Vec::new();
        };
        let attributes = self.attributes(flat);
        let attribute = |name: &str| called(&attributes, name).unwrap_or(0);
        let part = self.blocks_of(attribute("_local_shard"));
        let [parameters, about, parts] = ["_params", "_param_infos", "_shard_param_infos"]
            .map(|name| self.elements(attribute(name)));
        let mut all = Vec::new();
        for (number, (parameter, about)) in parameters.into_iter().zip(about).enumerate() {
            // Name, module, and the module's name; whether any of it is in the part that this process has.
            let [name, module, ..] = self.elements(about)[..] else {
                continue;
            };
            let of_part = parts.get(number).map(|of_part| self.elements(*of_part));
            let is_here = of_part.and_then(|of_part| of_part.first().copied());
            let is_here = is_here.is_some_and(|is_here| self.heap.key(is_here).0 == "True");
            if !part.is_empty() {
                let blocks = if is_here { part.clone() } else { Vec::new() };
                self.parts.insert(parameter, blocks);
            }
            all.push(Lies {
                parameter,
                module,
                name,
            });
        }
        all
    }

    /// Names a parameter by the module that has it whenever it does not compute.
    fn stays(&mut self, parameter: u64, module: u64, name: u64) {
        if self.names.contains_key(&parameter) || self.kind(parameter) != Some(Kind::Tensor) {
            return;
        }
        let place = self.places.get(&module).cloned();
        if let (Some((owner, direct, module)), Some(name)) = (place, self.heap.string(name)) {
            self.parameter(owner, direct, parameter, joined(&module, &name));
        }
    }

    fn optimizer(&mut self, number: u32, parts: &Parts) {
        let groups = self.found(parts.groups);
        for group in groups {
            let Label::Index(at) = group.label else {
                continue;
            };
            let of_group = self.named(group.target);
            let Some((_, list)) = of_group.iter().find(|(key, _)| &**key == "params") else {
                continue;
            };
            for element in self.found(*list) {
                let Label::Index(index) = element.label else {
                    continue;
                };
                if self.kind(element.target) == Some(Kind::Tensor)
                    && !self.names.contains_key(&element.target)
                {
                    let name = format!("param_groups[{at}]['params'][{index}]");
                    self.parameter(number, number, element.target, name);
                }
            }
        }
        let mut unnamed = 0;
        for entry in self.found(parts.state) {
            let Label::Key(parameter) = entry.label else {
                continue;
            };
            // DeepSpeed gives the optimizer its parameters only for as long as it makes its step.
            if !self.names.contains_key(&parameter) && self.kind(parameter) == Some(Kind::Tensor) {
                let name = format!("state[{unnamed}]");
                self.parameter(number, number, parameter, name);
                unnamed += 1;
            }
            let Some(name) = self.names.get(&parameter).cloned() else {
                continue;
            };
            let mut met = HashSet::new();
            self.state(number, &name, entry.target, String::new(), 0, &mut met);
        }
    }

    /// Looks for tensors in what an optimizer keeps for a parameter. `met` are the containers that are looked into: one that lies in
    /// several others is looked into once, and none in itself.
    fn state(
        &mut self,
        optimizer: u32,
        name: &str,
        object: u64,
        key: String,
        depth: u32,
        met: &mut HashSet<u64>,
    ) {
        match self.kind(object) {
            Some(Kind::Tensor) => {
                for block in self.blocks_of(object) {
                    self.push(block, Use::OptimizerState, optimizer, optimizer, name, &key);
                }
            }
            Some(Kind::Dict | Kind::List | Kind::Tuple)
                if depth < DEEPEST && met.insert(object) =>
            {
                // An optimizer may keep all its parameters for each of them.
                if self.uses.made.len() >= MOST_USES {
                    self.uses.left_out += 1;
                    return;
                }
                for reference in self.found(object) {
                    let shown = match reference.label {
                        Label::Key(of) => match self.heap.key(of) {
                            (_, Some(text)) if key.is_empty() => text.into(),
                            (shown, _) => format!("{key}[{shown}]"),
                        },
                        Label::Index(index) => format!("{key}[{index}]"),
                        _ => continue,
                    };
                    self.state(optimizer, name, reference.target, shown, depth + 1, met);
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, block: u64, what: Use, owner: u32, direct: u32, name: &str, key: &str) {
        if self.uses.made.len() >= MOST_USES {
            self.uses.left_out += 1;
            return;
        }
        self.uses.made.push(Made {
            block,
            what,
            owner,
            name: name.to_owned(),
            key: key.to_owned(),
            direct,
        });
    }

    /// The blocks that a tensor's object has: its own, or those of the tensors that it is made of, as `DTensor` is.
    fn blocks_of(&mut self, object: u64) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.add_blocks_of(object, 0, &mut blocks);
        blocks
    }

    fn add_blocks_of(&mut self, object: u64, depth: u32, blocks: &mut Vec<u64>) {
        if depth > DEEPEST || self.kind(object) != Some(Kind::Tensor) {
            return;
        }
        let own = self.heap.made(object);
        if let Some(block) = own.and_then(|own| self.heap.memory_of(own))
            && self.blocks.contains_key(&block)
        {
            if !blocks.contains(&block) {
                blocks.push(block);
            }
            return;
        }
        for reference in self.found(object) {
            match reference.label {
                Label::Attribute(_) | Label::Member(..) => {
                    self.add_blocks_of(reference.target, depth + 1, blocks)
                }
                Label::Dict => {
                    for (_, attribute) in self.named(reference.target) {
                        self.add_blocks_of(attribute, depth + 1, blocks);
                    }
                }
                _ => {}
            }
        }
    }

    fn add_blocks_of_tensor(&mut self, tensor: u64, depth: u32, blocks: &mut Vec<u64>) {
        match self.heap.memory_of(tensor) {
            Some(block) if self.blocks.contains_key(&block) => blocks.push(block),
            _ => {
                if let Some(object) = self.heap.object_of(tensor) {
                    self.add_blocks_of(object, depth + 1, blocks);
                }
            }
        }
    }
}
