//! Recognises structures in memory by their shape: libstdc++'s tree header, the flat hash table's header, PyTorch's
//! statistics. All functions get bytes; none reads memory.

/// Maximum number of entries that a tree or table is believed to have.
pub(crate) const MOST: u64 = 1 << 26;
/// Distance in bytes from one `std::set` to the next: a tree header, and the word of the comparator before it.
pub(crate) const SET: usize = 48;
/// Bytes of a tree's node: color, parent, left, right, value.
pub(crate) const NODE: usize = 40;

/// The 64-bit word at offset `at`; 0 beyond the end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    at.checked_add(8)
        .and_then(|end| bytes.get(at..end))
        .and_then(|some| some.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// The 32-bit word at offset `at`; 0 beyond the end.
pub(crate) fn half(bytes: &[u8], at: usize) -> u32 {
    at.checked_add(4)
        .and_then(|end| bytes.get(at..end))
        .and_then(|some| some.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

/// The byte at offset `at`; 0 beyond the end.
pub(crate) fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// Whether a value can be the address of a C++ object in user space.
pub(crate) fn is_pointer(value: u64) -> bool {
    (0x1_0000..1 << 56).contains(&value) && value.is_multiple_of(8)
}

/// `std::_Rb_tree_header`: color, parent (the root), left, right, count
/// (libstdc++, `bits/stl_tree.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Address of the header itself. The root's parent pointer points to it.
    pub header: u64,
    pub root: u64,
    pub count: u64,
}

/// The tree whose header is at offset `at` of an object at `base`, judged by the header alone.
pub(crate) fn tree(bytes: &[u8], base: u64, at: usize) -> Option<Tree> {
    bytes.get(at..at.checked_add(NODE)?)?;
    let header = base.checked_add(at as u64)?;
    let (root, left, right) = (
        word(bytes, at + 8),
        word(bytes, at + 16),
        word(bytes, at + 24),
    );
    let count = word(bytes, at + 32);
    // The header's color is always red.
    if half(bytes, at) != 0 || count > MOST {
        return None;
    }
    let fits = if count == 0 {
        root == 0 && left == header && right == header
    } else {
        [root, left, right]
            .iter()
            .all(|value| is_pointer(*value) && *value != header)
    };
    fits.then_some(Tree {
        header,
        root,
        count,
    })
}

/// The header of `ska::flat_hash_set` and `flat_hash_map` (c10/util/flat_hash_map.h): pointer to the entries, number of
/// slots minus one, shift and longest probe as bytes, largest load as a float, number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Table {
    pub entries: u64,
    /// Number of entries that can be in use: the slots, and those after them that hold what did not fit at its own
    /// place. One more entry follows, which marks the end.
    pub slots: u64,
    pub count: u64,
    /// The table had entries at some time: it has more than the one slot of a new table.
    pub grown: bool,
    /// An element is fewer than this number of entries after its own place.
    pub reach: u64,
    /// Number of bits by which a hash is shifted to get the place of an element.
    shift: u32,
}

impl Table {
    /// Number of the entry from which on a pointer is searched: Fibonacci hashing of the pointer itself.
    pub fn place(&self, pointer: u64) -> u64 {
        pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift
    }
}

/// Length of a table's header in bytes.
pub(crate) const TABLE: usize = 32;

/// The table whose header is at offset `at`.
pub(crate) fn table(bytes: &[u8], at: usize) -> Option<Table> {
    bytes.get(at..at.checked_add(TABLE)?)?;
    let (entries, mask, count) = (word(bytes, at), word(bytes, at + 8), word(bytes, at + 24));
    let (shift, reach) = (byte(bytes, at + 16), byte(bytes, at + 17));
    // The largest load is one half in every table.
    if !is_pointer(entries) || f32::from_bits(half(bytes, at + 20)) != 0.5 || mask >= MOST {
        return None;
    }
    let slots = mask + 1;
    let bits = slots.trailing_zeros();
    // Fibonacci hashing keeps the upper bits; an empty table has one slot and shift 63.
    let shifted = u32::from(shift) == 64 - bits || (mask == 0 && shift == 63);
    let fits = slots.is_power_of_two() && shifted && (1..=64).contains(&reach) && count <= slots;
    fits.then_some(Table {
        entries,
        slots: mask + u64::from(reach),
        count,
        grown: mask > 0,
        reach: u64::from(reach),
        shift: u32::from(shift),
    })
}

/// Whether an entry is in use: then its distance is not negative.
pub(crate) fn in_use(entry: &[u8]) -> bool {
    byte(entry, 0) < 0x80 && !entry.is_empty()
}

/// Bytes of a `Stat`: current, peak, allocated, freed.
pub(crate) const STAT: usize = 32;
/// Bytes of a `StatArray`: all pools, small, large.
pub(crate) const STAT_ARRAY: usize = 3 * STAT;

/// The current values (all, small, large) of the `StatArray` at offset `at`, if there is one: each value is the sum of
/// the two below it, and no peak is below its current value. "Allocated minus freed" need not equal the current value,
/// because `reset_accumulated_memory_stats` sets both to zero.
pub(crate) fn stat_array(bytes: &[u8], at: usize) -> Option<[u64; 3]> {
    bytes.get(at..at.checked_add(STAT_ARRAY)?)?;
    for field in [0, 16, 24] {
        let sum = word(bytes, at + STAT + field).checked_add(word(bytes, at + 2 * STAT + field));
        if sum != Some(word(bytes, at + field)) {
            return None;
        }
    }
    let mut current = [0; 3];
    for (i, value) in current.iter_mut().enumerate() {
        *value = word(bytes, at + i * STAT);
        if *value > word(bytes, at + i * STAT + 8) || *value >> 56 != 0 {
            return None;
        }
    }
    Some(current)
}

/// The state of a mutex (glibc's `pthread_mutex_t` of the recursive kind) at the start of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutex {
    Free,
    /// Held by the thread with this id.
    Held(u32),
}

/// Length of a mutex in bytes.
pub(crate) const MUTEX: usize = 40;

/// Reads the state of a mutex. `None` if the bytes are not a mutex.
pub(crate) fn mutex(bytes: &[u8]) -> Option<Mutex> {
    bytes.get(..MUTEX)?;
    // lock, count, owner, users, kind (1: recursive).
    let [lock, count, owner, users, kind] = [0, 4, 8, 12, 16].map(|at| half(bytes, at));
    if kind != 1 || users > 1 || lock > 2 {
        return None;
    }
    if lock == 0 && count == 0 && owner == 0 {
        return Some(Mutex::Free);
    }
    // A thread can be between setting two of these fields, so the mutex counts as held if any of them is set.
    Some(Mutex::Held(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a flat hash table with `slots` slots, a quarter of them in use.
    fn header(slots: u64) -> [u8; TABLE] {
        let mut bytes = [0; TABLE];
        bytes[..8].copy_from_slice(&0x5555_0000_1000u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&(slots - 1).to_le_bytes());
        bytes[16] = (64 - slots.trailing_zeros()) as u8;
        bytes[17] = 24;
        bytes[20..24].copy_from_slice(&0.5f32.to_le_bytes());
        bytes[24..].copy_from_slice(&(slots / 4).to_le_bytes());
        bytes
    }

    #[test]
    fn tables_of_many_millions_are_tables() {
        for slots in [1 << 10, 1 << 22, 1 << 23, 1 << 26] {
            let found = table(&header(slots), 0).map(|table| table.count);
            assert_eq!(found, Some(slots / 4), "{slots} slots");
        }
        assert!(table(&header(1 << 40), 0).is_none());
    }
}
