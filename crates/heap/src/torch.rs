//! PyTorch's own objects: tensors, their memory, their gradients, and the autograd graph.
//!
//! Where they keep what is found by evidence: a tensor's object and the tensor point to one another, its memory is a block that is known,
//! and a node of the graph points to itself.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use memscope_memory::Memory;

use crate::heap::Heap;
use crate::objects::{Found, Label, Reference, What};
use crate::pages::ByAddress;
use crate::shapes::Class;

/// Tensors that are looked at to learn where they keep what.
const SAMPLE: usize = 4096;
/// Tensors that are looked at for some whose memory is a block, or that have a gradient or a graph, where few of the sample are, and the
/// number of such tensors that is enough.
const LOOKED_AT: usize = 1 << 17;
const ENOUGH_VOTES: usize = 16;
/// Bytes of a node of the graph that are looked at, if its true size is not known.
const SHORT_NODE: u64 = 256;
/// Largest node that is believed, in bytes.
const LONGEST_NODE: u64 = 1 << 14;
/// Largest vector in a node that is looked at, in bytes, where nothing else tells that it is one.
const LONGEST_VECTOR: u64 = 1 << 16;
/// The same, where the C library's allocator says how much room there is. A compiled model saves all that its backward pass needs in one vector,
/// of some hundred bytes for each tensor.
const LONGEST_SIZED_VECTOR: u64 = 1 << 24;
/// Smallest node that is believed, in bytes.
const SMALLEST_NODE: u64 = 56;
/// Smallest piece of memory of the C library's allocator, in bytes.
const SMALLEST_PIECE: u64 = 32;
/// Most bytes at the end of a piece of memory of the C library's allocator that were not asked for: pieces are multiples of 16 bytes, and a
/// rest that would be too small for a piece is left to the one before it.
const UNUSED_AT_THE_END: u64 = 47;
/// The same of a piece with a mapping of its own, which has whole pages.
const UNUSED_OF_A_MAPPING: u64 = 4096 + UNUSED_AT_THE_END;
/// Bytes of a tensor's piece of memory.
const SIZES_OF_TENSORS: RangeInclusive<u64> = 96..=512;
/// Bits of the references that keep something alive, in a word of counts.
const COUNTS: u64 = 0x7fff_ffff;
/// The class of all nodes of the graph, as C++ writes it.
const CLASS_OF_NODES: &str = "N5torch8autograd4NodeE";
/// Most base classes of a class that are looked at.
const DEEPEST_CLASS: u32 = 8;
/// Words of the object with the Python functions that pack and unpack a saved tensor, behind its class.
const WORDS_OF_HOOKS: usize = 9;
/// Longest name of a node that is read, in bytes.
const LONGEST_NAME: usize = 512;

