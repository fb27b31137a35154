//! What is known of types, and of where PyTorch's objects keep what.

use std::collections::HashSet;

use crate::pages::ByAddress;

/// How the references of an object are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has none that could lead to a tensor: numbers, text, code.
    Leaf,
    /// A number or a text of a class whose objects have attributes, which are its references.
    Value,
    List,
    Tuple,
    Dict,
    Set,
    Deque,
    Cell,
    Module,
    Frame,
    Generator,
    Type,
    /// It describes an attribute of a class, and refers to the class.
    Descriptor,
    /// A weak reference, which keeps its callback alive and not what it refers to.
    Weak,
    Tensor,
    /// A Python function of the autograd graph, which keeps what it saved in PyTorch's own vectors.
    Function,
    /// A tensor that was saved for later, which PyTorch keeps in an object of its own.
    Saved,
    /// All else: attributes, members, and what else of its words are objects.
    Other,
}

/// Where the attributes of an object are that have no place in the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attributes {
    None,
    /// A dictionary, at this offset.
    At(u32),
    /// Up to 3.11: a dictionary in the last word of an object whose items have so many bytes.
    BehindItems(u32),
    /// 3.11: values at −32, a dictionary at −24.
    Pair,
    /// 3.12: at −24 a dictionary, or the values' address less one.
    Tagged,
    /// From 3.13 on: a dictionary at −24.
    Managed,
    /// From 3.13 on: values behind the object, and a dictionary at −24 if it was asked for.
    Inline,
}

/// What an object of a type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing that is read.
    None,
    /// The text that the object is.
    Text,
    /// A whole number, or a truth value.
    Whole,
}

/// A reference that has a name, in every object of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub offset: u32,
    pub name: Box<str>,
}

/// What is known of a Python type.
#[derive(Clone, Debug)]
pub(crate) struct Type {
    /// Its name as its objects' `type(…).__name__` has it, with the module only for types that are not made by a `class` statement.
    pub name: Box<str>,
    pub kind: Kind,
    /// Its address, if its objects keep it alive, as those of a `class` statement do; otherwise 0.
    pub class: u64,
    /// Bytes of its objects, without items.
    pub size: u32,
    pub attributes: Attributes,
    /// What its objects say, where that is a text or a number.
    pub value: Value,
    /// Where its objects keep their weak references, 0 for nowhere.
    pub weak_at: u32,
    /// Of it and its base classes, by offset.
    pub members: Vec<Member>,
    /// The keys that values of attributes belong to, 0 for none.
    pub keys: u64,
}

/// A class of C++.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Its name, without its namespaces.
    pub name: Box<str>,
    /// Whether it is `torch::autograd::Node` or has it among its base classes.
    pub is_node: bool,
}

/// Where PyTorch's objects keep what, in bytes from their beginning. `None` is what was not found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Torch {
    /// In a tensor's object: the tensor.
    pub impl_at: Option<u64>,
    /// In a tensor: its object.
    pub object_at: Option<u64>,
    /// In a tensor: its memory; and there: the address of the block.
    pub storage_at: Option<(u64, u64)>,
    /// In what autograd knows of a tensor: the node that made it. Its gradient is the word before.
    pub grad_fn_at: Option<u64>,
    /// Tables of virtual functions that tensors have.
    pub vtables: HashSet<u64>,
    /// Classes of C++ by their tables of virtual functions; `None` where there is no class.
    pub classes: ByAddress<Option<Class>>,
    /// Whether nodes of the graph count their references themselves, as from PyTorch 2.15 on. Unknown before one was seen.
    pub counts_in_nodes: Option<bool>,
    /// Whether the sizes of pieces of memory stand before them, as the C library's allocator writes them.
    pub has_sizes: bool,
}

/// What makes an object a module or an optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Parameters,
    Buffers,
    Modules,
    State,
    Groups,
}

impl Part {
    /// The part that has this name and is an object of this kind.
    pub fn of(name: &str, kind: Kind) -> Option<Part> {
        Some(match (name, kind) {
            ("_parameters", Kind::Dict) => Part::Parameters,
            ("_buffers", Kind::Dict) => Part::Buffers,
            ("_modules", Kind::Dict) => Part::Modules,
            ("state", Kind::Dict) => Part::State,
            ("param_groups", Kind::List) => Part::Groups,
            _ => return None,
        })
    }

    /// Whether it is a dictionary in which a module keeps what it consists of.
    pub const fn is_of_module(self) -> bool {
        matches!(self, Part::Parameters | Part::Buffers | Part::Modules)
    }
}

/// A reference to such a part, as the search met it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The vertex that has the reference: the object, or its dictionary.
    pub from: u32,
    pub part: Part,
    pub address: u64,
}

/// The entries of a table of keys.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub entries: u64,
    pub count: u64,
    /// Bytes of an entry, and where the key is in it; the value follows.
    pub stride: u64,
    pub key_at: u64,
    /// Whether all keys are text.
    pub texts: bool,
}
