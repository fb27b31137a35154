// What /api/memory answers, in columns, and the same as the map needs it: sorted by address, with typed arrays.

import type { Blocks, Segments } from "./blockmap.ts";
import { isOwn } from "./frames.ts";
import type { Answered, CodeLine, Maybe } from "./types.ts";
import { type Int, address, bytes, nanoseconds } from "./units.ts";

export interface Columns extends Answered {
  /** Blocks that are not in the answer, and their bytes. */
  omitted_blocks?: Int;
  omitted_bytes?: Int;
  segments: {
    device: number[];
    address: Int[];
    size_bytes: Int[];
    stream: Int[];
    large: boolean[];
    expandable?: boolean[];
    pool_first?: Int[];
    pool_second?: Int[];
  };
  blocks: {
    segment: number[];
    address: Int[];
    size_bytes: Int[];
    requested_bytes: Maybe<Int>[];
    state: (string | number)[];
    since_boot_ns: Maybe<Int>[];
    stack: Maybe<number>[];
  };
  /** The different frames; those of a stack are places in it, innermost first. */
  frames: { kind: string; name: Maybe<string>; file: Maybe<string>; line: Maybe<number> }[];
  /** Where a stack has no frames, `missing` is a word that says why. */
  stacks: { frames: number[][]; truncated: boolean[]; missing: Maybe<string>[] };
}

export interface Row {
  address: Int;
  device: number;
  size: number;
  stream: string;
  kind: string;
  allocated: number;
  blocks: number;
}

export interface Picture {
  segments: Segments;
  blocks: Blocks;
  rows: Row[];
  /** Boot time in nanoseconds, not a number where it is not known. */
  since: Float64Array;
  requested: Float64Array;
  /** Which of the stacks, -1 where it is not known. */
  stack: Int32Array;
  stacks: CodeLine[][];
  /** For each stack a text that names it: the program's own innermost line and where that leads, or why there is none. */
  named: string[];
  asOfBoot: number;
  allocated: number;
  reserved: number;
  pending: number;
  handedOut: number;
  addressOf(block: number): string;
  indexOf(address: string): number;
  describe(block: number): string;
  /** The blocks of the same stack. */
  alike(block: number): { count: number; bytes: number };
}

const ACTIVE = 1;
const PENDING = 2;