impl<M: Memory + ?Sized> Heap<'_, M> {
    /// Learns from the tensors whose objects these are. `blocks` has the addresses of all blocks of the device.
    pub fn learn(&mut self, tensors: &[u64], blocks: &ByAddress<u32>) {
        // Spread over all: those that come first may all be tensors of the host.
        let every = tensors.len().div_ceil(SAMPLE).max(1);
        let all = tensors;
        let tensors: Vec<u64> = all.iter().step_by(every).copied().collect();
        let mut votes: HashMap<(u64, u64), usize> = HashMap::new();
        for tensor in &tensors {
            for at in [16, 24, 32] {
                let Some(made) = self
                    .pages
                    .word(tensor + at)
                    .filter(|made| is_pointer(*made))
                else {
                    continue;
                };
                for own in (16..128).step_by(8) {
                    // The lowest bit says who owns whom.
                    if self.pages.word(made + own).map(|word| word & !1) == Some(*tensor) {
                        *votes.entry((at, own)).or_default() += 1;
                    }
                }
            }
        }
        let Some((impl_at, object_at)) = first_of_most(&votes) else {
            return;
        };
        self.torch.impl_at = Some(impl_at);
        self.torch.object_at = Some(object_at);
        let tensors: Vec<u64> = tensors
            .iter()
            .filter_map(|tensor| self.made(*tensor))
            .collect();
        let tables: HashSet<u64> = tensors
            .iter()
            .filter_map(|tensor| self.pages.word(*tensor))
            .collect();
        self.torch.vtables = tables;
        self.learn_sizes(&tensors);
        let mut votes: HashMap<(u64, u64), usize> = HashMap::new();
        for tensor in &tensors {
            self.vote_for_storage(*tensor, blocks, &mut votes);
        }
        // Few tensors of a device among many of the host may all have been left out.
        for object in all.iter().take(LOOKED_AT) {
            if votes.values().sum::<usize>() >= ENOUGH_VOTES {
                break;
            }
            if let Some(tensor) = self.made(*object) {
                self.vote_for_storage(tensor, blocks, &mut votes);
            }
        }
        self.torch.storage_at = first_of_most(&votes);
        let mut votes: HashMap<(u64, u64), usize> = HashMap::new();
        for tensor in &tensors {
            self.vote_for_autograd(*tensor, &mut votes);
        }
        // And so may few that have a gradient or a graph, among many that have none.
        for object in all.iter().take(LOOKED_AT) {
            if votes.values().sum::<usize>() >= ENOUGH_VOTES {
                break;
            }
            if let Some(tensor) = self.made(*object) {
                self.vote_for_autograd(tensor, &mut votes);
            }
        }
        self.torch.grad_fn_at = first_of_most(&votes).map(|(at, _)| at);
    }

    /// Votes for the places of the storage in a tensor, and of the data in a storage, that lead to a block.
    fn vote_for_storage(
        &mut self,
        tensor: u64,
        blocks: &ByAddress<u32>,
        votes: &mut HashMap<(u64, u64), usize>,
    ) {
        for at in (16..64).step_by(8) {
            let Some(memory) = self.pages.word(tensor + at).filter(|at| is_pointer(*at)) else {
                continue;
            };
            for own in (8..64).step_by(8) {
                let word = self.pages.word(memory + own).unwrap_or(0);
                if blocks.contains_key(&word) {
                    *votes.entry((at, own)).or_default() += 1;
                }
            }
        }
    }

    /// Tensors are of one class in nearly all cases, so that the C library's allocator gives them pieces of one size. Another allocator has
    /// something else before them.
    fn learn_sizes(&mut self, tensors: &[u64]) {
        let mut votes: HashMap<u64, usize> = HashMap::new();
        for tensor in tensors {
            if let Some(size) = self.size_of_piece(*tensor) {
                *votes.entry(size).or_default() += 1;
            }
        }
        let most = votes
            .into_iter()
            .filter(|(size, _)| SIZES_OF_TENSORS.contains(size))
            .map(|(_, count)| count)
            .max();
        self.torch.has_sizes = most.is_some_and(|most| most * 2 > tensors.len());
    }

    /// Bytes that can be used of the piece of memory that begins here, as the C library's allocator wrote it before the piece; `None` where
    /// that makes no sense.
    fn size_of_piece(&mut self, begin: u64) -> Option<u64> {
        let size = self.pages.word(begin.checked_sub(8)?)? & !7;
        (size.is_multiple_of(16) && size >= SMALLEST_PIECE).then(|| size - 8)
    }

    /// Whether these can be the begin, the end and the end of the room of a vector: the room is a piece of memory, whose size is known where
    /// the allocator writes it. Without that, three pointers that happen to ascend would be taken for a vector of all that lies between them.
    fn is_vector(&mut self, begin: u64, end: u64, room: u64) -> bool {
        let bytes = end.wrapping_sub(begin);
        if begin >= end || end > room || !bytes.is_multiple_of(8) {
            return false;
        }
        if !self.torch.has_sizes {
            return bytes <= LONGEST_VECTOR;
        }
        let most = match self.has_own_mapping(begin) {
            true => UNUSED_OF_A_MAPPING,
            false => UNUSED_AT_THE_END,
        };
        bytes <= LONGEST_SIZED_VECTOR
            && self
                .size_of_piece(begin)
                .and_then(|size| size.checked_sub(room - begin))
                .is_some_and(|unused| unused <= most)
    }

    /// Whether the C library's allocator has made a mapping for this piece of memory alone, as it does for large ones.
    fn has_own_mapping(&mut self, begin: u64) -> bool {
        let size = begin.checked_sub(8).and_then(|at| self.pages.word(at));
        size.is_some_and(|size| size & 2 == 2)
    }

    /// Autograd's knowledge of a tensor follows its memory.
    fn autograd_of(&mut self, tensor: u64) -> Option<u64> {
        let (storage_at, _) = self.torch.storage_at?;
        let meta = self.pages.word(tensor + storage_at + 8)?;
        is_pointer(meta).then_some(meta)
    }

    /// Votes for the place of the graph in autograd's knowledge of a tensor.
    fn vote_for_autograd(&mut self, tensor: u64, votes: &mut HashMap<(u64, u64), usize>) {
        let Some(meta) = self.autograd_of(tensor) else {
            return;
        };
        for at in (16..160).step_by(8) {
            let word = |heap: &mut Self, at: u64| heap.pages.word(meta + at).unwrap_or(0);
            let gradient = word(self, at - 8);
            if self.is_tensor(gradient) {
                *votes.entry((at, 0)).or_default() += 1;
            }
            let (node, counts) = (word(self, at), word(self, at + 8));
            if !self.is_shared(node, counts) {
                continue;
            }
            // What gathers the gradient of a tensor that no node made is kept behind the node.
            let at = match self.class(node) {
                Some(class) if &*class.name == "AccumulateGrad" => at - self.words_of_pointer() * 8,
                _ => at,
            };
            *votes.entry((at, 0)).or_default() += 1;
        }
    }

    /// Whether a shared pointer with these counts leads to this node and keeps it alive. A weak one may lead to memory that has something
    /// else by now.
    fn is_shared(&mut self, node: u64, counts: u64) -> bool {
        if !self.is_node(node) {
            return false;
        }
        self.torch.counts_in_nodes == Some(true)
            || self.pages.word(node + 16) == Some(counts)
                && self
                    .pages
                    .word(counts.wrapping_add(8))
                    .is_some_and(|counts| counts & COUNTS != 0)
    }

    /// Words of a pointer to a node that keeps it alive: the node, and, where nodes do not count themselves, the counts.
    fn words_of_pointer(&self) -> u64 {
        match self.torch.counts_in_nodes {
            Some(true) => 1,
            _ => 2,
        }
    }

    /// Whether it is known where tensors keep their memory.
    pub fn knows_tensors(&self) -> bool {
        self.torch.storage_at.is_some()
    }

    /// Whether it is known where tensors keep their gradients and the graph.
    pub fn knows_graphs(&self) -> bool {
        self.torch.grad_fn_at.is_some()
    }

    /// The tensor that this object stands for.
    pub fn made(&mut self, object: u64) -> Option<u64> {
        let made = self.pages.word(object + self.torch.impl_at?)?;
        is_pointer(made).then_some(made)
    }

    /// The object that stands for a tensor, if it has one.
    pub fn object_of(&mut self, tensor: u64) -> Option<u64> {
        let object = self.pages.word(tensor + self.torch.object_at?)? & !1;
        (is_pointer(object) && self.made(object) == Some(tensor)).then_some(object)
    }

    /// The object of a tensor, if the tensor keeps it alive. Up to PyTorch 2.9 either keeps the other alive, and the lowest bit of the pointer
    /// says which; later the tensor does as well while more than its object refers to it, and the highest bit of its counts says that it
    /// has an object.
    fn object_kept_by(&mut self, tensor: u64) -> Option<u64> {
        let object = self.object_of(tensor)?;
        let pointer = self.pages.word(tensor + self.torch.object_at?)?;
        let counts = self.pages.word(tensor + 8)?;
        let is_kept = pointer & 1 == 1 || counts >> 63 == 1 && counts & COUNTS > 1;
        is_kept.then_some(object)
    }

    /// The gradient of the tensor whose object this is.
    pub fn gradient_of(&mut self, object: u64) -> Option<u64> {
        let tensor = self.made(object)?;
        let at = self.torch.grad_fn_at?;
        let meta = self.autograd_of(tensor)?;
        let gradient = self.pages.word(meta + at - 8)?;
        self.is_tensor(gradient).then_some(gradient)
    }

    /// The address of a tensor's memory.
    pub fn memory_of(&mut self, tensor: u64) -> Option<u64> {
        let (storage_at, block_at) = self.torch.storage_at?;
        let storage = self.pages.word(tensor + storage_at)?;
        if !is_pointer(storage) {
            return None;
        }
        self.pages.word(storage + block_at).filter(|at| *at != 0)
    }

    /// The tensor of a tensor's object, unless the object only borrows it. Then the tensor keeps the object alive.
    pub fn tensor(&mut self, object: u64, found: &mut Found) {
        let mut borrows = [0];
        if self.torch.impl_at == Some(24)
            && self.pages.bytes(object + 16, &mut borrows)
            && borrows != [0]
        {
            return;
        }
        if let Some(target) = self.made(object) {
            found.push(Reference {
                label: Label::Tensor,
                target,
                what: What::Impl,
            });
        }
    }

    /// How often a tensor or a node is kept alive, as it counts itself.
    pub fn count_of_cpp(&mut self, address: u64, what: What) -> Option<u64> {
        let counts = match what {
            What::Node if self.words_of_pointer() == 2 => {
                self.pages.word(address + 16)?.checked_add(8)?
            }
            _ => address + 8,
        };
        // The weak references are counted in the upper half, or elsewhere.
        self.pages.word(counts).map(|counts| counts & COUNTS)
    }

    /// Whether what lies at this address is PyTorch's, and what it is.
    pub fn cpp(&mut self, address: u64) -> Option<What> {
        if self.torch.impl_at.is_none() || !is_pointer(address) {
            return None;
        }
        if self.is_node(address) {
            return Some(What::Node);
        }
        self.is_tensor(address).then_some(What::Impl)
    }

    fn is_tensor(&mut self, address: u64) -> bool {
        is_pointer(address)
            && self
                .pages
                .word(address)
                .is_some_and(|table| self.torch.vtables.contains(&table))
            && self.pages.word(address + 8).is_some_and(|count| count != 0)
    }

    /// A node knows its own address, since it can make shared pointers to itself; from PyTorch 2.15 on it counts its references itself, and
    /// is known by its class.
    fn is_node(&mut self, address: u64) -> bool {
        if !is_pointer(address) {
            return false;
        }
        let Some(second) = self.pages.word(address + 8) else {
            return false;
        };
        let counts_itself = second != address;
        if counts_itself && (self.torch.counts_in_nodes == Some(false) || second & COUNTS == 0) {
            return false;
        }
        let Some(class) = self.class(address) else {
            return false;
        };
        let is_node = !counts_itself || class.is_node;
        if is_node && self.torch.counts_in_nodes.is_none() {
            self.torch.counts_in_nodes = Some(counts_itself);
        }
        is_node
    }

    /// The class of the object of C++ at this address.
    fn class(&mut self, object: u64) -> Option<Class> {
        let table = self.pages.word(object)?;
        if let Some(known) = self.torch.classes.get(&table) {
            return known.clone();
        }
        let class = self.class_of(table);
        self.torch.classes.insert(table, class.clone());
        class
    }

    /// Reads the class that has this table of virtual functions: before the table is the address of what describes it.
    fn class_of(&mut self, table: u64) -> Option<Class> {
        if !is_pointer(table) {
            return None;
        }
        let about = self.pages.word(table - 8).filter(|at| is_pointer(*at))?;
        let mangled = self.name_of_class(about)?;
        let name = last_of_mangled(&mangled)?.into();
        let is_node = self.is_class_of_nodes(about, &mangled, 0);
        Some(Class { name, is_node })
    }

    fn name_of_class(&mut self, about: u64) -> Option<String> {
        let name = self.pages.word(about.checked_add(8)?)?;
        self.pages.text(name, LONGEST_NAME)
    }

    /// Whether this is the class of all nodes, or its first base class is one of them. The base class follows the name, or, where there are
    /// several, their number.
    fn is_class_of_nodes(&mut self, about: u64, mangled: &str, depth: u32) -> bool {
        if mangled == CLASS_OF_NODES {
            return true;
        }
        if depth > DEEPEST_CLASS {
            return false;
        }
        for at in [16, 24] {
            let base = self.pages.word(about.wrapping_add(at)).unwrap_or(0);
            if is_pointer(base)
                && let Some(name) = self.name_of_class(base)
                && last_of_mangled(&name).is_some()
            {
                return self.is_class_of_nodes(base, &name, depth + 1);
            }
        }
        false
    }

    /// The name of the class of a node, without its namespaces.
    pub fn node_name(&mut self, node: u64) -> Box<str> {
        self.class(node)
            .map_or_else(|| "Node".into(), |class| class.name)
    }

    /// What a tensor keeps alive beside its memory.
    pub fn references_of_tensor(&mut self, tensor: u64, found: &mut Found) {
        if let Some(object) = self.object_kept_by(tensor) {
            found.push(Reference {
                label: Label::Tensor,
                target: object,
                what: What::Object,
            });
        }
        let (Some(at), Some(meta)) = (self.torch.grad_fn_at, self.autograd_of(tensor)) else {
            return;
        };
        let gradient = self.pages.word(meta + at - 8).unwrap_or(0);
        if self.is_tensor(gradient) {
            found.push(Reference {
                label: Label::Gradient,
                target: gradient,
                what: What::Impl,
            });
        }
        let node = self.pages.word(meta + at).unwrap_or(0);
        if self.is_node(node) {
            found.push(Reference {
                label: Label::GradFn,
                target: node,
                what: What::Node,
            });
        }
    }

    /// What a node of the graph keeps alive: tensors that it saved, and the nodes before it. Its size is what the C library's allocator
    /// wrote before it; where that makes no sense only its beginning is looked at.
    pub fn references_of_node(&mut self, node: u64, found: &mut Found) {
        // A node may lie behind the counts of its shared pointers, in the same piece of memory.
        let before = match self.pages.word(node + 16) {
            Some(counts) if counts == node - 16 => 16,
            _ => 0,
        };
        let size = match self.size_of_piece(node - before) {
            Some(size) if (SMALLEST_NODE..=LONGEST_NODE).contains(&size) => size - before,
            _ => SHORT_NODE,
        };
        let words = self.pages.words(node, (size / 8) as usize);
        let keeps_object = self.keeps_object(node);
        // The first words are the class, and the pointer to itself or the counts.
        for number in 1 + self.words_of_pointer() as usize..words.len() {
            let word = words[number];
            if keeps_object && is_pointer(word) && self.type_of(word).is_some() {
                found.push(function(word));
            } else if word != node {
                // A node knows itself, without keeping itself alive.
                self.kept_by_cpp(&words[number..], found);
            }
        }
    }

    /// Whether a node keeps a Python object alive: the function that a program defined; or any object that stands for it, where nodes count
    /// themselves, while more than that object refers to the node.
    fn keeps_object(&mut self, node: u64) -> bool {
        if self.torch.counts_in_nodes != Some(true) {
            return self.node_name(node).ends_with("PyNode");
        }
        let counts = self.pages.word(node + 8).unwrap_or(0);
        counts >> 63 == 1 && counts & COUNTS > 1
    }

    /// What an object of PyTorch's keeps alive by a member that begins with the first of these words: a tensor, a vector of edges or of
    /// tensors, or the Python functions that pack and unpack a tensor that was saved.
    pub fn kept_by_cpp(&mut self, words: &[u64], found: &mut Found) {
        let Some(word) = words.first().copied().filter(|word| is_pointer(*word)) else {
            return;
        };
        if self.is_tensor(word) {
            found.push(saved(word));
            return;
        }
        // A saved tensor keeps the node that made it, or what gathers its gradient.
        if self.is_shared(word, words.get(1).copied().unwrap_or(0)) {
            found.push(next(word));
            return;
        }
        if let [_, end, room, ..] = words
            && self.is_vector(word, *end, *room)
        {
            self.vector(word, end - word, found);
            return;
        }
        self.hooks(word, found);
    }

    /// The Python objects of the functions that pack and unpack a saved tensor, and what was packed.
    fn hooks(&mut self, hooks: u64, found: &mut Found) {
        let class = self.class(hooks);
        if !class.is_some_and(|class| class.name.ends_with("SavedVariableHooks")) {
            return;
        }
        for word in self.pages.words(hooks + 8, WORDS_OF_HOOKS) {
            if is_pointer(word) && self.type_of(word).is_some() {
                found.push(function(word));
            }
        }
    }

    /// A vector in a node: edges to other nodes, or saved tensors.
    fn vector(&mut self, begin: u64, bytes: u64, found: &mut Found) {
        let words = self.pages.words(begin, (bytes / 8) as usize);
        // An edge is a pointer to a node, and the number of its result.
        let edge = 1 + self.words_of_pointer() as usize;
        let is_edges = words.len().is_multiple_of(edge)
            && words
                .chunks_exact(edge)
                .all(|edge| edge[0] == 0 || self.is_node(edge[0]));
        if is_edges {
            for edge in words.chunks_exact(edge).filter(|edge| edge[0] != 0) {
                found.push(next(edge[0]));
            }
            return;
        }
        for (number, word) in words.iter().copied().enumerate() {
            if self.is_tensor(word) {
                found.push(saved(word));
            } else if self.is_shared(word, words.get(number + 1).copied().unwrap_or(0)) {
                found.push(next(word));
            } else if is_pointer(word) {
                self.hooks(word, found);
            }
        }
    }
}

