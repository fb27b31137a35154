// How exactly numbers are known, by the rule of memscope-ctl (`Known` in its render): what it calls unknown the page calls unknown.

import type { Answered, DeviceStats, Maybe, Note } from "./types.ts";

/** `at_least`: something is not counted, so numbers are lower bounds. `not`: they may be too large as well as too small. */
export type Exactness = "exactly" | "at_least" | "not";

/** How exactly numbers of these kinds are known, according to the notes of an answer. */
export function knownOf(notes: Maybe<Note[]>, ...kinds: string[]): Exactness {
  const spoilt = (notes ?? []).filter((note) => note.affects.some((kind) => kinds.includes(kind)));
  if (spoilt.length === 0) return "exactly";
  return spoilt.every((note) => note.lower_bound) ? "at_least" : "not";
}

/** The same of the totals of a device: where they are the driver's allocations, what limits those counts too. */
export function totalsOf(device: DeviceStats, notes: Maybe<Note[]>): Exactness {
  return device.source === "driver" ? knownOf(notes, "totals", "driver") : knownOf(notes, "totals");
}

/** The same of the peaks of a device: no better than its totals, of which they are the largest, and than what happened. */
export function peaksOf(device: DeviceStats, notes: Maybe<Note[]>): Exactness {
  const both = [totalsOf(device, notes), knownOf(notes, "history")];
  return both.includes("not") ? "not" : both.includes("at_least") ? "at_least" : "exactly";
}

/** What means something only if all of it is known: a share, a piece that is the largest, what is free. */
export function onlyIf(known: Exactness): Exactness {
  return known === "exactly" ? "exactly" : "not";
}

/** A number in words, as exactly as it is known. */
export function say(known: Exactness, number: string): string {
  return known === "not" ? "unknown" : known === "at_least" ? `at least ${number}` : number;
}

/** Whether there is nothing yet that could grow: at level `read`, before the first reading. */
export function neverRead(answer: Maybe<Answered>): boolean {
  const said = (code: string) => (answer?.coverage ?? []).some((note) => note.code === code);
  return said("level_read") && said("totals_unknown");
}

export const NEVER_READ = "Cannot tell: nothing has been read of this process yet.";
