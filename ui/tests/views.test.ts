// The views themselves, mounted without a browser: what they say of an answer, and what they ask.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Source, place, server, settled, shown } from "./dom.ts";
import { type ComponentType, h, render } from "preact";
import { FIRST, read } from "../src/hash.ts";
import * as state from "../src/state.ts";
import { Whose } from "../src/views/whose.tsx";

const it = globalThis as any;

const process = (pid: number, more: object = {}) => ({
  pid,
  comm: "python",
  cmdline: ["python", "train.py"],
  state: "attached",
  level: "pool",
  attached_boot_ns: 1,
  ended_boot_ns: null,
  allocated_bytes: 100,
  reserved_bytes: 200,
  lost_records: 0,
  known_from_unix_ns: null,
  growing_lines: 0,
  growth_bytes_per_step: null,
  growth_bytes_per_s: 0,
  waits_for_device: false,
  ...more,
});

/** Everything as it is before anything is known, of a daemon with these processes. */
function fresh(processes: object[] = [process(42)], nodes: string[] | null = null) {
  state.view.value = { ...FIRST, pid: 42 };
  state.about.value = {
    version: "0",
    source: { kind: nodes ? "fleet" : "daemon", name: "unix", live: true },
    pids: null,
    nodes,
  };
  state.list.value = { processes: processes as any, asOf: "1000" };
  state.devices.value = null;
  state.events.value = [];
  state.beat.value = 0;
  server.asked.length = 0;
}

/** Mounts a view; what it says is the text of its place. */
async function mounted(view: ComponentType<any>, props: object = {}): Promise<any> {
  const at = place();
  render(h(view, props as any), at);
  await settled();
  return at;
}

const gone = (at: any) => render(null, at);

const amounts = (bytes: number, count = 1) => ({
  live: { bytes, count },
  peak: { bytes, count },
  allocated: { bytes, count },
  before: null,
});
const frame = (name: string, line: number) => ({ kind: "python", name, file: "/srv/train.py", line });
const stacks = (rows: object[], more: object = {}) => ({
  as_of: "1000000000",
  coverage: [],
  rows,
  groups: [],
  devices: [],
  omitted: 0,
  others: null,
  from_unix_ns: null,
  ...more,
});
const row = (names: string[], bytes: number) => ({
  device: 0,
  frames: names.map((name, i) => frame(name, i + 1)),
  truncated: false,
  missing: null,
  amounts: amounts(bytes),
});

test("an answer without stacks is followed by one that has some", async () => {
  fresh();
  let rows: object[] = [];
  server.answer = () => ({ body: stacks(rows) });
  const at = await mounted(Whose);
  assert.match(at.textContent, /Nothing is handed out/);
  rows = [row(["step", "main"], 4096)];
  state.beat.value += 5;
  await settled();
  assert.doesNotMatch(at.textContent, /Nothing is handed out/);
  assert.equal(at.all("canvas").length, 1);
  assert.match(at.textContent, /4\.00 KiB in all/);
  gone(at);
});

test("without a fleet a rank's node is no part of a link, nor of a question", () => {
  fresh([process(42), process(43)]);
  // A rank of one daemon has the daemon's address for a node.
  assert.equal(state.aboutProcess({ pid: 43, node: "unix:/run/memscope.sock" }).node, null);
  state.view.value = { ...FIRST, pid: 43, node: "unix:/run/memscope.sock" };
  assert.equal(state.selected.value?.pid, 43);
  assert.equal(state.node.value, null);
  fresh([process(43, { node: "a" }), process(43, { node: "b" })], ["a", "b"]);
  assert.equal(state.aboutProcess({ pid: 43, node: "b" }).node, "b");
  state.view.value = { ...FIRST, pid: 43, node: "a" };
  assert.equal(state.selected.value?.node, "a");
  assert.equal(state.node.value, "a");
});

test("another process begins with all of its devices and the present", () => {
  fresh([process(42), process(43)]);
  state.view.value = { ...FIRST, pid: 42, device: 3, at: "peak", from: 1, to: 2, block: "7", base: "step:3" };
  state.go(state.aboutProcess({ pid: 43 }));
  assert.deepEqual(state.view.value, { ...FIRST, pid: 43 });
});

test("the process that the page has chosen stays until it is not known any more", async () => {
  fresh([process(42, { growth_bytes_per_s: 9 }), process(43)]);
  state.view.value = FIRST;
  const before = it.history.pushed;
  const stop = state.keepChosen();
  assert.equal(state.view.value.pid, 42);
  const grown = (pid: number) => process(pid, { growth_bytes_per_s: 100 });
  state.list.value = { processes: [process(42), grown(43)] as any, asOf: "2" };
  assert.equal(state.selected.value?.pid, 42);
  assert.match(state.hrefTo({ view: "leaks" }), /pid=42/);
  await new Promise((done) => setTimeout(done, 200));
  assert.equal(read(it.location.hash).pid, 42);
  assert.equal(it.history.pushed, before, "the button back leads to where one was");
  state.list.value = { processes: [grown(43)] as any, asOf: "3" };
  assert.equal(state.view.value.pid, 43);
  // What a link says stays, also where nobody knows it.
  state.go({ pid: 7 });
  state.list.value = { processes: [grown(43)] as any, asOf: "4" };
  assert.equal(state.view.value.pid, 7);
  stop();
});
