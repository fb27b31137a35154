//! What is asked, and what an answer says.

use std::borrow::Cow;

use memscope_python::Layout;
use serde::{Deserialize, Serialize};

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
    /// Addresses of Python objects whose ways are told as those of blocks are; usually none.
    pub objects: Vec<u64>,
    /// Whether [`Held::module`] is told. That takes two more looks at all nodes of the autograd graph.
    pub modules: bool,
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
        /// The variable's name.
        name: String,
        /// The function's qualified name, or nothing.
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
    /// Its address, or that of an object that was asked for.
    pub block: u64,
    /// The last holder on the shortest way to it.
    pub holder: u32,
    /// From where it is kept alive.
    pub origin: Origin,
    /// Number of other references to its tensors.
    pub others: u32,
    /// Number of the module in [`Reading::modules`] whose forward pass made it: of what the autograd graph has saved, if it was asked for
    /// and is known.
    pub module: Option<u32>,
}

/// A module of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Module {
    /// The outermost module: its number in [`Reading::holders`].
    pub model: u32,
    /// Its name below that one, as `named_modules()` has it; empty for that one itself, which then is all that is known.
    pub name: String,
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
    /// Modules that made what the autograd graph has saved.
    pub modules: Vec<Module>,
    /// Number of held blocks that are not told, because there were too many holders.
    pub left_out: u64,
    /// What blocks are used for. A block may have several uses.
    pub uses: Vec<Used>,
    /// Number of uses that are not told, because there were too many.
    pub uses_left_out: u64,
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
    pub fn name(&self) -> Option<Cow<'_, str>> {
        match self {
            Link::Attribute(name) | Link::Variable(name) => Some(name.into()),
            Link::Module { name, .. } | Link::Local { name, .. } => Some(name.into()),
            Link::Key { shown, is_text } if *is_text => Some(unquoted(shown).into()),
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

/// A text as Python writes it: what has a meaning of its own in it stands behind a backslash.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// The text that is written like this.
fn unquoted(shown: &str) -> String {
    let inner = shown.strip_prefix('\'').unwrap_or(shown);
    let mut letters = inner.strip_suffix('\'').unwrap_or(inner).chars();
    let mut text = String::new();
    while let Some(letter) = letters.next() {
        let is_behind = letter == '\\';
        text.push(
            is_behind
                .then(|| letters.next())
                .flatten()
                .unwrap_or(letter),
        );
    }
    text
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Use {
    /// A parameter of a module, or one that only an optimizer knows.
    Parameter,
    /// A buffer of a module.
    Buffer,
    /// What an optimizer keeps for a parameter.
    OptimizerState,
    /// The gradient of a parameter.
    Gradient,
}

/// A block whose use is known from the object that has its tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Used {
    /// The block's address.
    pub block: u64,
    /// What it is for.
    pub what: Use,
    /// The outermost module or the optimizer that has it: its number in [`Reading::holders`].
    pub owner: Option<u32>,
    /// The name of the parameter or the buffer below `owner`; of a gradient and of an optimizer's state the parameter's.
    pub name: String,
    /// What of an optimizer's state it is, such as `exp_avg`; `main_param` for the copy of a parameter that Megatron's optimizers change; empty for others.
    pub key: String,
    /// Number of the name of its module's or its optimizer's class in [`Reading::kinds`].
    pub class: u32,
    /// Whether it was the same when it was read for a second time.
    pub is_sure: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_name_that_it_has_in_the_program() {
        for text in [
            "", "weight", "it's", "'a'", "\\", "\\'", "a\\nb", "'", "\u{fc}\\",
        ] {
            let key = Link::Key {
                shown: quoted(text),
                is_text: true,
            };
            assert_eq!(key.name().as_deref(), Some(text), "{}", quoted(text));
        }
    }
}
