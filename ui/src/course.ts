// What is known of the course of one process: the tiles that were answered, the devices that were met, and what limits the numbers.

import { ask } from "./ask.ts";
import { type Span, Tiles, bounds, joined, needed } from "./tiles.ts";
import type { FluctuationAnswer, Interval, Note } from "./types.ts";

/** Intervals of one tile: about as many as the screen has pixels for it. */
const INTERVALS = 600;
const MOST_TILES = 120;
/** So many intervals of the whole course are enough while more than this share of it is on the screen. */
const FINE_ENOUGH = 250;
const MOST_OF_IT = 0.6;
/** Questions that are under way at a time. */
const MOST_ASKED = 2;

type Course = Map<number | null, Span[]>;

/** What is kept of an answer: the course of each device, and what limits it. */
interface Content {
  course: Course;
  notes: Note[];
}

function spans(intervals: Interval[]): Span[] {
  return intervals.map((one) => ({
    from: Number(one.from_boot_ns),
    to: Number(one.to_boot_ns),
    minAllocated: Number(one.min_allocated_bytes),
    maxAllocated: Number(one.max_allocated_bytes),
    minReserved: Number(one.min_reserved_bytes),
    maxReserved: Number(one.max_reserved_bytes),
  }));
}

/** All that is known of the course of one process. */
export class Known {
  tiles = new Tiles<Content>(MOST_TILES);
  all: [number, number] | null = null;
  /** What has to be added to boot time to have nanoseconds since 1970. */
  offset = 0n;
  /** What limits the course of the whole. */
  private whole: Note[] = [];
  /** All devices that any answer told of: a part of the course may be without some of them. */
  private met = new Set<number | null>();
  /** Into how many intervals the whole course is cut. */
  private coarse = 0;
  private asked = new Map<string, AbortController>();
  /** What happens while the course of the whole is on its way may be missing in it, so it is asked for once more behind it. */
  private again = false;

  constructor(
    readonly id: number,
    readonly node: string | null,
    readonly changed: () => void,
    readonly failed: (error: Error | null) => void,
  ) {}

  async overview(): Promise<void> {
    if (this.asked.has("all")) {
      this.again = true;
      return;
    }
    this.again = false;
    const controller = new AbortController();
    this.asked.set("all", controller);
    try {
      const answer = await ask<FluctuationAnswer>(
        "Fluctuation",
        { pid: this.id, window_ns: 0, intervals: INTERVALS },
        this.node,
        controller.signal,
      );
      this.take(answer);
      this.whole = answer.coverage ?? [];
      this.coarse = Math.max(0, ...answer.devices.map((device) => device.intervals.length));
      const [from, to] = this.all ?? [0, 1];
      let level = needed(from, to).level;
      // The smallest tile that has all in it.
      while (Math.floor(from / 2 ** level) !== Math.floor(to / 2 ** level) && level < 62) level += 1;
      this.tiles.put({ level, index: Math.floor(from / 2 ** level), knownTo: to, content: contentOf(answer) });
      this.failed(null);
      this.changed();
    } catch (error) {
      if (!controller.signal.aborted) this.failed(error as Error);
    } finally {
      this.asked.delete("all");
      if (this.again && !controller.signal.aborted) void this.overview();
    }
  }

  private take(answer: FluctuationAnswer): void {
    for (const { device } of answer.devices) this.met.add(device ?? null);
    // Of a process that has ended nothing comes any more.
    const now = Number(answer.process?.ended_boot_ns ?? answer.as_of_boot_ns);
    this.offset = BigInt(answer.as_of ?? 0) - BigInt(answer.as_of_boot_ns ?? 0);
    const first = Math.min(
      ...answer.devices.map((device) => Number(device.overall.from_boot_ns)).filter((ns) => ns > 0),
      this.all?.[0] ?? Infinity,
    );
    if (Number.isFinite(first) && now > first) this.all = [first, Math.max(now, this.all?.[1] ?? 0)];
  }

  /** The tiles that a window needs and that are not there: their level and their indices. */
  wanted(from: number, to: number): { level: number; indices: number[] } {
    const { level, first, last } = needed(from, to);
    const indices: number[] = [];
    if (!this.all) return { level, indices };
    // The course that is known from the beginning is as fine as the screen while most of it is seen. To be finer, all of the journal would
    // have to be read.
    if (this.coarse >= FINE_ENOUGH && to - from > (this.all[1] - this.all[0]) * MOST_OF_IT) return { level, indices };
    for (let index = first; index <= last; index++) {
      const [begin, end] = bounds(level, index);
      if (end <= this.all[0] || begin >= this.all[1]) continue;
      if (this.tiles.wants(level, index, this.all[1], (to - from) / 400)) indices.push(index);
    }
    return { level, indices };
  }

  /** Asks for the tiles that a window needs and that are not there; questions that no window needs any more are given up. */
  need(from: number, to: number): void {
    const { level, indices: wanted } = this.wanted(from, to);
    const keys = new Set(wanted.map((index) => `${level}:${index}`));
    for (const [key, controller] of this.asked) {
      if (key !== "all" && !keys.has(key)) {
        controller.abort();
        this.asked.delete(key);
      }
    }
    for (const index of wanted) {
      const key = `${level}:${index}`;
      if (this.asked.has(key) || this.asked.size > MOST_ASKED) continue;
      const controller = new AbortController();
      this.asked.set(key, controller);
      const [begin, end] = bounds(level, index);
      ask<FluctuationAnswer>(
        "Fluctuation",
        { pid: this.id, from_boot_ns: begin, to_boot_ns: end, intervals: INTERVALS },
        this.node,
        controller.signal,
      ).then(
        (answer) => {
          this.take(answer);
          this.tiles.put({ level, index, knownTo: Number(answer.as_of_boot_ns), content: contentOf(answer) });
          this.asked.delete(key);
          this.failed(null);
          this.changed();
        },
        (error: Error) => {
          if (controller.signal.aborted) return;
          this.asked.delete(key);
          this.failed(error);
        },
      );
    }
  }

  stop(): void {
    for (const controller of this.asked.values()) controller.abort();
  }

  devices(): (number | null)[] {
    return [...this.met].sort((a, b) => (a ?? Infinity) - (b ?? Infinity));
  }

  /** What limits what is seen of a window, and the whole. */
  notes(from: number, to: number): Note[] {
    return [...this.whole, ...this.tiles.best(from, to).flatMap(({ tile }) => tile.content.notes)];
  }

  course(device: number | null, from: number, to: number): Span[] {
    return joined(
      this.tiles
        .best(from, to)
        .map((part) => ({ spans: part.tile.content.course.get(device) ?? [], from: part.from, to: part.to })),
    ).filter((span) => span.to >= from - (to - from) / 50 && span.from <= to + (to - from) / 50);
  }

  unix(boot: number): bigint {
    return this.offset + BigInt(Math.round(boot));
  }
}

function contentOf(answer: FluctuationAnswer): Content {
  return { course: course(answer), notes: answer.coverage ?? [] };
}

function course(answer: FluctuationAnswer): Course {
  const found: Course = new Map();
  // The driver's numbers of a device are left out where the pool's are there.
  for (const device of answer.devices) {
    if (device.source === "pool" || !found.has(device.device ?? null))
      found.set(device.device ?? null, spans(device.intervals));
  }
  return found;
}

/** The devices that are shown. One that a link names and that this process does not have stands for all. */
export function seen(devices: (number | null)[], chosen: number | null): (number | null)[] {
  const isThere = chosen !== null && devices.includes(chosen);
  return devices.filter((one) => !isThere || one === chosen);
}
