//! Searches for the edges of segments in a process that goes on.
//!
//! Edges do not move as long as a segment exists, but the block objects from which they are known are replaced whenever
//! a neighbour is joined with them. So the search follows the blocks' links again, and what it has found is read once
//! more in one call between two equal states of the allocator. Then it is certain, whatever the process does.

use std::collections::BTreeSet;
use std::io;

use crate::edges::Edges;
use crate::look::Eye;
use crate::walk::RawBlock;
use memscope_memory::Memory;

/// Number of passes over all places at which the first or the last block of a segment was not seen.
const TURNS: u32 = 8;
/// Maximum number of blocks from which such an edge is searched, of steps towards it in one read, and of attempts to
/// read them at a still moment.
const ANCHORS: usize = 3;
const STEPS: usize = 16;
const MOMENTS: u32 = 8;

/// Address of the next (`forward`) or the previous block's object.
fn link(block: &RawBlock, forward: bool) -> u64 {
    if forward { block.next } else { block.prev }
}

impl<M: Memory> Eye<'_, M> {
    /// All edges that were seen, except those that are known to be joints between blocks.
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

    /// Searches again for edges that were not seen, because a block was replaced just then, or that were seen in the
    /// middle of a change. The search goes outwards from blocks that are near.
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
                // Where blocks live for microseconds, those that were read before do not exist any more.
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

    /// Blocks in an address range that are near its beginning or its end, the nearest first. Blocks that claim to begin
    /// or to end there are among them, because they may be no edges.
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

    /// Reads the trees and the free blocks again, and returns the addresses of these blocks.
    fn free_again(&mut self) -> io::Result<Vec<u64>> {
        let bytes = self.unlocked()?;
        self.all_pools(&bytes);
        let free = self.free()?;
        for place in &free {
            self.known.remove(place);
        }
        self.read_blocks(free, false)
    }

    /// Certain edges are more reliable than those that were read in passing. Of the latter, those that do not fit are
    /// left out.
    fn leave_out_what_does_not_fit(&mut self) {
        for (from, to) in self.edges().missing() {
            for at in [from, to] {
                if !self.sure.starts.contains_key(&at) && !self.sure.ends.contains(&at) {
                    self.joints.insert(at);
                }
            }
        }
    }

    /// Follows the chain of blocks from one block towards an end, and reads the whole chain once more in one call. If
    /// this was a still moment, blocks that point at each other do exist. Returns the chain, or nothing if there was no
    /// such moment or the block does not exist any more.
    fn follow(&mut self, anchor: u64, forward: bool) -> io::Result<Vec<(u64, RawBlock)>> {
        let len = self.layout.block.len as usize;
        for _ in 0..MOMENTS {
            let mut chain = self.chain(anchor, forward, STEPS);
            if let [(at, block)] = chain[..]
                && link(&block, forward) == 0
                && link(&block, !forward) != 0
            {
                // The block claims to be an edge. The block on its other side must confirm it by pointing at it.
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

    /// A block, and the blocks that follow it and point back, at most `most` blocks.
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

    /// Adopts a chain that was read at a still moment.
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
