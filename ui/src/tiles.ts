// The course of a pool over time in tiles: each covers a stretch whose length is a power of two, in nanoseconds of boot time. What is on
// the screen is put together of the tiles that are there, the finest first, so that something is seen at once and becomes finer.

/** One interval, in numbers. Times are nanoseconds of boot time. */
export interface Span {
  from: number;
  to: number;
  minAllocated: number;
  maxAllocated: number;
  minReserved: number;
  maxReserved: number;
}

export interface Tile<T> {
  level: number;
  index: number;
  /** Up to which moment the answer knew: behind it the tile is not complete yet. */
  knownTo: number;
  content: T;
}

/** The shortest tile is a microsecond long, the longest two hundred years. */
const FINEST = 10;
const COARSEST = 62;

/** Which tiles a window needs: their level, and the first and the last index. A window has at least two tiles and at most three. */
export function needed(from: number, to: number): { level: number; first: number; last: number } {
  const level = Math.min(COARSEST, Math.max(FINEST, Math.ceil(Math.log2(Math.max(1, (to - from) / 2)))));
  const length = 2 ** level;
  return { level, first: Math.floor(from / length), last: Math.floor(to / length) };
}

/** Where a tile begins and ends. */
export function bounds(level: number, index: number): [number, number] {
  const length = 2 ** level;
  return [index * length, (index + 1) * length];
}

/** The tiles that were answered, the ones used last at the end; older ones are forgotten. */
export class Tiles<T> {
  private kept = new Map<string, Tile<T>>();

  constructor(private readonly most: number) {}

  get size(): number {
    return this.kept.size;
  }

  put(tile: Tile<T>): void {
    const key = `${tile.level}:${tile.index}`;
    this.kept.delete(key);
    this.kept.set(key, tile);
    while (this.kept.size > this.most) this.kept.delete(this.kept.keys().next().value!);
  }

  get(level: number, index: number): Tile<T> | undefined {
    const key = `${level}:${index}`;
    const tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key);
      this.kept.set(key, tile);
    }
    return tile;
  }

  /** Whether a tile has to be asked for: it is not there, or it ends in the present and more than `slack` is missing of it. */
  wants(level: number, index: number, present: number, slack: number): boolean {
    const tile = this.kept.get(`${level}:${index}`);
    if (!tile) return true;
    const end = Math.min(bounds(level, index)[1], present);
    return tile.knownTo < end && end - tile.knownTo > slack;
  }

  /**
   * The best that is there for a window: for each tile that it needs the tile itself, or the finest one around it. What a tile did not know
   * yet is taken from the next one that does.
   */
  best(from: number, to: number): { tile: Tile<T>; from: number; to: number }[] {
    const { level, first, last } = needed(from, to);
    const found: { tile: Tile<T>; from: number; to: number }[] = [];
    for (let index = first; index <= last; index++) {
      const [begin, end] = bounds(level, index);
      let known = begin;
      for (let up = level; up <= COARSEST && known < end; up++) {
        const tile = this.get(up, Math.floor(begin / 2 ** up));
        if (!tile || tile.knownTo <= known) continue;
        const to = Math.min(end, tile.knownTo);
        const before = found.at(-1);
        if (before && before.tile === tile) before.to = to;
        else found.push({ tile, from: known, to });
        known = to;
      }
    }
    return found;
  }
}

/** Intervals of several tiles as one row: those that overlap the stretch of their tile, in order, none twice. */
export function joined(parts: { spans: Span[]; from: number; to: number }[]): Span[] {
  const all: Span[] = [];
  for (const { spans, from, to } of parts) {
    for (const span of spans) {
      if (span.to <= from || span.from >= to) continue;
      const begin = Math.max(span.from, from, all.at(-1)?.to ?? 0);
      const end = Math.min(span.to, to);
      if (end > begin) all.push({ ...span, from: begin, to: end });
    }
  }
  return all;
}

/** Moves or stretches a window, kept within what there is. `factor` below 1 looks closer at `around`. */
export function zoomed(
  window: [number, number],
  factor: number,
  around: number,
  all: [number, number],
): [number, number] {
  const length = Math.min(all[1] - all[0], Math.max(1000, (window[1] - window[0]) * factor));
  const share = (around - window[0]) / (window[1] - window[0]);
  return within(around - length * share, length, all);
}

/** The same window, moved by a share of its length. */
export function panned(window: [number, number], share: number, all: [number, number]): [number, number] {
  const length = window[1] - window[0];
  return within(window[0] + length * share, length, all);
}

function within(from: number, length: number, all: [number, number]): [number, number] {
  const begin = Math.round(Math.max(all[0], Math.min(from, all[1] - length)));
  return [begin, Math.round(Math.min(all[1], begin + length))];
}