export function pictured(answer: Columns): Picture {
  const { segments: s, blocks: b } = answer;
  const order = s.address
    .map((_, i) => i)
    .sort((x, y) => s.device[x]! - s.device[y]! || less(s.address[x]!, s.address[y]!));
  const rowOf = new Int32Array(order.length);
  order.forEach((segment, row) => (rowOf[segment] = row));
  const count = b.address.length;
  // Blocks come by segment and address; where segments come in another order they are put into theirs.
  const first = new Uint32Array(order.length + 1);
  for (let i = 0; i < count; i++) first[rowOf[b.segment[i]!]! + 1]! += 1;
  for (let row = 0; row < order.length; row++) first[row + 1]! += first[row]!;
  const next = first.slice();
  const from = new Uint32Array(count);
  for (let i = 0; i < count; i++) from[next[rowOf[b.segment[i]!]!]!++] = i;
  const bases = order.map((segment) => s.address[segment]!);
  const offset = new Float64Array(count);
  const size = new Float64Array(count);
  const state = new Uint8Array(count);
  const since = new Float64Array(count);
  const requested = new Float64Array(count);
  const stack = new Int32Array(count);
  const rows: Row[] = order.map((segment) => ({
    address: s.address[segment]!,
    device: s.device[segment]!,
    size: Number(s.size_bytes[segment]),
    stream: String(s.stream[segment]),
    allocated: 0,
    blocks: 0,
    kind: [
      s.large[segment] ? "large" : "small",
      s.expandable?.[segment] ? "expandable" : "",
      Number(s.pool_first?.[segment] ?? 0) || Number(s.pool_second?.[segment] ?? 0)
        ? `pool ${s.pool_first?.[segment]},${s.pool_second?.[segment]}`
        : "",
    ]
      .filter(Boolean)
      .join(", "),
  }));
  let allocated = 0;
  let pending = 0;
  let handedOut = 0;
  const byStack = new Map<number, { count: number; bytes: number }>();
  for (let i = 0; i < count; i++) {
    const j = from[i]!;
    const row = rowOf[b.segment[j]!]!;
    offset[i] = difference(b.address[j]!, bases[row]!);
    const length = Number(b.size_bytes[j]);
    size[i] = length;
    const what = b.state[j]!;
    state[i] = what === "active" || what === 1 ? ACTIVE : what === "pending_free" || what === 2 ? PENDING : 0;
    since[i] = b.since_boot_ns[j] == null ? NaN : Number(b.since_boot_ns[j]);
    requested[i] = b.requested_bytes[j] == null ? NaN : Number(b.requested_bytes[j]);
    stack[i] = b.stack[j] ?? -1;
    if (state[i] === PENDING) pending += length;
    if (state[i] !== ACTIVE) continue;
    allocated += length;
    handedOut += 1;
    rows[row]!.allocated += length;
    rows[row]!.blocks += 1;
    if (stack[i]! >= 0) {
      const sum = byStack.get(stack[i]!);
      if (sum) {
        sum.count += 1;
        sum.bytes += length;
      } else byStack.set(stack[i]!, { count: 1, bytes: length });
    }
  }
  const sizes = Float64Array.from(order, (segment) => Number(s.size_bytes[segment]));
  const lines = answer.frames.map((frame) => ({
    file: frame.file ?? "",
    line: frame.line ?? 0,
    name: frame.name ?? "unknown",
  }));
  const stacks = answer.stacks.frames.map((frames) => frames.map((place) => lines[place]!));
  const named = answer.stacks.frames.map((frames, i) => {
    const own = frames.find((place) => isOwn(answer.frames[place]!)) ?? frames[0];
    if (own === undefined) return answer.stacks.missing[i]?.replaceAll("_", " ") ?? "no frames";
    const place = ({ file, line, name }: CodeLine) =>
      file ? `${file.slice(file.lastIndexOf("/") + 1)}:${line}` : name;
    // One line of the program may come to several places of a library, which are stacks of their own.
    return own === frames[0] ? place(lines[own]!) : `${place(lines[own]!)} → ${place(lines[frames[0]!]!)}`;
  });
  const asOfBoot = Number(answer.as_of_boot_ns ?? NaN);
  const addressOf = (block: number) => String(BigInt(b.address[from[block]!]!));
  return {
    segments: { count: order.length, size: sizes, first },
    blocks: { count, offset, size, state },
    rows,
    since,
    requested,
    stack,
    stacks,
    named,
    asOfBoot,
    allocated,
    pending,
    handedOut,
    reserved: sizes.reduce((sum, one) => sum + one, 0),
    addressOf,
    indexOf(wanted) {
      for (let row = 0; row < order.length; row++) {
        const at = difference(wanted, bases[row]!);
        if (at < 0 || at >= sizes[row]!) continue;
        for (let i = first[row]!; i < first[row + 1]!; i++)
          if (offset[i]! <= at && at < offset[i]! + size[i]!) return i;
      }
      return -1;
    },
    describe(block) {
      const what = state[block] === ACTIVE ? "handed out" : state[block] === PENDING ? "waits for a stream" : "free";
      const frame = stacks[stack[block]!]?.[0];
      const age =
        Number.isNaN(since[block]!) || state[block] === 0 ? "" : `, ${nanoseconds(asOfBoot - since[block]!)} old`;
      return `${address(addressOf(block))}: ${bytes(size[block]!)}, ${what}${age}${frame ? `, ${frame.file.slice(frame.file.lastIndexOf("/") + 1)}:${frame.line} ${frame.name}` : ""}`;
    },
    alike: (block) => byStack.get(stack[block]!) ?? { count: 0, bytes: 0 },
  };
}

function less(a: Int, b: Int): number {
  const [x, y] = [BigInt(a), BigInt(b)];
  return x < y ? -1 : x > y ? 1 : 0;
}

function difference(a: Int, b: Int): number {
  return typeof a === "number" && typeof b === "number" ? a - b : Number(BigInt(a) - BigInt(b));
}
