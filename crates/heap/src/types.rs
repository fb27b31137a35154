//! Types of Python objects: what their objects look like.

use memscope_memory::Memory;

use crate::heap::{Heap, Minor, RECENT_TYPES};
use crate::objects::{Found, Label, object};
use crate::shapes::{Attributes, Kind, Member, Type, Value};

/// Offsets in a type object. They are the same in CPython 3.9 to 3.15, with the GIL and without debug checks.
mod at {
    pub const NAME: u64 = 24;
    pub const BASIC_SIZE: u64 = 32;
    pub const ITEM_SIZE: u64 = 40;
    pub const FLAGS: u64 = 168;
    pub const WEAK_LIST: u64 = 208;
    pub const MEMBERS: u64 = 240;
    pub const BASE: u64 = 256;
    pub const DICT: u64 = 264;
    pub const DICT_OFFSET: u64 = 288;
    pub const BASES: u64 = 336;
    pub const MRO: u64 = 344;
    /// Where the part that only types made by a `class` statement have begins at the earliest, and ends at the latest.
    pub const OF_CLASSES: std::ops::Range<u64> = 400..1200;
    /// The module of a class of an extension, behind where the class has its names.
    pub const MODULE_BEHIND_NAMES: u64 = 32;
}

/// Bits of a type's flags.
mod flag {
    pub const MANAGED_DICT: u64 = 1 << 4;
    pub const HEAP_TYPE: u64 = 1 << 9;
    pub const LONG: u64 = 1 << 24;
    pub const LIST: u64 = 1 << 25;
    pub const TUPLE: u64 = 1 << 26;
    pub const BYTES: u64 = 1 << 27;
    pub const TEXT: u64 = 1 << 28;
    pub const DICT: u64 = 1 << 29;
    pub const TYPE: u64 = 1 << 31;
    /// From 3.13 on: the values of attributes follow the object.
    pub const INLINE_VALUES: u64 = 1 << 2;
}

/// Longest name of a type that is read, in bytes.
const LONGEST_NAME: usize = 256;
/// Most members of a type that are looked at.
const MOST_MEMBERS: u64 = 128;
/// Deepest chain of base classes.
const DEEPEST: u32 = 64;
/// `T_OBJECT` and `T_OBJECT_EX`: members that are references to objects.
const OBJECT_MEMBERS: [u32; 2] = [6, 16];

