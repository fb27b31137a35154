// What the page shows, as the part of the link behind `#`, and back: a link carries the view.

export const VIEWS = ["now", "time", "memory", "whose", "leaks", "steps", "oom", "ranks"] as const;
export type ViewName = (typeof VIEWS)[number];

/** All that a link says. What is `null` or empty is as the page has it by itself. */
export interface View {
  view: ViewName;
  /** Process id of the selected process. */
  pid: number | null;
  /** Node of the selected process, where many nodes are asked. */
  node: string | null;
  /** The window of time on the screen, boot-time nanoseconds. */
  from: number | null;
  to: number | null;
  /** The moment that is asked about: nanoseconds since 1970, or `step:9`, `mark:NAME`, `event:7`, `peak`. Now, if there is none. */
  at: string | null;
  /** An earlier moment to compare with, written in the same way. */
  base: string | null;
  device: number | null;
  filter: string;
  /** What is chosen within a view: by what blocks are coloured, by what stacks are summed up, what is counted. */
  color: string;
  by: string;
  metric: string;
  /** Address of the selected block. */
  block: string | null;
  theme: "auto" | "light" | "dark";
}

export const FIRST: View = {
  view: "now",
  pid: null,
  node: null,
  from: null,
  to: null,
  at: null,
  base: null,
  device: null,
  filter: "",
  color: "stack",
  by: "own_line",
  metric: "live",
  block: null,
  theme: "auto",
};

const MOMENT = /^(\d{1,20}|step:\d{1,20}|event:\d{1,20}|mark:[\s\S]{1,160}|peak(:\d{1,9})?)$/;

/** Reads what stands behind `#`. What is not understood is left as it is by itself: a link never breaks the page. */
export function read(hash: string): View {
  const [path, query] = split(hash.replace(/^#\/?/, ""));
  const words = new URLSearchParams(query);
  const text = (name: string) => words.get(name);
  const whole = (name: string, most = Number.MAX_SAFE_INTEGER) => {
    const value = text(name);
    return value !== null && /^\d{1,16}$/.test(value) && Number(value) <= most ? Number(value) : null;
  };
  // In a recording of a snapshot boot time is counted from 1970, which is more than a number has exactly: then it is right to 256 ns.
  const time = (name: string) => {
    const value = text(name);
    return value !== null && /^\d{1,20}$/.test(value) ? Number(value) : null;
  };
  const when = (name: string) => {
    const value = text(name);
    return value !== null && MOMENT.test(value) ? value : null;
  };
  const word = (name: "color" | "by" | "metric") =>
    /^[a-z_]{1,20}$/.test(text(name) ?? "") ? text(name)! : FIRST[name];
  const theme = text("theme");
  let from = time("from");
  let to = time("to");
  if (from === null || to === null || to <= from) from = to = null;
  return {
    view: (VIEWS as readonly string[]).includes(path) ? (path as ViewName) : FIRST.view,
    pid: whole("pid", 0xffff_ffff),
    node: text("node") || null,
    from,
    to,
    at: when("at"),
    base: when("base"),
    device: whole("device", 0x7fff_ffff),
    filter: (text("filter") ?? "").slice(0, 200),
    color: word("color"),
    by: word("by"),
    metric: word("metric"),
    block: /^\d{1,20}$/.test(text("block") ?? "") ? text("block") : null,
    theme: theme === "light" || theme === "dark" ? theme : "auto",
  };
}

function split(text: string): [string, string] {
  const at = text.indexOf("?");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

/** The link's part behind and with `#`. Only what differs from the beginning is in it. */
export function write(view: View): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(view)) {
    if (name !== "view" && value !== null && value !== FIRST[name as keyof View])
      words.set(name, String(typeof value === "number" ? Math.round(value) : value));
  }
  const query = words.toString();
  return `#/${view.view}${query ? `?${query}` : ""}`;
}

/** A moment as a request has it; `undefined` is now. */
export function asMoment(at: string | null): Record<string, unknown> | undefined {
  if (at === null) return undefined;
  if (/^\d+$/.test(at)) return { unix_ns: at };
  if (at === "peak") return { peak: {} };
  const [kind, rest] = [at.slice(0, at.indexOf(":")), at.slice(at.indexOf(":") + 1)];
  if (kind === "peak") return { peak: { device: Number(rest) } };
  return { [kind]: rest };
}
