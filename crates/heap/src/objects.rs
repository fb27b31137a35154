//! What an object refers to.

use memscope_memory::Memory;

use crate::heap::{Heap, Minor, RECENT_KEYS};
use crate::shapes::{Attributes, Keys, Kind};

/// Most entries of a list, a dictionary or a set that are believed.
const MOST_ENTRIES: u64 = 1 << 25;
/// Most words of an object of an unknown kind that are looked at.
const MOST_WORDS: u32 = 256;
/// How often the table of a container is read that is moved each time.
const TRIES: u32 = 4;
/// Words of PyTorch's object for a tensor that was saved for later.
const WORDS_OF_SAVED: usize = 16;
/// What the step from an object to its class counts: nearly all classes have a shorter way, from a module.
const TO_THE_CLASS: u32 = 8;
/// What a step counts that tells less than nearly any other way to the same thing: to a key of a dictionary, as a parameter is one of its
/// optimizer's state, and into the list of parameters that an optimizer has. Models are as deep as this, names in them are what people know.
pub(crate) const TELLS_LITTLE: u32 = 64;
/// What the step from a tensor to the graph that made it counts: more than all ways through a program, so that a way leads through the graph
/// only where there is no other.
const OVER_THE_GRAPH: u32 = 1 << 12;
/// Where a weak reference has its callback, the only one of its own words that keeps something alive.
const WEAK_CALLBACK: u32 = 24;
/// So many bytes before a generator's frame stands in which state it is, in all versions from 3.11 on.
const FRAME_STATE: u64 = 5;
/// Objects in a piece of a `deque`.
const DEQUE_PIECE: u64 = 64;

/// How a reference is called where it stands. Numbers are addresses of the objects that give the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    /// An entry of a dictionary, by its key.
    Key(u64),
    /// A key of a dictionary.
    OfKeys,
    /// An element of a list, a tuple or a deque.
    Index(u32),
    /// An element of a set.
    Element,
    /// An attribute whose value is stored with the object, by its name.
    Attribute(u64),
    /// The dictionary of an object, a module or a class.
    Dict,
    /// A reference that the type gives a name: the type's number and the member's.
    Member(u32, u32),
    /// What a cell contains.
    Content,
    /// A local variable of a frame, by its code object and number.
    Local(u64, u32),
    /// A word of an object of which no more is known, by its offset.
    Word(u32),
    /// From a tensor's object to the tensor itself, or back.
    Tensor,
    /// The gradient of a tensor.
    Gradient,
    /// The node of the autograd graph that made a tensor.
    GradFn,
    /// A tensor that a node of the graph saved for the backward pass.
    Saved,
    /// A node whose result this node needs.
    Next,
    /// A Python object that a node of the graph belongs to.
    Function,
    /// The class of an object, which the object keeps alive.
    Class,
    /// Where a search began: a module, by its name.
    Module(u64),
    /// Where a search began: something that is kept alive by what is not Python.
    Outside,
    /// Where a search began: something that waits for the garbage collector.
    Garbage,
}

impl Label {
    /// How long the way over this reference counts: ways that have names are preferred, and what only belongs together is no way.
    pub fn cost(self) -> u32 {
        match self {
            Label::Dict | Label::Content | Label::Tensor => 0,
            Label::OfKeys => TELLS_LITTLE,
            Label::Word(_) => 4,
            Label::Class => TO_THE_CLASS,
            Label::GradFn => OVER_THE_GRAPH,
            _ => 1,
        }
    }
}

/// What is at the end of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A Python object, or nothing at all.
    Object,
    /// A tensor in PyTorch's own memory (`c10::TensorImpl`).
    Impl,
    /// A node of the autograd graph.
    Node,
}

/// A reference from one object to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub label: Label,
    pub target: u64,
    pub what: What,
}

/// The table of a container, as it was read.
#[derive(Clone, Copy, Debug)]
struct Table {
    /// How long it is.
    bytes: u64,
    /// Whether it has as many elements as the container says.
    is_whole: bool,
}

