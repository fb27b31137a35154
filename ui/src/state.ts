// What all views share: what the link says, what the page is about, the processes, and what was pushed.

import { batch, computed, effect, signal } from "@preact/signals";
import { Refused, about as askAbout, ask } from "./ask.ts";
import { FIRST, type View, read, write } from "./hash.ts";
import type { About, DevicesAnswer, ListAnswer, Maybe, NodeReply, Process, StatsAnswer } from "./types.ts";
import { type Int, clock } from "./units.ts";

/** What the link says. */
export const view = signal<View>(typeof location === "undefined" ? FIRST : read(location.hash));
export const about = signal<About | null>(null);
export const aboutError = signal<Error | null>(null);
/** The processes that are known, ended ones too. */
export const list = signal<{ processes: Process[] } | null>(null);
/** The last moment that was told, by the clock of what is asked, and when that was by the clock of this browser. */
export const asOf = signal<{ unixNs: Int; toldAt: number } | null>(null);
export const devices = signal<DevicesAnswer | null>(null);
/** Why there is no answer about the devices, while there is one about the processes. */
export const devicesError = signal<Error | null>(null);
/** The nodes of a fleet, each with its error if it did not answer. */
export const nodes = signal<NodeReply[]>([]);
/** Counts what was pushed: views that show the present ask again when it changes. */
export const beat = signal(0);
/** Whether what happens is pushed: `live`, `lost` while the connection is being made again, `still` where nothing can change. */
export const link = signal<"waiting" | "live" | "lost" | "still">("waiting");
/** The last findings and failed allocations that were pushed, the newest first. */
export const events = signal<Told[]>([]);
/** Whether the system asks for dark colours: what draws on a canvas draws again when that changes. */
export const systemIsDark = signal(
  typeof matchMedia !== "undefined" && matchMedia("(prefers-color-scheme: dark)").matches,
);
/** What is said politely to those who do not see the page. */
export const said = signal("");

export interface Told {
  kind: string;
  node?: string;
  pid: number | null;
  time_unix_ns: Int | null;
  time_boot_ns: Int | null;
  body: Record<string, unknown>;
}

/** So long after the last of many changes the address says it, milliseconds: each time costs a browser more than a frame's drawing. */
const ADDRESS_AFTER_MS = 150;
let waiting: ReturnType<typeof setTimeout> | null = null;

/** Writes into the address what is shown, if it still has to be. */
function settle(): void {
  if (waiting === null) return;
  clearTimeout(waiting);
  waiting = null;
  history.replaceState(null, "", write(view.peek()));
}

/** Shows something else. `replace` leaves no entry behind for the button "back": for what changes many times a second. */
export function go(change: Partial<View>, replace = false): void {
  const next = { ...view.peek(), ...change };
  const hash = write(next);
  if (hash === write(view.peek())) return;
  if (replace) {
    if (waiting !== null) clearTimeout(waiting);
    waiting = setTimeout(settle, ADDRESS_AFTER_MS);
  } else {
    settle();
    history.pushState(null, "", hash);
  }
  view.value = next;
}

/** A link to another view of the same. */
export function hrefTo(change: Partial<View>): string {
  return write({ ...view.value, ...change });
}

/** The node that the link says. Where one daemon is asked there is none, whatever a link says: the server would refuse the question. */
function nodeOfLink(): string | null {
  return about.value?.nodes ? view.value.node : null;
}

/** What the link has to say to be about a process, and about nothing that belonged to the one before. */
export function aboutProcess(process: { pid: number; node?: string | null }): Partial<View> {
  return {
    pid: process.pid,
    node: about.value?.nodes ? (process.node ?? null) : null,
    block: null,
    at: null,
    base: null,
    from: null,
    to: null,
    device: null,
  };
}

/** The selected process: the one in the link, else the one that grows most, else the one that holds most. */
export const selected = computed<Process | null>(() => {
  const all = list.value?.processes ?? [];
  const { pid } = view.value;
  const node = nodeOfLink();
  if (pid !== null)
    return all.findLast((process) => process.pid === pid && (node === null || (process.node ?? null) === node)) ?? null;
  return foremost(all);
});

