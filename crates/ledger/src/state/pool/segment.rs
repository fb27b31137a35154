//! The segments of one device's pool, as trace entries and readings report them.
//!
//! Owns: ranges of addresses that the pool holds. Mapped chunks that touch become one range and an unmap cuts it.
//! Refuses: blocks, and segments that no event reported.

use crate::event::TraceAction;
use crate::state::pool::trace_ring::Entry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes that a pool of small blocks maps at a time (`kSmallBuffer`).
const SMALL_CHUNK: u64 = 2 << 20;

/// One contiguous range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) pool: (u64, u64),
    pub(crate) expandable: bool,
    /// Whether it is in the large pool; `None` if that was not reported.
    pub(crate) large: Option<bool>,
    /// Whether `pool` was reported; older versions of PyTorch do not report it in the trace.
    pub(crate) told: bool,
}

impl Segment {
    /// First address past it.
    pub(crate) fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Segments {
    ranges: BTreeMap<u64, Segment>,
}

impl Segments {
    /// The pool took a segment, or mapped a chunk.
    pub(crate) fn add(&mut self, mut new: Segment) {
        if new.size == 0 {
            return;
        }
        // Segments that overlap must have gone without being seen.
        self.cut(new.addr, new.end());
        if new.expandable {
            let joins = |old: &Segment| {
                old.expandable
                    && old.stream == new.stream
                    && (old.pool == new.pool || !old.told || !new.told)
                    && (old.large == new.large || old.large.is_none() || new.large.is_none())
            };
            let before = self.ranges.range(..new.addr).next_back();
            let before = before
                .map(|(_, s)| *s)
                .filter(|s| s.end() == new.addr && joins(s));
            let after = self.ranges.get(&new.end()).copied().filter(joins);
            let told = [before, after].into_iter().flatten().find(|s| s.told);
            if let (Some(told), false) = (told, new.told) {
                new.pool = told.pool;
                new.told = true;
            }
            if let Some(after) = after {
                self.ranges.remove(&after.addr);
                new.size += after.size;
                new.large = new.large.or(after.large);
            }
            if let Some(before) = before {
                new.addr = before.addr;
                new.size += before.size;
                new.large = new.large.or(before.large);
            }
        }
        self.ranges.insert(new.addr, new);
    }

    /// The pool gave a segment back.
    pub(crate) fn remove(&mut self, addr: u64) {
        self.ranges.remove(&addr);
    }

    /// The pool unmapped a range: all parts of segments within it are removed, the rest stays.
    pub(crate) fn cut(&mut self, addr: u64, end: u64) {
        // An empty range would divide the segment that it lies in.
        if addr >= end {
            return;
        }
        while let Some((_, &found)) = self.ranges.range(..end).next_back() {
            if found.end() <= addr {
                break;
            }
            self.ranges.remove(&found.addr);
            if found.end() > end {
                let rest = Segment {
                    addr: end,
                    size: found.end() - end,
                    ..found
                };
                self.ranges.insert(rest.addr, rest);
            }
            if found.addr < addr {
                let rest = Segment {
                    size: addr - found.addr,
                    ..found
                };
                self.ranges.insert(rest.addr, rest);
            }
        }
    }

    /// Applies an entry of the trace to the segments.
    pub(crate) fn step(&mut self, entry: &Entry) {
        match entry.action {
            TraceAction::SegmentFree => self.remove(entry.addr),
            TraceAction::SegmentUnmap => {
                self.cut(entry.addr, entry.addr.saturating_add(entry.size))
            }
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => self.add(Segment {
                addr: entry.addr,
                size: entry.size,
                stream: entry.stream,
                pool: entry.pool.unwrap_or((0, 0)),
                expandable: entry.action == TraceAction::SegmentMap,
                // Expandable segments grow by what the pool's blocks need: one small chunk at a time in the small pool,
                // larger ones in the large pool.
                large: (entry.action == TraceAction::SegmentMap)
                    .then_some(entry.size > SMALL_CHUNK),
                told: entry.pool.is_some(),
            }),
            _ => {}
        }
    }

    /// Whether any segment overlaps this range of addresses.
    pub(crate) fn overlaps(&self, addr: u64, end: u64) -> bool {
        let last = self.ranges.range(..end).next_back();
        last.is_some_and(|(_, found)| found.end() > addr)
    }

    /// Whether the segments explain an allocation of the driver at this range of addresses: it is a segment, or a chunk
    /// of an expandable one, or memory that the allocator of a private pool divides among several.
    pub(crate) fn explain(&self, addr: u64, end: u64) -> bool {
        let mut any = false;
        for (_, found) in self.ranges.range(..end).rev() {
            if found.end() <= addr {
                break;
            }
            if found.expandable && found.addr <= addr && end <= found.end() {
                return true;
            }
            let whole = (found.addr, found.end()) == (addr, end);
            let part = found.pool != (0, 0) && addr <= found.addr && found.end() <= end;
            if !whole && !part {
                return false;
            }
            any = true;
        }
        any
    }

    /// The segment that contains this address.
    pub(crate) fn at(&self, addr: u64) -> Option<&Segment> {
        let (_, found) = self.ranges.range(..=addr).next_back()?;
        (found.end() > addr).then_some(found)
    }

    /// The last segment that begins before this address.
    pub(crate) fn before(&self, addr: u64) -> Option<&Segment> {
        self.ranges
            .range(..addr)
            .next_back()
            .map(|(_, found)| found)
    }

    /// Whether any range of mapped chunks begins at `addr` or later, and before `end`.
    pub(crate) fn any_expandable(&self, addr: u64, end: u64) -> bool {
        let mut inside = self.ranges.range(addr..end);
        inside.any(|(_, segment)| segment.expandable)
    }

    /// Sum of the sizes of all segments, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges
            .values()
            .fold(0, |sum: u64, segment| sum.saturating_add(segment.size))
    }

    /// All segments by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.ranges.values()
    }

    /// Number of segments.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(addr: u64, size: u64, stream: u64) -> Segment {
        Segment {
            addr,
            size,
            stream,
            pool: (0, 0),
            expandable: true,
            large: None,
            told: true,
        }
    }

    fn ranges(segments: &Segments) -> Vec<(u64, u64)> {
        segments.iter().map(|s| (s.addr, s.size)).collect()
    }

    #[test]
    fn chunks_join_and_unmaps_split() {
        let mut segments = Segments::default();
        segments.add(chunk(100, 20, 0));
        segments.add(chunk(140, 20, 0));
        segments.add(chunk(120, 20, 0));
        assert_eq!(ranges(&segments), [(100, 60)]);
        segments.add(chunk(160, 20, 7));
        assert_eq!(ranges(&segments), [(100, 60), (160, 20)]);
        segments.cut(130, 130);
        assert_eq!(ranges(&segments), [(100, 60), (160, 20)], "nothing went");
        segments.cut(120, 140);
        assert_eq!(ranges(&segments), [(100, 20), (140, 20), (160, 20)]);
        segments.cut(0, 1000);
        assert_eq!(segments.len(), 0);
    }
}