impl Table {
    const fn whole(bytes: u64) -> Table {
        Table {
            bytes,
            is_whole: true,
        }
    }
}

/// References, as they are found.
pub(crate) type Found = Vec<Reference>;

pub(crate) fn object(found: &mut Found, label: Label, target: u64) {
    if target != 0 {
        found.push(Reference {
            label,
            target,
            what: What::Object,
        });
    }
}

impl<M: Memory + ?Sized> Heap<'_, M> {
    /// All references of the object, whose type is this one.
    pub fn references(&mut self, address: u64, number: u32, found: &mut Found) {
        let Some(made) = self.types.get(number as usize) else {
            return;
        };
        let kind = made.kind;
        object(found, Label::Class, made.class);
        match kind {
            Kind::Leaf => return,
            Kind::Value => {}
            // The type of a weak reference has the callback as a member, that of a proxy does not.
            Kind::Weak if self.has_member_at(number, WEAK_CALLBACK) => {}
            Kind::Weak => {
                let at = address + u64::from(WEAK_CALLBACK);
                let callback = self.pages.word(at).unwrap_or(0);
                object(found, Label::Word(WEAK_CALLBACK), callback);
            }
            Kind::List => self.settled(address, 24, found, Self::list),
            Kind::Tuple => {
                let count = self.count(address + 16);
                self.items(self.items_of_tuple(address), count, found);
            }
            Kind::Dict => self.settled(address, 32, found, Self::dict),
            Kind::Set => self.settled(address, 40, found, Self::set),
            Kind::Deque => self.deque(address, found),
            Kind::Cell => {
                let content = self.pages.word(address + 16).unwrap_or(0);
                object(found, Label::Content, content);
            }
            Kind::Module => {
                let dict = self.pages.word(address + 16).unwrap_or(0);
                object(found, Label::Dict, dict);
            }
            Kind::Type => {
                self.references_of_type(address, found);
                return;
            }
            Kind::Descriptor => {
                let class = self.pages.word(address + 16).unwrap_or(0);
                object(found, Label::Word(16), class);
                return;
            }
            Kind::Frame => self.frame_object(address, number, found),
            Kind::Generator => {
                let end = self.generator(address, number, found);
                self.words_until(address, number, end, found);
            }
            Kind::Tensor => {
                self.tensor(address, found);
                self.words_of(address, number, found);
            }
            Kind::Function => {
                self.function_of_graph(address, number, found);
                self.words_of(address, number, found);
            }
            Kind::Saved => {
                let saved = self.pages.word(address + 16).unwrap_or(0);
                let words = self.pages.words(saved, WORDS_OF_SAVED);
                for at in 0..words.len() {
                    self.kept_by_cpp(&words[at..], found);
                }
            }
            Kind::Other => self.words_of(address, number, found),
        }
        self.attributes(address, number, found);
    }

    /// Where the elements of a tuple begin. From 3.14 on its hash stands before them.
    pub fn items_of_tuple(&self, tuple: u64) -> u64 {
        tuple + if self.minor < Minor(14) { 24 } else { 32 }
    }

    /// The number of entries at this address, 0 if it is no such number.
    fn count(&mut self, address: u64) -> u64 {
        let count = self.pages.word(address).unwrap_or(0);
        if count <= MOST_ENTRIES { count } else { 0 }
    }

    /// The number of elements of a list, a tuple, a dictionary, a set or a deque.
    pub fn length(&mut self, address: u64, kind: Kind) -> Option<u64> {
        match kind {
            Kind::List | Kind::Tuple | Kind::Dict | Kind::Deque => Some(self.count(address + 16)),
            Kind::Set => Some(self.count(address + 24)),
            _ => None,
        }
    }

    /// Reads the elements of a container by `elements`, once more if the table at `table_at` was moved meanwhile. The container may be in a
    /// page that was read long ago, and where its table was then may be anything now.
    fn settled(
        &mut self,
        address: u64,
        table_at: u64,
        found: &mut Found,
        elements: fn(&mut Self, u64, &mut Found) -> Table,
    ) {
        let before = found.len();
        for _ in 0..TRIES {
            let Table { bytes, is_whole } = elements(self, address, found);
            if is_whole && bytes < self.moves_from * 8 || self.pages.is_spent() {
                return;
            }
            let table = self.pages.word(address + table_at);
            let now = self.pages.word_now(address + table_at);
            if now.is_none() || is_whole && now == table {
                return;
            }
            found.truncate(before);
            self.recent_keys.fill((0, None));
            self.pages.renew(address, 48);
            self.pages.renew(now.unwrap_or(0), bytes);
        }
        elements(self, address, found);
    }

    fn list(&mut self, address: u64, found: &mut Found) -> Table {
        let count = self.count(address + 16);
        if let Some(items) = self.pages.word(address + 24) {
            self.items(items, count, found);
        }
        Table::whole(count * 8)
    }

    fn items(&mut self, items: u64, count: u64, found: &mut Found) {
        for index in 0..count {
            let Some(item) = self.pages.word(items.wrapping_add(index * 8)) else {
                return;
            };
            object(found, Label::Index(index as u32), item);
        }
    }

    fn set(&mut self, address: u64, found: &mut Found) -> Table {
        let mask = self.count(address + 32);
        if let Some(table) = self.pages.word(address + 40) {
            for entry in 0..=mask {
                let Some(element) = self.pages.word(table.wrapping_add(entry * 16)) else {
                    break;
                };
                object(found, Label::Element, element);
            }
        }
        Table::whole((mask + 1) * 16)
    }

    fn deque(&mut self, address: u64, found: &mut Found) {
        let count = self.count(address + 16);
        let (Some(mut piece), Some(mut at)) =
            (self.pages.word(address + 24), self.pages.word(address + 40))
        else {
            return;
        };
        for index in 0..count {
            if at >= DEQUE_PIECE {
                let Some(next) = self.pages.word(piece.wrapping_add(8 + DEQUE_PIECE * 8)) else {
                    return;
                };
                (piece, at) = (next, 0);
            }
            let Some(item) = self.pages.word(piece.wrapping_add(8 + at * 8)) else {
                return;
            };
            object(found, Label::Index(index as u32), item);
            at += 1;
        }
    }

    /// The table of keys at this address, if it is one. All objects of a class share one.
    pub fn keys(&mut self, keys: u64) -> Option<Keys> {
        let slot = (keys >> 4) as usize % RECENT_KEYS;
        match self.recent_keys[slot] {
            (known, found) if known == keys => found,
            _ => {
                let found = self.read_keys(keys);
                self.recent_keys[slot] = (keys, found);
                found
            }
        }
    }

    fn read_keys(&mut self, keys: u64) -> Option<Keys> {
        if self.minor < Minor(11) {
            let size = self.pages.word(keys.checked_add(8)?)?;
            let count = self.pages.word(keys + 32)?;
            if !size.is_power_of_two() || size > MOST_ENTRIES || count > size {
                return None;
            }
            let index = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                _ => 4,
            };
            return Some(Keys {
                entries: keys + 40 + size * index,
                count,
                stride: 24,
                key_at: 8,
                texts: false,
            });
        }
        let [_, bytes, _, count] = [0, 8, 16, 24].map(|at| self.pages.word(keys.wrapping_add(at)));
        let ([log, log_bytes, kind, ..], count) = (bytes?.to_le_bytes(), count?);
        if log > 32 || log_bytes > 36 || log_bytes < log || kind > 2 || count > 1 << log {
            return None;
        }
        let entries = keys + 32 + (1u64 << log_bytes);
        let (stride, key_at) = if kind == 0 { (24, 8) } else { (16, 0) };
        (count <= MOST_ENTRIES).then_some(Keys {
            entries,
            count,
            stride,
            key_at,
            texts: kind != 0,
        })
    }

    /// Where the values of a split table begin.
    fn values(&self, values: u64) -> u64 {
        match self.minor {
            Minor(13..) => values.wrapping_add(8),
            Minor(_) => values,
        }
    }

    fn dict(&mut self, address: u64, found: &mut Found) -> Table {
        let [keys, values] = [32, 40].map(|at| self.pages.word(address + at));
        let count = self.count(address + 16);
        let (Some(keys), Some(values)) = (keys, values) else {
            return Table::whole(0);
        };
        let values = (values != 0).then(|| self.values(values));
        let before = found.len();
        if let Some(keys) = self.keys(keys) {
            self.entries(&keys, values, found, Label::Key);
        }
        let is_entry = |reference: &&Reference| reference.label != Label::OfKeys;
        let entries = found[before..].iter().filter(is_entry).count();
        Table {
            bytes: count * 16,
            // A dictionary counts its entries. Other numbers are in a table that is no longer its own.
            is_whole: entries as u64 == count,
        }
    }

    fn entries(
        &mut self,
        keys: &Keys,
        values: Option<u64>,
        found: &mut Found,
        label: fn(u64) -> Label,
    ) {
        for number in 0..keys.count {
            let entry = keys
                .entries
                .wrapping_add(number * keys.stride + keys.key_at);
            let value = match values {
                Some(values) => values.wrapping_add(number * 8),
                None => entry.wrapping_add(8),
            };
            let (Some(key), Some(value)) = (self.pages.word(entry), self.pages.word(value)) else {
                return;
            };
            if value == 0 || key == 0 {
                continue;
            }
            object(found, label(key), value);
            if !keys.texts {
                object(found, Label::OfKeys, key);
            }
        }
    }

    /// What an object has by names of its own, and by names that its type gives.
    fn attributes(&mut self, address: u64, number: u32, found: &mut Found) {
        let Some(made) = self.types.get(number as usize) else {
            return;
        };
        let (attributes, size, keys) = (made.attributes, made.size, made.keys);
        if made.kind != Kind::Module {
            for member in 0..made.members.len() {
                let offset = self.types[number as usize].members[member].offset;
                let target = self.pages.word(address + u64::from(offset)).unwrap_or(0);
                object(found, Label::Member(number, member as u32), target);
            }
        }
        let dict = |heap: &mut Self, at: u64| heap.pages.word(at).unwrap_or(0);
        match attributes {
            Attributes::None => {}
            Attributes::At(offset) => {
                let dict = dict(self, address + u64::from(offset));
                if made_is_not_module(self.types[number as usize].kind) {
                    object(found, Label::Dict, dict);
                }
            }
            Attributes::BehindItems(item) => {
                // The number of items of an `int` has its sign.
                let count = self.pages.word(address + 16).unwrap_or(0) as i64;
                let items = count.unsigned_abs().min(MOST_ENTRIES) * u64::from(item);
                let end = (address + u64::from(size) + items).next_multiple_of(8);
                let dict = dict(self, end - 8);
                object(found, Label::Dict, dict);
            }
            Attributes::Pair => {
                let dict = dict(self, address - 24);
                object(found, Label::Dict, dict);
                let values = self.pages.word(address - 32).unwrap_or(0);
                self.inline(keys, values, found);
            }
            Attributes::Tagged => match dict(self, address - 24) {
                tagged if tagged & 1 == 1 => self.inline(keys, tagged + 1, found),
                dict => object(found, Label::Dict, dict),
            },
            Attributes::Managed => {
                let dict = dict(self, address - 24);
                object(found, Label::Dict, dict);
            }
            Attributes::Inline => {
                let dict = dict(self, address - 24);
                object(found, Label::Dict, dict);
                let values = address + u64::from(size);
                // The fourth byte says whether the values are in use; a dictionary of the object shares them.
                let used = self
                    .pages
                    .word(values)
                    .is_some_and(|head| head >> 24 & 1 == 1);
                if dict == 0 && used {
                    let values = self.values(values);
                    self.inline(keys, values, found);
                }
            }
        }
    }

    fn inline(&mut self, keys: u64, values: u64, found: &mut Found) {
        if keys != 0
            && values != 0
            && let Some(keys) = self.keys(keys)
        {
            self.entries(&keys, Some(values), found, Label::Attribute);
        }
    }

    /// What a Python function of the autograd graph saved in vectors. Its single words are looked at as those of all objects are.
    fn function_of_graph(&mut self, address: u64, number: u32, found: &mut Found) {
        let size = self.types.get(number as usize).map_or(0, |made| made.size);
        let count = size.min(16 + MOST_WORDS * 8).saturating_sub(16) / 8;
        let words = self.pages.words(address + 16, count as usize);
        for at in 0..words.len() {
            if self.cpp(words[at]).is_none() && self.type_of(words[at]).is_none() {
                self.kept_by_cpp(&words[at..], found);
            }
        }
    }

    /// The words of an object that no name is known for, between the header and what is known.
    fn words_of(&mut self, address: u64, number: u32, found: &mut Found) {
        self.words_until(address, number, u64::MAX, found);
    }

    /// The same, up to this address.
    fn words_until(&mut self, address: u64, number: u32, until: u64, found: &mut Found) {
        let Some(made) = self.types.get(number as usize) else {
            return;
        };
        let dict_at = match made.attributes {
            Attributes::At(offset) => offset,
            _ => 0,
        };
        let (end, weak_at) = (made.size.min(16 + MOST_WORDS * 8), made.weak_at);
        // Where nodes do not count themselves, a Python function of the graph knows its node without keeping it alive.
        let is_function = made.kind == Kind::Function && self.torch.counts_in_nodes != Some(true);
        // The tensor of a tensor's object was told already.
        let tensor_at = match made.kind {
            Kind::Tensor => self.torch.impl_at.unwrap_or(0),
            _ => 0,
        };
        for offset in (16..end).step_by(8) {
            if address + u64::from(offset) >= until {
                return;
            }
            if offset == weak_at
                || offset == dict_at
                || u64::from(offset) == tensor_at
                || self.has_member_at(number, offset)
            {
                continue;
            }
            let Some(word) = self.pages.word(address + u64::from(offset)) else {
                return;
            };
            if word == 0 {
                continue;
            }
            if self.type_of(word).is_some() {
                object(found, Label::Word(offset), word);
            } else if let Some(what) = self.cpp(word) {
                if is_function && what == What::Node {
                    continue;
                }
                let label = match what {
                    What::Node => Label::GradFn,
                    _ => Label::Saved,
                };
                found.push(Reference {
                    label,
                    target: word,
                    what,
                });
            }
        }
    }

    fn has_member_at(&self, number: u32, offset: u32) -> bool {
        let members = self.types.get(number as usize).map(|made| &made.members);
        members.is_some_and(|members| members.iter().any(|member| member.offset == offset))
    }

    /// The local variables of a frame, whose code object and variables are at these addresses.
    pub fn locals(&mut self, code: u64, locals: u64, found: &mut Found) {
        for number in 0..self.count_of_locals(code) {
            let Some(word) = self.pages.word(locals.wrapping_add(number * 8)) else {
                return;
            };
            // From 3.14 on the lowest bits say how the reference is counted.
            let target = match self.minor {
                Minor(14..) if word & 3 == 3 => 0,
                Minor(14..) => word & !3,
                Minor(_) => word,
            };
            object(found, Label::Local(code, number as u32), target);
        }
    }

    fn count_of_locals(&mut self, code: u64) -> u64 {
        let [first, second, third] = self.tables_of_names(code);
        let mut count = 0;
        for table in [first, second, third] {
            if table != 0 {
                count += self.count(table + 16);
            }
        }
        count
    }

    /// The tuples with the names of a code object's variables, in their order in a frame: variables, cells, free variables up to 3.10, and
    /// one tuple with all of them later.
    pub fn tables_of_names(&mut self, code: u64) -> [u64; 3] {
        let word = |heap: &mut Self, at: u64| heap.pages.word(code.wrapping_add(at)).unwrap_or(0);
        if self.minor < Minor(11) {
            let [variables, free, cells] = [72, 80, 88].map(|at| word(self, at));
            return [variables, cells, free];
        }
        // The names stand two words before the name of the file, in all versions.
        let at = u64::from(self.layout.code.file_name.saturating_sub(16));
        [word(self, at), 0, 0]
    }

    /// Whether there is a code object at this address.
    pub fn is_code(&mut self, address: u64) -> bool {
        address.is_multiple_of(8)
            && address != 0
            && self.pages.word(address.wrapping_add(8)) == Some(self.code_type)
    }

    /// The code object of the interpreter's frame at this address.
    fn code_of_frame(&mut self, frame: u64) -> Option<u64> {
        let word = self.pages.word(frame + u64::from(self.layout.frame.code))?;
        let code = self.layout.code_address(word);
        self.is_code(code).then_some(code)
    }

    /// The local variables of the interpreter's frame at this address.
    pub fn locals_of_frame(&mut self, frame: u64, found: &mut Found) {
        if let Some(code) = self.code_of_frame(frame) {
            let locals = frame + u64::from(self.layout.frame.locals);
            self.locals(code, locals, found);
        }
    }

    fn frame_object(&mut self, address: u64, number: u32, found: &mut Found) {
        let back = self
            .pages
            .word(address + if self.minor < Minor(11) { 24 } else { 16 });
        object(found, Label::Word(16), back.unwrap_or(0));
        if self.minor < Minor(11) {
            if !self.walked.contains(&address) {
                self.locals_of_frame_object(address, number, found);
            }
            return;
        }
        let frame = self.pages.word(address + 24);
        let Some(frame) = frame.filter(|frame| frame.is_multiple_of(8)) else {
            return;
        };
        // The variables of a generator's frame are told with the generator, which has them.
        if !self.walked.contains(&frame) && !self.is_of_generator(frame) {
            self.locals_of_frame(frame, found);
        }
    }

    /// The local variables of a frame object up to 3.10, which has them itself.
    pub fn locals_of_frame_object(&mut self, address: u64, number: u32, found: &mut Found) {
        let code = self.pages.word(address + 32).unwrap_or(0);
        let size = self.types.get(number as usize).map_or(0, |made| made.size);
        if self.is_code(code) && size >= 24 {
            self.locals(code, address + u64::from(size) - 8, found);
        }
    }

    fn is_of_generator(&mut self, frame: u64) -> bool {
        let mut told = [0];
        let at = frame.wrapping_add(u64::from(self.layout.frame.owner));
        self.pages.bytes(at, &mut told) && told == [self.layout.frame.owner_generator as u8]
    }

    /// The local variables of a generator or a coroutine. Returns where its own words end.
    fn generator(&mut self, address: u64, number: u32, found: &mut Found) -> u64 {
        let size = u64::from(self.types.get(number as usize).map_or(0, |made| made.size));
        let end = address + size;
        if self.minor < Minor(11) {
            return end;
        }
        for frame in (address + 16..end).step_by(8) {
            if self.code_of_frame(frame).is_none() || !self.is_of_generator(frame) {
                continue;
            }
            let mut state = [0];
            if self.pages.bytes(frame - FRAME_STATE, &mut state) && self.is_finished(state[0]) {
                return frame;
            }
            // The variables of one that runs are told with those of its thread.
            if !self.walked.contains(&frame) {
                self.locals_of_frame(frame, found);
            }
            break;
        }
        end
    }

    /// Whether a generator's frame in this state is over. What was in its variables still stands there, but keeps nothing alive.
    fn is_finished(&self, state: u8) -> bool {
        match self.minor {
            // It is `FRAME_CLEARED`, and the smaller numbers are those of generators that wait or run.
            Minor(15..) => state == 5,
            // `FRAME_COMPLETED` and `FRAME_CLEARED`; one that waits has a number below zero.
            Minor(_) => matches!(state, 1 | 4),
        }
    }
}

fn made_is_not_module(kind: Kind) -> bool {
    kind != Kind::Module
}
