//! The last entries of a device's allocator trace.
//!
//! Owns: a bounded ring of entries, kept small. Refuses: to grow; what is dropped is counted.

use crate::event::TraceAction;
use std::collections::VecDeque;

/// One entry as kept. The device is the ring's, the pool an index into the ring's table.
#[derive(Clone, Copy, Debug)]
struct Kept {
    addr: u64,
    size: u64,
    stream: u64,
    time_ns: u64,
    tid: u32,
    action: TraceAction,
    /// Index into `pools` plus one; 0: not known.
    pool: u16,
}

/// One entry as given and taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) action: TraceAction,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) pool: Option<(u64, u64)>,
    pub(crate) time_ns: u64,
    pub(crate) tid: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceRing {
    limit: usize,
    entries: VecDeque<Kept>,
    pools: Vec<(u64, u64)>,
    dropped: u64,
}

impl TraceRing {
    /// At most `limit` entries.
    pub(crate) fn new(limit: usize) -> TraceRing {
        TraceRing {
            limit,
            ..TraceRing::default()
        }
    }

    /// Adds an entry; the oldest makes room.
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.limit == 0 {
            self.dropped += 1;
            return;
        }
        if self.entries.len() >= self.limit {
            self.entries.pop_front();
            self.dropped += 1;
        }
        let pool = entry.pool.map_or(0, |pool| self.pool_index(pool));
        self.entries.push_back(Kept {
            addr: entry.addr,
            size: entry.size,
            stream: entry.stream,
            time_ns: entry.time_ns,
            tid: entry.tid,
            action: entry.action,
            pool,
        });
    }

    fn pool_index(&mut self, pool: (u64, u64)) -> u16 {
        let found = self.pools.iter().rposition(|known| *known == pool);
        let index = found.unwrap_or_else(|| {
            // A program makes a private pool per captured graph: thousands would be unheard of.
            if self.pools.len() < usize::from(u16::MAX) - 1 {
                self.pools.push(pool);
                self.pools.len() - 1
            } else {
                usize::MAX - 1
            }
        });
        u16::try_from(index.saturating_add(1)).unwrap_or(0)
    }

    /// Oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.entries.iter().map(|kept| Entry {
            action: kept.action,
            addr: kept.addr,
            size: kept.size,
            stream: kept.stream,
            pool: usize::from(kept.pool)
                .checked_sub(1)
                .and_then(|index| self.pools.get(index).copied()),
            time_ns: kept.time_ns,
            tid: kept.tid,
        })
    }

    /// Entries kept.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries no longer kept.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_counted() {
        let mut ring = TraceRing::new(3);
        for i in 0..5 {
            ring.push(Entry {
                action: TraceAction::Alloc,
                addr: i,
                size: 512,
                stream: 0,
                pool: (i > 2).then_some((0, i)),
                time_ns: i,
                tid: 1,
            });
        }
        let kept: Vec<Entry> = ring.entries().collect();
        assert_eq!(kept.len(), 3);
        assert_eq!((kept[0].addr, kept[0].pool), (2, None));
        assert_eq!((kept[2].addr, kept[2].pool), (4, Some((0, 4))));
        assert_eq!(ring.dropped(), 2);
    }
}
