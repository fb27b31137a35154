//! Splits a reading of a device's pool into parts that fit into records.

use memscope_ledger::event::{HeldPart, HeldSegment};

/// Maximum size of a part's JSON in bytes.
const MOST: usize = 50_000;
/// Upper bound for the JSON of a part without segments: names, punctuation and eight numbers.
const PART: usize = 300;
/// Upper bound for the JSON of a segment without blocks.
const SEGMENT: usize = 300;
/// Bytes of a block's punctuation and `false`, without its three numbers.
const BLOCK: usize = 11;
/// Bytes of a pair's punctuation.
const PAIR: usize = 4;

/// Splits a reading, given as one part, into the parts that are to be written, in that order. The JSON of each part has
/// at most 50,000 bytes. A segment that does not fit goes on in the next part: the same segment, with further blocks or
/// further room. A reading without segments is one part.
pub fn held_parts(mut reading: HeldPart) -> Vec<HeldPart> {
    let segments = std::mem::take(&mut reading.segments);
    let mut cut: Vec<Vec<HeldSegment>> = vec![Vec::new()];
    let mut room = MOST - PART;
    for mut segment in segments {
        let mut blocks = std::mem::take(&mut segment.blocks).into_iter().peekable();
        let mut rooms = std::mem::take(&mut segment.rooms).into_iter().peekable();
        let mut holes = std::mem::take(&mut segment.holes).into_iter().peekable();
        let mut stacks = std::mem::take(&mut segment.stacks).into_iter().peekable();
        loop {
            let first = blocks.peek().map_or(0, json_len);
            if SEGMENT + first > room {
                cut.push(Vec::new());
                room = MOST - PART;
            }
            room -= SEGMENT;
            let mut piece = segment.clone();
            while let Some(block) = blocks.next_if(|block| json_len(block) <= room) {
                room -= json_len(&block);
                piece.blocks.push(block);
            }
            for (from, to) in [
                (&mut rooms, &mut piece.rooms),
                (&mut holes, &mut piece.holes),
                (&mut stacks, &mut piece.stacks),
            ] {
                while let Some(pair) = from.next_if(|pair| pair_len(pair) <= room) {
                    room -= pair_len(&pair);
                    to.push(pair);
                }
            }
            if let Some(last) = cut.last_mut() {
                last.push(piece);
            }
            let pairs = [&mut rooms, &mut holes, &mut stacks];
            let is_over = pairs.into_iter().all(|pairs| pairs.peek().is_none());
            if blocks.peek().is_none() && is_over {
                break;
            }
        }
    }
    // A reading has at most as many parts as blocks and segments, far below 2^32.
    let parts = u32::try_from(cut.len()).unwrap_or(u32::MAX);
    (0..parts)
        .zip(cut)
        .map(|(part, segments)| HeldPart {
            part,
            parts,
            segments,
            ..reading
        })
        .collect()
}

fn json_len(&(addr, rounded, requested, _): &(u64, u64, u64, bool)) -> usize {
    BLOCK + digits(addr) + digits(rounded) + digits(requested)
}

fn pair_len(&(addr, requested): &(u64, u64)) -> usize {
    PAIR + digits(addr) + digits(requested)
}

fn digits(number: u64) -> usize {
    1 + number.checked_ilog10().unwrap_or(0) as usize
}
