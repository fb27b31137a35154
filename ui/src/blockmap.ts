// The map of segments and blocks as pixels: which rows are seen, what colour each pixel has, and which block lies at a place. It works on
// typed arrays, so that hundreds of thousands of blocks are drawn in each frame. Offsets are bytes within a segment.

export interface Segments {
  count: number;
  size: Float64Array;
  /** The segment's blocks are those from `first[i]` to before `first[i + 1]`, by offset. */
  first: Uint32Array;
}

export interface Blocks {
  count: number;
  offset: Float64Array;
  size: Float64Array;
  /** 0: free room, which has no colour. 1: handed out. 2: freed by the program and still used by a stream. */
  state: Uint8Array;
}

/** What is on the screen. */
export interface Look {
  width: number;
  height: number;
  /** Height of a row with its gap, in pixels. */
  row: number;
  /** The first row, as a number with a fraction. */
  top: number;
  /** Which part of the widest segment's bytes is seen, 0 to 1. With `full`, which part of each segment. */
  left: number;
  right: number;
  full: boolean;
}

/** Bytes that the screen's width stands for in a row, and the offset of its left edge. */
export function scale(
  segments: Segments,
  widest: number,
  look: Look,
  row: number,
): { begin: number; perPixel: number } {
  const size = look.full ? segments.size[row]! : widest;
  return { begin: look.left * size, perPixel: Math.max(1e-9, ((look.right - look.left) * size) / look.width) };
}

export function widest(segments: Segments): number {
  let most = 1;
  for (let i = 0; i < segments.count; i++) most = Math.max(most, segments.size[i]!);
  return most;
}

/** The first block of a segment that ends behind an offset. */
export function firstBehind(segments: Segments, blocks: Blocks, segment: number, offset: number): number {
  let low = segments.first[segment]!;
  let high = segments.first[segment + 1]!;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (blocks.offset[middle]! + blocks.size[middle]! > offset) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The rows that are seen: the first, and the one behind the last. */
export function visible(segments: Segments, look: Look): [number, number] {
  const first = Math.max(0, Math.floor(look.top));
  return [first, Math.min(segments.count, Math.ceil(look.top + look.height / look.row))];
}

/**
 * Paints all that is seen. Colours are words of a little-endian RGBA image. A pixel for which several blocks compete shows the largest of
 * them, mixed with `free` by the share of it that no block uses.
 */
export function paint(
  segments: Segments,
  blocks: Blocks,
  look: Look,
  color: Uint32Array,
  free: number,
  paper: number,
  into: Uint32Array,
): void {
  into.fill(paper);
  const most = widest(segments);
  const [first, last] = visible(segments, look);
  const line = new Uint32Array(look.width);
  const used = new Float32Array(look.width);
  const biggest = new Float32Array(look.width);
  for (let row = first; row < last; row++) {
    const { begin, perPixel } = scale(segments, most, look, row);
    const end = Math.min(look.width, Math.ceil((segments.size[row]! - begin) / perPixel));
    if (end <= 0) continue;
    paintRow(segments, blocks, row, begin, perPixel, end, color, free, line, used, biggest);
    const top = Math.round((row - look.top) * look.row);
    const gap = look.row >= 4 ? 1 : 0;
    for (let y = Math.max(0, top); y < Math.min(look.height, top + look.row - gap); y++) {
      into.set(end === look.width ? line : line.subarray(0, end), y * look.width);
    }
  }
}

function paintRow(
  segments: Segments,
  blocks: Blocks,
  row: number,
  begin: number,
  perPixel: number,
  end: number,
  color: Uint32Array,
  free: number,
  line: Uint32Array,
  used: Float32Array,
  biggest: Float32Array,
): void {
  line.fill(free, 0, end);
  used.fill(0, 0, end);
  biggest.fill(0, 0, end);
  const stop = segments.first[row + 1]!;
  const { offset, size, state } = blocks;
  for (let i = firstBehind(segments, blocks, row, begin); i < stop; i++) {
    const from = (offset[i]! - begin) / perPixel;
    if (from >= end) break;
    if (state[i] === 0) continue;
    const to = from + size[i]! / perPixel;
    const left = from <= 0 ? 0 : Math.floor(from);
    const right = Math.min(end, Math.ceil(to));
    // Whole pixels of a wide block are its own; the pixels at its ends may be shared.
    for (let x = left; x < right; x++) {
      const share = Math.min(to, x + 1) - Math.max(from, x);
      used[x]! += share;
      if (share > biggest[x]!) {
        biggest[x] = share;
        line[x] = color[i]!;
      }
      if (share === 1 && right - x > 3) {
        const inner = right - 1;
        line.fill(color[i]!, x, inner);
        used.fill(1, x, inner);
        biggest.fill(1, x, inner);
        x = inner - 1;
      }
    }
    // A seam between two wide blocks keeps them apart.
    if (to - from >= 4 && right < end && right - 1 >= left) used[right - 1] = Math.min(used[right - 1]!, 0.35);
  }
  for (let x = 0; x < end; x++) if (used[x]! > 0 && used[x]! < 0.995) line[x] = mixed(line[x]!, free, used[x]!);
}

/** One colour over another. */
export function mixed(over: number, under: number, share: number): number {
  let word = 0xff000000;
  for (const shift of [0, 8, 16]) {
    const value = ((over >>> shift) & 255) * share + ((under >>> shift) & 255) * (1 - share);
    word |= Math.round(value) << shift;
  }
  return word >>> 0;
}

/** The block at a place, -1 where there is none, and the row. */
export function hit(
  segments: Segments,
  blocks: Blocks,
  look: Look,
  x: number,
  y: number,
): { row: number; block: number } {
  const row = Math.floor(look.top + y / look.row);
  if (row < 0 || row >= segments.count) return { row: -1, block: -1 };
  const { begin, perPixel } = scale(segments, widest(segments), look, row);
  const offset = begin + x * perPixel;
  const block = firstBehind(segments, blocks, row, offset);
  const found = block < segments.first[row + 1]! && blocks.offset[block]! <= offset;
  return { row, block: found ? block : -1 };
}

/** The segment that a block lies in. */
export function rowOf(segments: Segments, block: number): number {
  let low = 0;
  let high = segments.count;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (segments.first[middle + 1]! > block) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Looks closer or from farther away at the pixel `x`. */
export function closer(look: Look, factor: number, x: number): Look {
  const length = Math.min(1, Math.max(1e-7, (look.right - look.left) * factor));
  const around = look.left + ((look.right - look.left) * x) / look.width;
  const left = Math.max(0, Math.min(1 - length, around - (length * x) / look.width));
  return { ...look, left, right: left + length };
}