function foremost(all: Process[]): Process | null {
  const weight = (process: Process) => [
    process.state === "attached" ? 1 : 0,
    process.growth_bytes_per_s ?? 0,
    Number(process.allocated_bytes ?? 0),
  ];
  let best: Process | null = null;
  for (const process of all) if (!best || less(weight(best), weight(process))) best = process;
  return best;
}

function less(a: number[], b: number[]): boolean {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i]! < b[i]!;
  return false;
}

/** The selected process's id, also of one that is not in the list. */
export const pid = computed<number | null>(() => selected.value?.pid ?? view.value.pid);

/**
 * Writes the process that the page has chosen by itself into the link: the one that grows most may be another in a second, and nobody reads
 * on about another process without having asked for it. Another one is chosen only when this one is not known any more.
 */
export function keepChosen(): () => void {
  let chosen: { pid: number; node: string | null } | null = null;
  return effect(() => {
    if (!list.value || !about.value) return;
    const { pid, node } = view.value;
    const isMine = chosen !== null && chosen.pid === pid && chosen.node === node;
    if (pid !== null && !(isMine && selected.value === null)) return;
    const best = foremost(list.value.processes);
    if (!best) return;
    const next = { pid: best.pid, node: about.value.nodes ? (best.node ?? null) : null };
    chosen = next;
    go(pid === null ? next : aboutProcess(best), true);
  });
}

/** Why the objects of the selected process cannot be read, in words; `null` if they can. */
export const unreadable = computed<string | null>(() => {
  if (about.value && !about.value.source.live)
    return "It is read from the running program, and this is a recording of one.";
  const process = selected.value;
  if (process && process.state !== "attached")
    return `It is read from the running program, and this one is not traced any more (${process.state.replaceAll("_", " ")}).`;
  return null;
});

/** The present by the clock of what is asked, `null` while it is not known. A recording has none but its end. */
export function present(): bigint | null {
  if (!asOf.value) return null;
  const { unixNs, toldAt } = asOf.value;
  // While nothing changes nothing is told, and time passes all the same.
  const since = about.value?.source.live ? Math.max(0, Date.now() - toldAt) : 0;
  return BigInt(unixNs) + BigInt(since) * 1_000_000n;
}

/** Changes when the present has to be asked again. An earlier moment does not change. */
export const fresh = computed(() => (view.value.at === null ? beat.value : -1));

/** The node of the selected process, where many nodes are asked. */
export const node = computed<string | null>(() =>
  about.value?.nodes ? (view.value.node ?? selected.value?.node ?? null) : null,
);

/** What was pushed of this kind about a process, the newest first. */
export function heardOf(id: number, of: string | null, kind: string): Told[] {
  return events.value.filter(
    (event) => event.kind === kind && event.pid === id && (of === null || (event.node ?? null) === of),
  );
}

