// Bytes, durations and moments as people read them: the same text as crates/units writes, so that the page and memscope-ctl
// show one number in one way.

/** An integer of an answer: beyond 2^53 it comes as text. */
export type Int = number | string;

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/**
 * A number with so many digits after the decimal point. A value in the middle between two texts becomes the even one, as Rust writes it;
 * `toFixed` would take the larger one.
 */
export function fixed(value: number, digits: number): string {
  // Binary fractions have such a middle only where this many halvings lead to an odd number.
  const halved = Math.abs(value) * 2 ** (digits + 1);
  if (!Number.isInteger(halved) || halved % 2 === 0) return value.toFixed(digits);
  const below = Math.floor(Math.abs(value) * 10 ** digits);
  const even = below % 2 === 0 ? below : below + 1;
  return ((Math.sign(value) * even) / 10 ** digits).toFixed(digits);
}

/** How sure something is, from 0 to 1, as memscope-ctl's tables have it. */
export function sure(confidence: number): string {
  return `${fixed(confidence * 100, 0)} %`;
}

/** A size with two digits after the decimal point, `1.23 GiB`; below 1 KiB without them, `512 B`. */
export function bytes(count: Int): string {
  const exact = Number(count);
  if (exact < 1024) return `${Math.round(exact)} B`;
  let value = exact / 1024;
  let unit = 0;
  // A value that would be shown as 1024.00 is shown in the next unit.
  while (value >= 1023.995 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${fixed(value, 2)} ${UNITS[unit]}`;
}

/** A change in bytes with its sign. */
export function signedBytes(change: Int): string {
  const exact = Number(change);
  return `${exact < 0 ? "-" : "+"}${bytes(Math.abs(exact))}`;
}

/** A number with commas between its thousands. */
export function grouped(count: Int): string {
  return String(count).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A duration, given in nanoseconds, in its two largest units: `200 ms`, `1.5 s`, `2 m 3 s`, `4 h 5 m`, `6 d 7 h`. */
export function nanoseconds(ns: Int): string {
  const exact = Math.max(0, Number(ns));
  const seconds = Math.floor(exact / 1e9);
  const parts = (big: number, bigUnit: string, small: number, smallUnit: string) =>
    small === 0 ? `${big} ${bigUnit}` : `${big} ${bigUnit} ${small} ${smallUnit}`;
  if (seconds === 0) return exact < 1e6 ? `${Math.floor(exact / 1e3)} µs` : `${Math.floor(exact / 1e6)} ms`;
  if (seconds < 60) return `${fixed(exact / 1e9, 1).replace(/\.0$/, "")} s`;
  if (seconds < 3600) return parts(Math.floor(seconds / 60), "m", seconds % 60, "s");
  if (seconds < 86_400) return parts(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "m");
  return parts(Math.floor(seconds / 86_400), "d", Math.floor((seconds % 86_400) / 3600), "h");
}

/** A moment, given in nanoseconds since 1970, to the second: `2025-06-15 15:06:40 UTC`. */
export function moment(unixNs: Int): string {
  return `${iso(unixNs).slice(0, 19).replace("T", " ")} UTC`;
}

/** The time of day of a moment to the millisecond, in UTC: `15:06:40.250`. */
export function clock(unixNs: Int): string {
  return iso(unixNs).slice(11, 23);
}

function iso(unixNs: Int): string {
  return new Date(Number(BigInt(unixNs) / 1_000_000n)).toISOString();
}

/** A share, 0 to 1, in percent. */
export function percent(share: number): string {
  return `${fixed(share * 100, share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

/** An address in hexadecimal. */
export function address(value: Int): string {
  return `0x${BigInt(value).toString(16)}`;
}
