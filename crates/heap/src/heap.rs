//! What is known of an interpreter while its objects are read.

use std::collections::HashSet;

use memscope_memory::Memory;
use memscope_python::Layout;

use crate::pages::{ByAddress, Pages};
use crate::shapes::{Keys, Torch, Type};

/// From so many elements on it is made sure that the table of a container was not moved while it was read, as it is when the container
/// grows. The table of a smaller one is read at once.
const MOVES_FROM: u64 = 64;

/// Types that are found without looking into the map, by the lowest bits of their addresses.
pub(crate) const RECENT_TYPES: usize = 1 << 10;

/// Tables of keys that are not read again, by the lowest bits of their addresses.
pub(crate) const RECENT_KEYS: usize = 1 << 10;

/// Minor version of Python 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Minor(pub u32);

/// An interpreter's objects, and what was learnt of them.
pub(crate) struct Heap<'a, M: ?Sized> {
    pub pages: Pages<'a, M>,
    pub layout: Layout,
    pub minor: Minor,
    /// Address of the type of code objects.
    pub code_type: u64,
    pub types: Vec<Type>,
    /// The number of each type by its address; `None` where there is no type.
    pub type_numbers: ByAddress<Option<u32>>,
    /// Those that were looked for last.
    pub recent_types: Box<[(u64, Option<u32>)]>,
    /// Tables of keys that were looked at last, as they were then.
    pub recent_keys: Box<[(u64, Option<Keys>)]>,
    /// Where classes have their names.
    pub class_names_at: Option<u64>,
    /// Where PyTorch's tensors keep what, once that is known.
    pub torch: Torch,
    /// Texts by the addresses of their objects; `None` where there is no text.
    pub texts: ByAddress<Option<Box<str>>>,
    /// Elements of a container from which on it is made sure that its table was not moved meanwhile.
    pub moves_from: u64,
    /// Frames, or up to 3.10 their objects, whose local variables were told with their threads, and are not told a second time.
    pub walked: HashSet<u64>,
    /// Whether modules, by their addresses, are the program's own. Like types they are believed to stay what they are.
    pub own_modules: ByAddress<bool>,
}

impl<'a, M: Memory + ?Sized> Heap<'a, M> {
    pub fn new(memory: &'a M, layout: Layout, code_type: u64) -> Heap<'a, M> {
        Heap {
            pages: Pages::new(memory),
            layout,
            minor: Minor(layout.minor),
            code_type,
            types: Vec::new(),
            type_numbers: ByAddress::default(),
            recent_types: vec![(0, None); RECENT_TYPES].into(),
            recent_keys: vec![(0, None); RECENT_KEYS].into(),
            class_names_at: None,
            torch: Torch::default(),
            texts: ByAddress::default(),
            moves_from: MOVES_FROM,
            walked: HashSet::new(),
            own_modules: ByAddress::default(),
        }
    }

    /// Forgets what was read of objects, so that what is looked at next is read anew. Types are believed to stay what they are.
    pub fn forget(&mut self) {
        self.pages.forget();
        self.recent_keys.fill((0, None));
    }
}
