//! The simulated allocator's expandable segments, and readings of what it holds.

use super::{Live, MIB, Sim};
use memscope_ledger::event::*;

fn chunk(small: bool) -> u64 {
    if small { 2 * MIB } else { 20 * MIB }
}

impl Sim {
    /// Maps chunks at the end of a range until its last free piece is large enough; returns that piece.
    pub(super) fn map(&mut self, device: i32, stream: u64, small: bool, size: u64) -> u64 {
        let state = self.devices.get_mut(&device).unwrap();
        let nth = state.ranges.len() as u64;
        let first = 0x6000_0000_0000 + ((device as u64) << 40) + (nth << 36);
        // Only whole chunks can be unmapped.
        let first = first.next_multiple_of(chunk(small));
        let (start, end) = *state
            .ranges
            .entry((stream, small))
            .or_insert((first, first));
        let tail = state.free.range(..end).next_back();
        let tail = tail
            .filter(|(a, f)| **a + f.0 == end && f.3 == start)
            .map_or(0, |(_, f)| f.0);
        let bytes = (size - tail).next_multiple_of(chunk(small));
        state.ranges.insert((stream, small), (start, end + bytes));
        let before = state.segments.range(..end).next_back();
        let before = before.map(|(a, s)| (*a, s.0)).filter(|(a, s)| a + s == end);
        let (addr, joined) = before.map_or((end, bytes), |(a, s)| (a, s + bytes));
        state.segments.insert(addr, (joined, stream, small));
        state.reserved += bytes;
        let piece = state.give_back(end, (bytes, stream, small, start, 0));
        for addr in (end..end + bytes).step_by(chunk(small) as usize) {
            self.handles += 1;
            self.chunks.insert(addr, (chunk(small), self.handles));
            self.vmm(CallOp::Create, 0, chunk(small), self.handles);
            self.vmm(CallOp::Map, addr, chunk(small), self.handles);
        }
        self.trace(device, TraceAction::SegmentMap, end, bytes, stream, None, 0);
        piece
    }

    fn vmm(&mut self, op: CallOp, ptr: u64, size: u64, handle: u64) {
        if self.driver_calls {
            let Body::Call(mut call) = super::call(&format!("{op:?}"), op, ptr, size) else {
                unreachable!()
            };
            call.handle = handle;
            self.emit(Body::Call(call));
        }
    }

    /// Unmaps whole chunks inside free pieces.
    pub(super) fn unmap_free(&mut self, device: i32) {
        let state = self.devices.get_mut(&device).unwrap();
        let mut gone = Vec::new();
        for (addr, (size, stream, small, range, _)) in state.free.clone() {
            let from = addr.next_multiple_of(chunk(small));
            let to = (addr + size) / chunk(small) * chunk(small);
            if from >= to {
                continue;
            }
            state.free.remove(&addr);
            for (a, b) in [(addr, from), (to, addr + size)] {
                if a < b {
                    state.free.insert(a, (b - a, stream, small, range, 0));
                }
            }
            let (&start, &(len, _, _)) = state.segments.range(..=from).next_back().unwrap();
            state.segments.remove(&start);
            for (a, b) in [(start, from), (to, start + len)] {
                if a < b {
                    state.segments.insert(a, (b - a, stream, small));
                }
            }
            gone.push((from, to - from, stream));
        }
        for (addr, size, stream) in gone {
            self.devices.get_mut(&device).unwrap().reserved -= size;
            let mut kept = self.chunks.split_off(&addr);
            let mut after = kept.split_off(&(addr + size));
            self.chunks.append(&mut after);
            for (chunk, (size, handle)) in kept {
                self.vmm(CallOp::Unmap, chunk, size, 0);
                self.vmm(CallOp::Release, 0, 0, handle);
            }
            self.trace(
                device,
                TraceAction::SegmentUnmap,
                addr,
                size,
                stream,
                None,
                0,
            );
        }
    }

    /// What a device's pool holds, as a reading has it: segments by address, with their blocks.
    pub fn held(&self, device: i32) -> Vec<HeldSegment> {
        let Some(state) = self.devices.get(&device) else {
            return Vec::new();
        };
        let live = self.live.iter().map(|(a, b)| (*a, *b, false));
        let pending = self.pending.iter().map(|(a, b)| (*a, *b, true));
        let mut blocks: Vec<(u64, Live, bool)> = live.chain(pending).collect();
        blocks.retain(|(_, block, _)| block.device == device);
        blocks.sort_by_key(|(addr, _, _)| *addr);
        let of = |addr: u64, size: u64| {
            blocks
                .iter()
                .filter(|(a, _, _)| (addr..addr + size).contains(a))
                .map(|(a, block, pending)| (*a, block.rounded, block.requested, *pending))
                .collect()
        };
        state
            .segments
            .iter()
            .map(|(&addr, &(size, stream, small))| HeldSegment {
                addr,
                size,
                stream,
                large: !small,
                pool: (0, 0),
                expandable: self.expandable,
                blocks: of(addr, size),
                space: match self.expandable {
                    true => state.ranges[&(stream, small)].0,
                    false => addr,
                },
                rooms: state
                    .free
                    .range(addr..addr + size)
                    .filter(|(_, piece)| piece.4 != 0)
                    .map(|(a, piece)| (*a, piece.4))
                    .collect(),
                ..HeldSegment::default()
            })
            .collect()
    }

    /// A reading of the device at this moment, in parts of at most `blocks` blocks.
    pub fn reading(&self, device: i32, blocks: usize) -> Vec<HeldPart> {
        let mut cut: Vec<Vec<HeldSegment>> = vec![Vec::new()];
        let mut room = blocks;
        for segment in self.held(device) {
            let mut pieces: Vec<&[_]> = segment.blocks.chunks(blocks).collect();
            if pieces.is_empty() {
                pieces.push(&[]);
            }
            for piece in pieces {
                if piece.len() > room {
                    cut.push(Vec::new());
                    room = blocks;
                }
                room -= piece.len();
                let first = piece.first() == segment.blocks.first();
                let piece = HeldSegment {
                    blocks: piece.to_vec(),
                    rooms: if first {
                        segment.rooms.clone()
                    } else {
                        Vec::new()
                    },
                    ..segment.clone()
                };
                cut.last_mut().unwrap().push(piece);
            }
        }
        let parts = cut.len() as u32;
        (0..parts)
            .zip(cut)
            .map(|(part, segments)| HeldPart {
                at_ns: self.time,
                device,
                allocator: 0x7000 + device as u64,
                part,
                parts,
                total_allocated: self.allocated(device),
                total_reserved: self.reserved(device),
                segments,
            })
            .collect()
    }
}