/** Begins: reads the link, asks what there is, and listens. */
export function begin(): void {
  const moved = () => {
    if (waiting !== null) clearTimeout(waiting);
    waiting = null;
    view.value = read(location.hash);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener(
    "change",
    (event) => (systemIsDark.value = event.matches),
  );
  // A link is followed from where one is.
  addEventListener("click", settle, { capture: true });
  addEventListener("popstate", moved);
  addEventListener("hashchange", moved);
  keepChosen();
  effect(() => {
    const { theme } = view.value;
    const system = systemIsDark.value ? "dark" : "light";
    document.documentElement.dataset.theme = theme === "auto" ? system : theme;
  });
  askAbout<About>().then(
    (answer) => {
      about.value = answer;
      // Of a recording, the end is told by its answers.
      if (answer.source.live) toldMoment(answer.now_unix_ns);
      void lists();
      if (answer.source.live) listen();
      else link.value = "still";
    },
    (error: Error) => (aboutError.value = error),
  );
}

/** Asks for the processes and the devices: once, where nothing is pushed, and for the first view. */
async function lists(): Promise<void> {
  if (about.peek()?.source.kind === "fleet") return;
  try {
    const devices = ask<DevicesAnswer>("Devices", {}, null).catch((error: Error) => error);
    const processes = await ask<ListAnswer>("List", {}, null);
    const machine = await devices;
    batch(() => told({ list: processes, devices: machine }));
    const process = selected.peek();
    // With --strict the devices may be refused. What moment it is, and of a recording where it ends, the numbers of a process tell as well.
    if (machine instanceof Error && process !== null)
      toldMoment((await ask<StatsAnswer>("Stats", { pid: process.pid }, null).catch(() => null))?.as_of);
  } catch (error) {
    aboutError.value = error as Error;
  }
}

const MOST_EVENTS = 200;
/** What views look for among the events. Others would push these out: a program may mark many times a second. */
const KEPT = ["finding", "oom"];

/** What a push says of the present: of one daemon, or of the nodes of a fleet. */
interface Pushed {
  list?: ListAnswer;
  devices?: DevicesAnswer | Failure | Error;
  fleet?: { nodes: (NodeReply & { answer?: { list: ListAnswer; devices: DevicesAnswer } })[] };
}

/** What stands in the place of an answer that could not be given. */
interface Failure {
  error: { code?: string; message?: string; hint?: Maybe<string> };
}

/** So many beats change whatever is asked again after some of them (`slow` in the views). */
const ALL_BEATS = 60;
/** Least time from one beat to the next that nothing was pushed for, milliseconds. */
const BEAT_MS = 1000;
/** So long after the last push nothing more is expected, milliseconds: numbers that change come each second, those of a fleet each five. */
const REST_MS = 3000;
const FLEETS_REST_MS = 15_000;
/** So long after the server did not let the page listen it is tried again, milliseconds. */
const AGAIN_MS = 5000;

function listen(): void {
  let source: EventSource | null = null;
  let wasOpen = false;
  let resting: ReturnType<typeof setTimeout> | undefined;
  let allAsked = -Infinity;
  // What is asked again after some beats only would stay as it was before the last push. So when nothing more is pushed, all is asked once
  // more: at once, or as often as with a push each second where that was done a short time ago.
  const rest = () => {
    const isAll = performance.now() - allAsked >= ALL_BEATS * BEAT_MS;
    if (isAll) allAsked = performance.now();
    else resting = setTimeout(rest, BEAT_MS);
    beat.value += isAll ? ALL_BEATS : 1;
  };
  const stop = () => clearTimeout(resting);
  const pushed = () => {
    stop();
    resting = setTimeout(rest, about.peek()?.source.kind === "fleet" ? FLEETS_REST_MS : REST_MS);
  };
  const open = () => {
    const mine = new EventSource(
      `api/live${about.peek()?.pids?.length ? `?pids=${about.peek()!.pids!.slice(0, 64).join(",")}` : ""}`,
    );
    source = mine;
    source.addEventListener("error", () => {
      link.value = "lost";
      stop();
      // A browser tries again by itself, unless the server refused.
      if (mine.readyState !== 2 || source !== mine) return;
      source = null;
      askAbout<About>().then(
        () => setTimeout(seen, AGAIN_MS),
        (error: Error) => {
          aboutError.value = error;
          if (!(error instanceof Refused && error.code === "stranger")) setTimeout(seen, AGAIN_MS);
        },
      );
    });
    // Findings that stand are told at the beginning, so those from before may have ended meanwhile. The first time nothing was missed.
    source.addEventListener("open", () => {
      if (wasOpen) batch(anew);
      wasOpen = true;
    });
    source.addEventListener("missed", () => (beat.value += ALL_BEATS));
    source.addEventListener("now", (message) => {
      const now = JSON.parse(message.data) as Pushed;
      batch(() => {
        link.value = "live";
        told(now);
        beat.value += 1;
      });
      pushed();
    });
    source.addEventListener("event", (message) => {
      heard(JSON.parse(message.data) as Told);
      pushed();
    });
    source.addEventListener("gone", () => {
      link.value = "lost";
      stop();
    });
    source.addEventListener("back", () =>
      batch(() => {
        link.value = "live";
        anew();
      }),
    );
  };
  // A page that nobody sees listens to nothing: a browser has few connections to one server.
  const seen = () => {
    if (document.hidden) {
      stop();
      source?.close();
      source = null;
    } else if (!source) open();
  };
  document.addEventListener("visibilitychange", seen);
  seen();
}

/** Something may have happened that nobody told: findings from before are dropped, and everything is asked again. */
function anew(): void {
  events.value = events.value.filter((event) => event.kind !== "finding");
  beat.value += ALL_BEATS;
}

/** Takes over what a push says of processes and devices. */
function told(pushed: Pushed): void {
  const of = about.peek()?.pids;
  const mine = (process: Process) => !of?.length || of.includes(process.pid);
  aboutError.value = null;
  if (pushed.list) {
    const told = pushed.devices;
    const isAnswer = told && "devices" in told;
    list.value = { processes: pushed.list.processes.filter(mine) };
    if (isAnswer) toldMoment(told.as_of);
    devices.value = isAnswer ? told : null;
    devicesError.value = told && !isAnswer ? (told instanceof Error ? told : refused(told)) : null;
  }
  if (!pushed.fleet) return;
  nodes.value = pushed.fleet.nodes;
  const answered = pushed.fleet.nodes.filter((node) => node.answer);
  if (answered.length === 0) return;
  const machines = answered.filter((node) => "devices" in (node.answer!.devices ?? {}));
  const all = answered.flatMap(({ node, answer }) =>
    answer!.list.processes.filter(mine).map((process) => ({ ...process, node })),
  );
  const moment = machines[0]?.answer!.devices.as_of;
  toldMoment(moment);
  list.value = { processes: all };
  devices.value = {
    as_of: moment,
    devices: machines.flatMap(({ node, answer }) => answer!.devices.devices.map((device) => ({ ...device, node }))),
    coverage: machines.flatMap(({ answer }) => answer!.devices.coverage ?? []),
  };
}

/** Takes over what moment it is; an answer that does not say leaves the last one, since which time goes on. */
function toldMoment(unixNs: Maybe<Int>): void {
  if (unixNs != null) asOf.value = { unixNs, toldAt: Date.now() };
}

function refused({ error }: Failure): Refused {
  return new Refused(error.code ?? "", error.message ?? "nobody told of the devices", error.hint ?? "");
}

/** When an event raised the beat last: marks do that only so often as numbers are pushed. */
let beatAt = -Infinity;

function heard(event: Told): void {
  const number = event.kind === "finding" ? event.body.number : null;
  const who = event.pid === null ? "a process" : `process ${event.pid}`;
  const place = event.body.file ? `: ${event.body.file}:${event.body.line}` : "";
  const others = events.value.filter(
    (other) =>
      number === null ||
      other.kind !== "finding" ||
      other.pid !== event.pid ||
      other.node !== event.node ||
      other.body.number !== number,
  );
  if (KEPT.includes(event.kind)) events.value = [event, ...others].slice(0, MOST_EVENTS);
  if (event.kind === "finding" && event.body.withdrawn !== true)
    said.value = `A line of ${who} keeps more and more memory${place}.`;
  // Only words that differ from those before are said.
  const when = event.time_unix_ns === null ? "" : ` at ${clock(event.time_unix_ns)} UTC`;
  if (event.kind === "oom") said.value = `${who[0]!.toUpperCase()}${who.slice(1)} ran out of device memory${when}.`;
  const isLater = performance.now() - beatAt >= BEAT_MS;
  if (event.kind === "mark" && !isLater) return;
  beatAt = performance.now();
  beat.value += 1;
}