impl<M: Memory + ?Sized> Heap<'_, M> {
    /// The type of the object at this address; `None` where there is no object.
    pub fn type_of(&mut self, object: u64) -> Option<u32> {
        if !object.is_multiple_of(8) || object < 1 << 12 || object >> 48 != 0 {
            return None;
        }
        let address = self.pages.word(object + 8)?;
        self.type_at(address, 0)
    }

    /// The type at this address.
    fn type_at(&mut self, address: u64, depth: u32) -> Option<u32> {
        let slot = (address >> 4) as usize % RECENT_TYPES;
        if let (known, Some(number)) = self.recent_types[slot]
            && known == address
        {
            return Some(number);
        }
        if let Some(known) = self.type_numbers.get(&address) {
            self.recent_types[slot] = (address, *known);
            return *known;
        }
        let number = self.read_type(address, depth).and_then(|made| {
            let number = u32::try_from(self.types.len()).ok()?;
            self.types.push(made);
            Some(number)
        });
        self.type_numbers.insert(address, number);
        number
    }

    fn is_metatype(&mut self, address: u64) -> bool {
        address.is_multiple_of(8)
            && address >> 48 == 0
            && self
                .pages
                .word(address.wrapping_add(at::FLAGS))
                .is_some_and(|flags| flags & flag::TYPE != 0)
    }

    fn read_type(&mut self, address: u64, depth: u32) -> Option<Type> {
        if !address.is_multiple_of(8) || address < 1 << 12 || address >> 48 != 0 || depth > DEEPEST
        {
            return None;
        }
        let metatype = self.pages.word(address + 8)?;
        if !self.is_metatype(metatype) {
            return None;
        }
        let above = self.pages.word(metatype + 8)?;
        if !self.is_metatype(above) {
            return None;
        }
        let flags = self.pages.word(address + at::FLAGS)?;
        let name = self.pages.word(address + at::NAME)?;
        let name = self.pages.text(name, LONGEST_NAME)?;
        let size = self.pages.word(address + at::BASIC_SIZE)?;
        let size = u32::try_from(size).ok().filter(|size| *size < 1 << 20)?;
        let base = match self.pages.word(address + at::BASE)? {
            0 => None,
            base => self.type_at(base, depth + 1),
        };
        let is_class = flags & flag::HEAP_TYPE != 0;
        let attributes = self.attributes_of(address, flags)?;
        let kind = match self.kind(flags, is_class, &name, base) {
            Kind::Leaf if attributes != Attributes::None => Kind::Value,
            kind => kind,
        };
        let mut members =
            base.map_or_else(Vec::new, |base| self.types[base as usize].members.clone());
        self.read_members(address, &mut members);
        let weak_at = self.pages.word(address + at::WEAK_LIST)?;
        let keys = if is_class {
            self.cached_keys(address)
        } else {
            0
        };
        Some(Type {
            name: name.into(),
            kind,
            class: if is_class { address } else { 0 },
            size,
            attributes,
            value: match () {
                () if flags & flag::TEXT != 0 => Value::Text,
                () if flags & flag::LONG != 0 => Value::Whole,
                () => Value::None,
            },
            weak_at: u32::try_from(weak_at).unwrap_or(0),
            members,
            keys,
        })
    }

    fn kind(&self, flags: u64, is_class: bool, name: &str, base: Option<u32>) -> Kind {
        let inherited = base.map_or(Kind::Other, |base| self.types[base as usize].kind);
        let by_flag = [
            (flag::TYPE, Kind::Type),
            (flag::LIST, Kind::List),
            (flag::TUPLE, Kind::Tuple),
            (flag::DICT, Kind::Dict),
            (flag::LONG | flag::BYTES | flag::TEXT, Kind::Leaf),
        ];
        if let Some((_, kind)) = by_flag.iter().find(|(bits, _)| flags & bits != 0) {
            return *kind;
        }
        // A class of a program has no dot in its name, and may be called as it likes.
        if !is_class || name.contains('.') {
            let by_name = match name {
                "float"
                | "complex"
                | "bytearray"
                | "NoneType"
                | "ellipsis"
                | "NotImplementedType"
                | "range"
                | "code"
                | "PyCapsule"
                | "wrapper_descriptor"
                | "method_descriptor"
                | "classmethod_descriptor"
                | "managedbuffer" => Some(Kind::Leaf),
                "getset_descriptor" | "member_descriptor" => Some(Kind::Descriptor),
                "set" | "frozenset" => Some(Kind::Set),
                "cell" => Some(Kind::Cell),
                "module" => Some(Kind::Module),
                "frame" => Some(Kind::Frame),
                "generator" | "coroutine" | "async_generator" => Some(Kind::Generator),
                "collections.deque" => Some(Kind::Deque),
                "weakref"
                | "weakref.ReferenceType"
                | "weakref.ProxyType"
                | "weakref.CallableProxyType"
                | "weakproxy"
                | "weakcallableproxy" => Some(Kind::Weak),
                _ if name.starts_with("torch._C.") && name.ends_with("TensorBase") => {
                    Some(Kind::Tensor)
                }
                "torch._C._FunctionBase" => Some(Kind::Function),
                "torch._C._autograd.SavedTensor" => Some(Kind::Saved),
                _ => None,
            };
            if let Some(kind) = by_name {
                return kind;
            }
        }
        match inherited {
            Kind::Set | Kind::Module | Kind::Deque | Kind::Weak | Kind::Tensor | Kind::Function => {
                inherited
            }
            _ => Kind::Other,
        }
    }

    fn attributes_of(&mut self, address: u64, flags: u64) -> Option<Attributes> {
        if flags & flag::MANAGED_DICT != 0 {
            let managed = match self.minor {
                Minor(11) => Attributes::Pair,
                Minor(12) => Attributes::Tagged,
                Minor(13..) if flags & flag::INLINE_VALUES != 0 => Attributes::Inline,
                Minor(13..) => Attributes::Managed,
                Minor(_) => Attributes::None,
            };
            if managed != Attributes::None {
                return Some(managed);
            }
        }
        let offset = self.pages.word(address + at::DICT_OFFSET)? as i64;
        Some(match u32::try_from(offset) {
            Ok(offset @ 16..0x10_0000) => Attributes::At(offset),
            _ if offset == -8 && self.minor < Minor(12) => {
                let item = self.pages.word(address + at::ITEM_SIZE)?;
                match u32::try_from(item) {
                    Ok(item @ 1..=64) => Attributes::BehindItems(item),
                    _ => Attributes::None,
                }
            }
            _ => Attributes::None,
        })
    }

    fn read_members(&mut self, address: u64, members: &mut Vec<Member>) {
        let Some(mut entry) = self.pages.word(address + at::MEMBERS).filter(|at| *at != 0) else {
            return;
        };
        for _ in 0..MOST_MEMBERS {
            let [name, kind, offset] = [0, 8, 16].map(|at| self.pages.word(entry.wrapping_add(at)));
            let (Some(name @ 1..), Some(kind), Some(offset)) = (name, kind, offset) else {
                return;
            };
            let is_object = OBJECT_MEMBERS.contains(&(kind as u32));
            if is_object
                && let Ok(offset @ 16..0x10_0000) = u32::try_from(offset)
                && let Some(name) = self.pages.text(name, LONGEST_NAME)
                && !members.iter().any(|member| member.offset == offset)
            {
                members.push(Member {
                    offset,
                    name: name.into(),
                });
            }
            entry = entry.wrapping_add(40);
        }
    }

    /// What a type refers to: its dictionary; and if it was made by a `class` statement or is like those, its base classes and its module.
    pub fn references_of_type(&mut self, address: u64, found: &mut Found) {
        let mut word = |heap: &mut Self, label: Label, at: u64| {
            let target = heap.pages.word(address + at).unwrap_or(0);
            object(found, label, target);
        };
        word(self, Label::Dict, at::DICT);
        let flags = self.pages.word(address + at::FLAGS).unwrap_or(0);
        if flags & flag::HEAP_TYPE == 0 {
            return;
        }
        for at in [at::BASE, at::BASES, at::MRO] {
            word(self, Label::Word(at as u32), at);
        }
        if let Some(names_at) = self.class_names_at {
            let module_at = names_at + at::MODULE_BEHIND_NAMES;
            word(self, Label::Word(module_at as u32), module_at);
        }
    }

    /// The name of a type's reference at this offset.
    pub fn name_in_type(offset: u32) -> Option<&'static str> {
        match u64::from(offset) {
            at::BASE => Some("__base__"),
            at::BASES => Some("__bases__"),
            at::MRO => Some("__mro__"),
            _ => None,
        }
    }

    /// The keys of a class's objects: the class has its name, its slots, its qualified name and these keys one after the other.
    fn cached_keys(&mut self, address: u64) -> u64 {
        if let Some(offset) = self.class_names_at {
            return self.keys_behind(address, offset).unwrap_or(0);
        }
        for offset in at::OF_CLASSES.step_by(8) {
            if let Some(keys) = self.keys_behind(address, offset) {
                self.class_names_at = Some(offset);
                return keys;
            }
        }
        0
    }

    fn keys_behind(&mut self, address: u64, offset: u64) -> Option<u64> {
        let [name, slots, qualified, keys] =
            [0, 8, 16, 24].map(|at| self.pages.word(address + offset + at));
        let is_text = |heap: &mut Self, object: Option<u64>| {
            let flags = heap.pages.word(object?.wrapping_add(8)).and_then(|found| {
                (found.is_multiple_of(8) && found >> 48 == 0)
                    .then(|| heap.pages.word(found.wrapping_add(at::FLAGS)))?
            });
            flags.filter(|flags| flags & flag::TEXT != 0)
        };
        is_text(self, name)?;
        is_text(self, qualified)?;
        // `__slots__` is a tuple, if there are any.
        slots.filter(|slots| slots.is_multiple_of(8))?;
        match keys? {
            0 => None,
            keys => self.keys(keys).map(|_| keys),
        }
    }
}
