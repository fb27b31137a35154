// What all views share: what the link says, what the page is about, the processes, and what was pushed.

import { batch, computed, effect, signal } from "@preact/signals";
import { Refused, about as askAbout, ask } from "./ask.ts";
import { FIRST, type View, read, write } from "./hash.ts";
import type { About, DevicesAnswer, ListAnswer, Maybe, NodeReply, Process } from "./types.ts";
import { type Int } from "./units.ts";

/** What the link says. */
export const view = signal<View>(typeof location === "undefined" ? FIRST : read(location.hash));
export const about = signal<About | null>(null);
export const aboutError = signal<Error | null>(null);
/** The processes that are known, ended ones too, and when they were told. */
export const list = signal<{ processes: Process[]; asOf: Int | null } | null>(null);
export const devices = signal<DevicesAnswer | null>(null);
/** Why there is no answer about the devices, while there is one about the processes. */
export const devicesError = signal<Error | null>(null);
/** The nodes of a fleet, each with its error if it did not answer. */
export const nodes = signal<NodeReply[]>([]);
/** Counts what was pushed: views that show the present ask again when it changes. */
export const beat = signal(0);
/** Whether what happens is pushed: `live`, `lost` while the connection is being made again, `still` where nothing can change. */
export const link = signal<"waiting" | "live" | "lost" | "still">("waiting");
/** The last events that were pushed, the newest first. */
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
    process.growth_bytes_per_s,
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
  } catch (error) {
    aboutError.value = error as Error;
  }
}

const MOST_EVENTS = 200;

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
/** So long after the server did not let the page listen it is tried again, milliseconds. */
const AGAIN_MS = 5000;

function listen(): void {
  let source: EventSource | null = null;
  let wasOpen = false;
  const open = () => {
    const mine = new EventSource(
      `api/live${about.peek()?.pids?.length ? `?pids=${about.peek()!.pids!.slice(0, 64).join(",")}` : ""}`,
    );
    source = mine;
    source.addEventListener("error", () => {
      link.value = "lost";
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
      const pushed = JSON.parse(message.data) as Pushed;
      batch(() => {
        link.value = "live";
        told(pushed);
        beat.value += 1;
      });
    });
    source.addEventListener("event", (message) => heard(JSON.parse(message.data) as Told));
    source.addEventListener("gone", () => (link.value = "lost"));
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
  if (pushed.list) {
    const told = pushed.devices;
    const isAnswer = told && "devices" in told;
    list.value = { processes: pushed.list.processes.filter(mine), asOf: isAnswer ? (told.as_of ?? null) : null };
    devices.value = isAnswer ? told : null;
    devicesError.value = told && !isAnswer ? (told instanceof Error ? told : refused(told)) : null;
    aboutError.value = null;
  }
  if (!pushed.fleet) return;
  nodes.value = pushed.fleet.nodes;
  const answered = pushed.fleet.nodes.filter((node) => node.answer);
  if (answered.length === 0) return;
  const machines = answered.filter((node) => "devices" in (node.answer!.devices ?? {}));
  const all = answered.flatMap(({ node, answer }) =>
    answer!.list.processes.filter(mine).map((process) => ({ ...process, node })),
  );
  const asOf = machines[0]?.answer!.devices.as_of ?? null;
  list.value = { processes: all, asOf };
  devices.value = {
    as_of: asOf ?? undefined,
    devices: machines.flatMap(({ node, answer }) => answer!.devices.devices.map((device) => ({ ...device, node }))),
    coverage: machines.flatMap(({ answer }) => answer!.devices.coverage ?? []),
  };
}

function refused({ error }: Failure): Refused {
  return new Refused(error.code ?? "", error.message ?? "nobody told of the devices", error.hint ?? "");
}

function heard(event: Told): void {
  const number = event.kind === "finding" ? event.body.number : null;
  const others = events.value.filter(
    (other) =>
      number === null ||
      other.kind !== "finding" ||
      other.pid !== event.pid ||
      other.node !== event.node ||
      other.body.number !== number,
  );
  events.value = [event, ...others].slice(0, MOST_EVENTS);
  if (event.kind === "finding" && event.body.withdrawn !== true)
    said.value = "A line of a program keeps more and more memory.";
  if (event.kind === "oom") said.value = "A process ran out of device memory.";
  beat.value += 1;
}
