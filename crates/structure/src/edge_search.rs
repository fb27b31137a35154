//! Looks for where segments begin and end, in a process that goes on.
//!
//! These stay where they are for as long as a segment is there, but the blocks that tell of them are exchanged whenever a neighbour joins
//! them. So they are looked for again, along the blocks' links, and what was found is read once more in one call between two equal
//! states of the allocator: then it is certain, whatever the process does.

use std::collections::BTreeSet;
use std::io;

use crate::edges::Edges;
use crate::look::Eye;
use crate::walk::RawBlock;
use memscope_memory::Memory;

/// Times that all places are looked at at which the first or the last block of a segment was not seen.
const TURNS: u32 = 8;
/// Blocks from which such an edge is looked for, steps towards it at once, and moments at which they are tried.
const ANCHORS: usize = 3;
const STEPS: usize = 16;
const MOMENTS: u32 = 8;

/// The neighbour of a block.
fn link(block: &RawBlock, forward: bool) -> u64 {
    if forward { block.next } else { block.prev }
}

impl<M: Memory> Eye<'_, M> {
    /// All edges that were seen and are not known to be none.
    pub(crate) fn edges(&self) -> Edges {
        let mut edges = Edges::default();
        let known = |block: &&RawBlock| self.pools.contains_key(&block.pool);
        for block in self.blocks.values().filter(known) {
            edges.see(block);
        }
        edges.starts.retain(|at, _| !self.joints.contains(at));
        edges.ends.retain(|at| !self.joints.contains(at));
        edges.starts.extend(&self.sure.starts);
        edges.ends.extend(&self.sure.ends);
        edges
    }

    /// Where the first or the last block of a segment was not seen, because it made room for another just then, or was seen in
    /// the middle of a change, looks there again: from blocks near it outwards.
    pub(crate) fn find_edges(&mut self) -> io::Result<()> {
        if self.edges().missing().is_empty() {
            return Ok(());
        }
        let blocks = self.blocks.iter();
        let mut order: BTreeSet<(u64, u64)> = blocks.map(|(at, block)| (block.ptr, *at)).collect();
        for turn in 0..TURNS {
            let missing = self.edges().missing();
            if missing.is_empty() {
                return Ok(());
            }
            let fresh = match turn {
                0 => Vec::new(),
                // What was read before is no more where blocks live for microseconds.
                _ => self.free_again()?,
            };
            let blocks = |places: &[u64]| -> BTreeSet<(u64, u64)> {
                let found = places
                    .iter()
                    .filter_map(|at| Some((*at, self.blocks.get(at)?)));
                found.map(|(at, block)| (block.ptr, at)).collect()
            };
            let fresh = blocks(&fresh);
            order.extend(&fresh);
            for (from, to) in missing {
                for forward in [false, true] {
                    let mut anchors = self.anchors(&fresh, from, to, forward);
                    anchors.extend(self.anchors(&order, from, to, forward));
                    for anchor in anchors {
                        let chain = self.follow(anchor, forward)?;
                        order.extend(chain.iter().map(|(at, block)| (block.ptr, *at)));
                        if chain
                            .last()
                            .is_some_and(|(_, last)| link(last, forward) == 0)
                        {
                            break;
                        }
                    }
                }
            }
        }
        self.leave_out_what_does_not_fit();
        Ok(())
    }

    /// Blocks of a stretch of addresses that are near its beginning or its end, the nearest first. Those that are said to begin or
    /// end there are among them: they may be no edges.
    fn anchors(&self, order: &BTreeSet<(u64, u64)>, from: u64, to: u64, forward: bool) -> Vec<u64> {
        let is_there = |(ptr, at): &&(u64, u64)| {
            let block = self.blocks.get(at);
            block.is_some_and(|block| block.ptr == *ptr)
        };
        let inside = order.range((from, 0)..(to, 0)).filter(is_there);
        let found: Vec<&(u64, u64)> = if forward {
            let before = order.range(..(from, 0)).next_back();
            inside.rev().take(ANCHORS).chain(before).collect()
        } else {
            let after = order.range((to, 0)..).next();
            inside.take(ANCHORS).chain(after).collect()
        };
        found.into_iter().map(|(_, at)| *at).collect()
    }

    /// Reads the trees and the free blocks again, and says where these are.
    fn free_again(&mut self) -> io::Result<Vec<u64>> {
        let bytes = self.unlocked()?;
        self.all_pools(&bytes);
        let free = self.free()?;
        for place in &free {
            self.known.remove(place);
        }
        self.read_blocks(free, false)
    }

    /// What is certain counts for more than what was read in passing: an edge of the latter kind that fits to nothing is none.
    fn leave_out_what_does_not_fit(&mut self) {
        for (from, to) in self.edges().missing() {
            for at in [from, to] {
                if !self.sure.starts.contains_key(&at) && !self.sure.ends.contains(&at) {
                    self.joints.insert(at);
                }
            }
        }
    }

    /// Follows the chain of blocks from one of them towards an end, and looks at all of it once more in one go: if nobody was in
    /// the allocator then, two blocks that lead to each other are there. What it saw, or nothing where there was no such moment or the
    /// block is no more.
    fn follow(&mut self, anchor: u64, forward: bool) -> io::Result<Vec<(u64, RawBlock)>> {
        let len = self.layout.block.len as usize;
        for _ in 0..MOMENTS {
            let mut chain = self.chain(anchor, forward, STEPS);
            if let [(at, block)] = chain[..]
                && link(&block, forward) == 0
                && link(&block, !forward) != 0
            {
                // It says to be an edge: whoever is on its other side must say so as well.
                chain = self.chain(at, !forward, 2);
                chain.reverse();
                if chain.len() < 2 {
                    return Ok(Vec::new());
                }
            }
            if chain.is_empty() {
                return Ok(chain);
            }
            let places: Vec<_> = chain.iter().map(|(at, _)| (*at, len)).collect();
            let Some(read) = self.guarded(&places)? else {
                continue;
            };
            let now = read.places.iter().map(|bytes| self.block_of(bytes));
            let is_same = now.zip(&chain).all(|(now, (_, seen))| {
                now.is_some_and(|now| {
                    (now.ptr, now.size, now.prev, now.next)
                        == (seen.ptr, seen.size, seen.prev, seen.next)
                })
            });
            if is_same {
                self.believe(&chain, forward);
                return Ok(chain);
            }
        }
        Ok(Vec::new())
    }

    /// A block, and those that follow it and lead back, at most so many.
    fn chain(&mut self, mut at: u64, forward: bool, most: usize) -> Vec<(u64, RawBlock)> {
        let mut chain: Vec<(u64, RawBlock)> = Vec::new();
        while chain.len() < most
            && let Some(block) = self.read_one(at)
        {
            let fits = chain.last().is_none_or(|(last, other)| {
                let (left, right) = if forward {
                    (other, &block)
                } else {
                    (&block, other)
                };
                link(&block, !forward) == *last && left.end() == Some(right.ptr)
            });
            if !fits {
                break;
            }
            chain.push((at, block));
            at = link(&block, forward);
        }
        chain
    }

    /// Takes over a chain that was seen while nobody was in the allocator.
    fn believe(&mut self, chain: &[(u64, RawBlock)], forward: bool) {
        for pair in chain.windows(2) {
            let [(_, one), (_, other)] = pair else {
                continue;
            };
            self.joints.insert(one.ptr.max(other.ptr));
        }
        if let Some((_, last)) = chain.last().filter(|(_, last)| link(last, forward) == 0) {
            if forward {
                self.sure.ends.insert(last.ptr + last.size);
            } else {
                self.sure.starts.insert(last.ptr, (last.pool, last.stream));
            }
        }
        for (at, block) in chain {
            let active = self.blocks.get(at).is_some_and(|before| {
                before.active && before.ptr == block.ptr && before.size == block.size
            });
            self.known.insert(*at);
            self.blocks.insert(*at, RawBlock { active, ..*block });
        }
    }
}