fn next(target: u64) -> Reference {
    Reference {
        label: Label::Next,
        target,
        what: What::Node,
    }
}

fn function(target: u64) -> Reference {
    Reference {
        label: Label::Function,
        target,
        what: What::Object,
    }
}

fn saved(target: u64) -> Reference {
    Reference {
        label: Label::Saved,
        target,
        what: What::Impl,
    }
}

fn is_pointer(word: u64) -> bool {
    word.is_multiple_of(8) && word >= 1 << 12 && word >> 48 == 0
}

/// The key that most have voted for, of several the smallest.
fn first_of_most(votes: &HashMap<(u64, u64), usize>) -> Option<(u64, u64)> {
    let most = votes.values().max()?;
    votes
        .iter()
        .filter(|(_, count)| *count == most)
        .map(|(key, _)| *key)
        .min()
}

/// The last part of a mangled name such as `N5torch8autograd9generated14AddmmBackward0E`; `None` if it is none.
fn last_of_mangled(name: &str) -> Option<&str> {
    let mut rest = name.strip_prefix('N').unwrap_or(name);
    let mut last = None;
    while rest.starts_with(|first: char| first.is_ascii_digit()) {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let length: usize = rest[..end].parse().ok()?;
        last = Some(rest[end..].get(..length)?);
        rest = rest[end..].get(length..)?;
    }
    last
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_of_classes() {
        let last = last_of_mangled;
        assert_eq!(
            last("N5torch8autograd9generated14AddmmBackward0E"),
            Some("AddmmBackward0")
        );
        assert_eq!(last("N5torch8autograd6PyNodeE"), Some("PyNode"));
        assert_eq!(last("3Abc"), Some("Abc"));
        for not in ["", "N", "i", "9Abc", "999999999999999999999999A"] {
            assert_eq!(last(not), None, "{not}");
        }
    }

    #[test]
    fn votes() {
        let votes = HashMap::from([((16, 8), 3), ((24, 8), 5), ((24, 16), 5)]);
        assert_eq!(first_of_most(&votes), Some((24, 8)));
        assert_eq!(first_of_most(&HashMap::new()), None);
    }
}
