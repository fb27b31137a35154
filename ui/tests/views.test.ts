// The views themselves, mounted without a browser: what they say of an answer, and what they ask.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { Source, heldTimers, place, server, settled, shown } from "./dom.ts";
import { signal } from "@preact/signals";
import { type ComponentType, h, render } from "preact";
import { ask, useAnswer } from "../src/ask.ts";
import { FIRST, read } from "../src/hash.ts";
import * as state from "../src/state.ts";
import { Known, seen } from "../src/course.ts";
import { knownOf, peaksOf, totalsOf } from "../src/known.ts";
import { Leaks } from "../src/views/leaks.tsx";
import { Memory } from "../src/views/memory.tsx";
import { Now, slow } from "../src/views/now.tsx";
import { Oom } from "../src/views/oom.tsx";
import { Ranks } from "../src/views/ranks.tsx";
import { Steps } from "../src/views/steps.tsx";
import { Time } from "../src/views/time.tsx";
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
  state.list.value = { processes: processes as any };
  state.asOf.value = { unixNs: "1000", toldAt: Date.now() };
  state.devices.value = null;
  state.events.value = [];
  state.beat.value = 0;
  server.asked.length = 0;
}

/** Mounts a view; what it says is the text of its place. */
async function mounted(view: ComponentType<any>, props: object = {}): Promise<any> {
  const at = place();
  open.add(at);
  render(h(view, props as any), at);
  await settled();
  return at;
}

function gone(at: any) {
  open.delete(at);
  render(null, at);
}

/** What is mounted. A test that fails leaves nothing behind for the others. */
const open = new Set<any>();
afterEach(() => {
  open.forEach(gone);
  after.splice(0).forEach((then) => then());
});
/** What else a test puts back. */
const after: (() => void)[] = [];

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

test("a rank leads to its process, with its node in a fleet only", async () => {
  const rank = (node: string) => ({
    jobs: [
      {
        job: null,
        ranks: [{ rank: 0, node, pid: 43, peak_allocated_bytes: 1, allocated_bytes: 1, peak_reserved_bytes: 1, floor_bytes: 1, grows: false, growth_bytes_per_step: null, step_median_ns: null }],
        missing: [],
        twice: [],
        judgement: { odd: [], comparisons: 0, not_judged: [] },
      },
    ],
    nodes: [],
  });
  for (const [node, nodes] of [
    ["unix:/run/memscope.sock", null],
    ["b", ["a", "b"]],
  ] as const) {
    fresh([process(43, nodes ? { node } : {})], nodes as any);
    answering({ Ranks: rank(node) });
    const at = await mounted(Ranks);
    const link = at.all("a").find((one: any) => one.textContent === "43");
    const leads = read(link.href ?? link.attributes.href);
    assert.deepEqual([leads.pid, leads.node], [43, nodes ? "b" : null]);
    gone(at);
  }
});

test("of two ranks with one number the odd one is named", async () => {
  const rank = (node: string, pid: number) => ({ rank: 3, node, pid, peak_allocated_bytes: pid, allocated_bytes: 1, peak_reserved_bytes: 1, floor_bytes: 1, grows: false, growth_bytes_per_step: null, step_median_ns: null });
  const finding = { rank: 3, metric: "peak", value: 2048, peers_median: 1024, confidence: 0.999 };
  const judgement = { odd: [{ rank: 3, place: 1, findings: [finding], explained: null }], comparisons: 2, not_judged: [] };
  const job = { job: null, ranks: [rank("a", 42), rank("b", 43)], missing: [], twice: [3], judgement };
  fresh([process(42, { node: "a" }), process(43, { node: "b" })], ["a", "b"]);
  answering({ Ranks: { jobs: [job], nodes: [] } });
  const at = await mounted(Ranks);
  assert.match(at.textContent, /Rank 3 \(b, pid 43\) stands out/);
  gone(at);
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
  state.list.value = { processes: [process(42), grown(43)] as any };
  assert.equal(state.selected.value?.pid, 42);
  assert.match(state.hrefTo({ view: "leaks" }), /pid=42/);
  await new Promise((done) => setTimeout(done, 200));
  assert.equal(read(it.location.hash).pid, 42);
  assert.equal(it.history.pushed, before, "the button back leads to where one was");
  state.list.value = { processes: [grown(43)] as any };
  assert.equal(state.view.value.pid, 43);
  // What a link says stays, also where nobody knows it.
  state.go({ pid: 7 });
  state.list.value = { processes: [grown(43)] as any };
  assert.equal(state.view.value.pid, 7);
  stop();
});

const note = (affects: string[], lower_bound: boolean, code = "lost") => ({
  code,
  text: `A note about ${affects.join()}.`,
  affects,
  lower_bound,
});

test("numbers are as exact as memscope-ctl says that they are", () => {
  const lower = note(["blocks"], true);
  const wrong = note(["totals"], false);
  assert.equal(knownOf([], "blocks"), "exactly");
  assert.equal(knownOf(undefined, "blocks"), "exactly");
  assert.equal(knownOf([lower], "blocks"), "at_least");
  assert.equal(knownOf([lower], "history"), "exactly");
  assert.equal(knownOf([lower, wrong], "blocks"), "at_least");
  assert.equal(knownOf([lower, wrong], "totals", "blocks"), "not");
  assert.equal(totalsOf({ source: "driver" } as any, [note(["driver"], true)]), "at_least");
  assert.equal(totalsOf({ source: "pool" } as any, [note(["driver"], true)]), "exactly");
  assert.equal(peaksOf({ source: "driver" } as any, [note(["driver"], true)]), "at_least");
  assert.equal(peaksOf({ source: "pool" } as any, [note(["driver"], true)]), "exactly");
  assert.equal(peaksOf({ source: "pool" } as any, [note(["history"], true)]), "at_least");
  assert.equal(peaksOf({ source: "pool" } as any, [note(["totals"], true), note(["history"], false)]), "not");
});

const stat = {
  device: 0,
  source: "pool",
  allocated_bytes: 1024,
  reserved_bytes: 2048,
  peak_allocated_bytes: 3072,
  peak_reserved_bytes: 4096,
  requested_bytes: 1000,
  live_blocks: 7,
  total_bytes: null,
  free_bytes: 1 << 30,
  oom_count: 3,
  peak_unix_ns: "1000",
  device_kind: "cuda",
};
const leaksAnswer = (more: object = {}) => ({
  as_of: "1000000000",
  as_of_boot_ns: 1000,
  coverage: [],
  groups: [],
  lines: [],
  growing_lines: 0,
  growing_bytes: 0,
  watched_ns: 5e9,
  seconds_to_full: null,
  steps: null,
  young: null,
  holders: [],
  unheld: null,
  looked_at: null,
  given_back: [],
  together: null,
  omitted_lines: 0,
  ...more,
});

/** Answers each kind of question; others as if nothing were known. */
function answering(answers: Record<string, object>) {
  server.answer = (path) => {
    const kind = path.replace(/^api\/ask\//, "").replace(/\?.*/, "");
    const empty = { as_of: "1000000000", coverage: [], devices: [], rows: [], marks: [], owners: [], failures: [], counts: [] };
    return { body: answers[kind] ?? (kind === "Leaks" ? leaksAnswer() : { ...empty, summary: {}, lines: [] }) };
  };
}

const factOf = (at: any, name: string) =>
  ["dd", "span", "b", "p"].flatMap((one) => at.all(one)).find((one) => one.attributes["data-fact"] === name)?.textContent;

test("Now says what is a lower bound and what is not known", async () => {
  fresh();
  const coverage = [note(["history"], true), note(["blocks"], false)];
  answering({ Stats: { as_of: "1", coverage, devices: [stat], failures: [] } });
  const at = await mounted(Now);
  assert.equal(factOf(at, "allocated"), "1.00 KiB");
  assert.match(factOf(at, "peak allocated"), /^at least 3\.00 KiB/);
  assert.equal(factOf(at, "asked for"), "unknown");
  assert.equal(factOf(at, "live blocks"), "unknown");
  assert.equal(factOf(at, "ran out of memory"), "at least 3 times");
  assert.match(at.textContent, /it ran out of memory at least 3 times/);
  const look = at.all("button").find((one: any) => one.textContent === "Look at it");
  look.send("click");
  assert.equal(state.view.value.at, "peak:0");
  gone(at);
});

test("what was never read is not said not to grow", async () => {
  const coverage = [note([], false, "level_read"), note(["totals"], false, "totals_unknown")];
  for (const view of [Now, Leaks]) {
    fresh();
    answering({ Leaks: leaksAnswer({ coverage }) });
    const at = await mounted(view);
    assert.match(at.textContent, /Cannot tell: nothing has been read of this process yet\./);
    assert.doesNotMatch(at.textContent, /Nothing is known to grow|None is known/);
    gone(at);
  }
});

test("nothing is advised of a pool of which only a part is known", async () => {
  const device = {
    device: 0,
    reserved_bytes: 1 << 20,
    free: { bytes: 1 << 19, count: 2 },
    largest_free_bytes: 1 << 18,
    idle_segments: { bytes: 1 << 18, count: 1 },
    fragmentation_of_free: 0.5,
  };
  for (const [coverage, exact] of [
    [[], true],
    [[note(["blocks"], true)], false],
  ] as const) {
    fresh();
    answering({
      Stats: { as_of: "1", coverage: [note(["history"], exact)], devices: [stat], failures: [] },
      Pool: { as_of: "1", coverage, devices: [device], failed_allocations: [] },
    });
    const at = await mounted(Oom);
    assert.equal(factOf(at, "largest free"), exact ? "256.00 KiB" : "unknown");
    assert.equal(factOf(at, "fragmentation"), exact ? "50 %" : "unknown");
    assert.equal(/empty_cache/.test(at.textContent), exact);
    assert.match(at.textContent, exact ? /reported at least 3 failed/ : /How many allocations failed is not known/);
    gone(at);
  }
});

test("a difference of blocks that are not all known is a bound", async () => {
  fresh();
  state.view.value = { ...state.view.value, metric: "growth", base: "step:1" };
  const one = { bytes: 1024, count: 3 };
  answering({
    Stacks: stacks([row(["main"], 1024)], { coverage: [note(["blocks"], true)], groups: [] }),
    Diff: {
      as_of: "1",
      from_unix_ns: "1000000",
      to_unix_ns: "2000000",
      coverage: [note(["blocks"], true)],
      omitted_groups: 0,
      groups: [{ device: 0, stream: 0, size_bytes: 512, came: one, went: one, stayed: one }],
      devices: [
        { device: 0, allocated_before_bytes: 1024, allocated_after_bytes: 2048, reserved_before_bytes: 1, reserved_after_bytes: 2, came: one, went: one, stayed: one },
      ],
    },
  });
  const at = await mounted(Whose);
  assert.match(at.textContent, /at least 1\.00 KiB → at least 2\.00 KiB/);
  assert.match(at.textContent, /at least 1\.00 KiB in at least 3/);
  assert.match(at.textContent, /Of the blocks that are known:/);
  gone(at);
});

test("the icicle keeps its place in the next answer, whose frames have other numbers", async () => {
  fresh();
  let rows = [row(["leaf", "step", "main"], 4096), row(["other", "main"], 1024)];
  server.answer = () => ({ body: stacks(rows) });
  const at = await mounted(Whose);
  const icicle = () => at.all("div").find((one: any) => one.attributes.class === "icicle" || one.className === "icicle");
  const key = async (word: string) => {
    icicle().send("keydown", { key: word });
    await settled();
  };
  const hover = () => at.all("p").find((one: any) => one.className === "hover" || one.attributes.class === "hover").textContent;
  for (const word of ["ArrowDown", "ArrowDown", "ArrowDown"]) await key(word);
  assert.match(hover(), /^step · train\.py:2: 4\.00 KiB/);
  // Another stack comes first now, so each frame has another number.
  rows = [row(["fresh", "else"], 65536), row(["leaf", "step", "main"], 8192)];
  state.beat.value += 5;
  await settled();
  assert.match(hover(), /^step · train\.py:2: 8\.00 KiB/);
  await key("Enter");
  assert.match(hover(), /below step · train\.py:2/);
  rows = [row(["third"], 1 << 20), row(["leaf", "step", "main"], 2048)];
  state.beat.value += 5;
  await settled();
  assert.match(hover(), /^2\.00 KiB below step · train\.py:2/);
  await key("Escape");
  assert.match(hover(), /in all/);
  gone(at);
});

const interval = (from: number, to: number) => ({
  from_boot_ns: from,
  to_boot_ns: to,
  min_allocated_bytes: 1,
  max_allocated_bytes: 2,
  min_reserved_bytes: 3,
  max_reserved_bytes: 4,
  allocs: 0,
  frees: 0,
});
const courseOf = (devices: number[], from: number, to: number, coverage: object[]) => ({
  as_of: String(1e12),
  as_of_boot_ns: 1e12,
  coverage,
  devices: devices.map((device) => ({
    device,
    source: "pool",
    overall: interval(from, to),
    intervals: [interval(from, to)],
    floor_slope_bytes_per_s: 0,
  })),
});

test("a part of the course without a device takes nothing from the whole", async () => {
  const whole = note(["history"], true, "whole");
  const part = note(["blocks"], true, "part");
  server.answer = (_, body) => ({
    body: body.window_ns === 0 ? courseOf([1, 0], 1e9, 1e12, [whole]) : courseOf([1], 1e9, 1e12, [part]),
  });
  const known = new Known(42, null, () => undefined, () => undefined);
  await known.overview();
  known.need(2e9, 3e9);
  await settled();
  assert.deepEqual(known.devices(), [0, 1]);
  const codes = (from: number, to: number) => [...new Set(known.notes(from, to).map(({ code }) => code))];
  assert.deepEqual(codes(2e9, 3e9), ["whole", "part"]);
  assert.deepEqual(codes(5e11, 9e11), ["whole"]);
  assert.equal(known.course(1, 2e9, 3e9).length > 0, true);
});

test("a device that the process does not have is all of them", () => {
  assert.deepEqual(seen([0, 1], 3), [0, 1]);
  assert.deepEqual(seen([0, 1], 1), [1]);
  assert.deepEqual(seen([0, null], null), [0, null]);
});

test("what holders have is unknown or a bound where it is, and what nobody explains is an upper bound then", async () => {
  fresh();
  answering({});
  const holder = (pid: number, held_bytes: number | null, at_least: boolean) => ({
    process: process(pid),
    ordinal: 0,
    allocated_bytes: null,
    held_bytes,
    at_least,
    context_bytes: null,
  });
  state.devices.value = {
    devices: [
      {
        kind: "cuda",
        name: "GPU-1",
        total_bytes: 1 << 30,
        free_bytes: 1 << 20,
        held_bytes: 4096,
        at_least: true,
        unexplained_bytes: 2048,
        holders: [holder(42, null, true), holder(43, 4096, true)],
        context_bytes: null,
        driver_reserved_bytes: null,
      },
    ],
  };
  const at = await mounted(Now);
  assert.match(at.textContent, /python \(42\) unknown/);
  assert.match(at.textContent, /python \(43\) at least 4\.00 KiB/);
  assert.match(at.textContent, /unexplained at most 2\.00 KiB/);
  gone(at);
});

test("a question whose answer is on its way is put once more when something has happened meanwhile", async () => {
  let flights: ((body: string) => void)[] = [];
  const subject = signal("a");
  const fresh = signal(0);
  const Asks = () => {
    const state = useAnswer<string>(subject.value, fresh.value, () => new Promise((done) => flights.push(done)));
    return h("p", null, `${state.value.answer} ${state.value.asking}`);
  };
  const at = await mounted(Asks);
  fresh.value = 1;
  await settled();
  fresh.value = 2;
  await settled();
  assert.equal(flights.length, 1);
  flights[0]!("old");
  await settled();
  assert.equal(flights.length, 2);
  assert.equal(at.textContent, "old true");
  flights[1]!("new");
  await settled();
  assert.equal(at.textContent, "new false");
  assert.equal(flights.length, 2, "once more is enough");
  // Another subject takes nothing of the one before.
  fresh.value = 3;
  await settled();
  fresh.value = 4;
  subject.value = "b";
  await settled();
  assert.equal(flights.length, 4);
  flights[2]!("of a");
  flights[3]!("of b");
  await settled();
  assert.equal(at.textContent, "of b false");
  assert.equal(flights.length, 4);
  gone(at);
});

test("shares are of all stacks, and what is left out is said with what it holds", async () => {
  fresh();
  const devices = [{ device: 0, amounts: amounts(8192, 4), stacks: 9 }];
  const left = { devices, omitted: 7, others: amounts(4096, 3) };
  const group = { device: 0, frame: frame("main", 1), missing: null, own: amounts(4096), total: amounts(4096), stacks: 1 };
  server.answer = (_, body) => ({
    body: body.by === "STACK_GROUPING_STACK" ? stacks([row(["main"], 4096)], left) : stacks([], { ...left, groups: [group], omitted: 2 }),
  });
  const at = await mounted(Whose);
  assert.match(at.textContent, /4\.00 KiB of 8\.00 KiB are drawn/);
  assert.equal(factOf(at, "not drawn"), "7 smaller stacks with 4.00 KiB are not drawn.");
  assert.equal(factOf(at, "not listed"), "2 smaller places with 4.00 KiB are not listed.");
  at.all("div").find((one: any) => (one.className || one.attributes.class) === "icicle").send("keydown", { key: "ArrowDown" });
  await settled();
  assert.match(at.textContent, /all: 4\.00 KiB \(50\.0 %\)/);
  gone(at);
});

const line = {
  device: 0,
  source: "pool",
  line: { file: "/srv/train.py", line: 3, name: "step" },
  verdict: "growing",
  confidence: 0.985,
  groups: 1,
  stacks: 1,
  smallest_bytes: 1024,
  largest_bytes: 1024,
  live_count: 5,
  live_bytes: 5120,
  growth_bytes: 4096,
  growth_bytes_per_s: 10,
  growth_bytes_per_step: 1024,
  growth_bytes_per_step_low: 1000,
  growth_bytes_per_step_high: 1100,
  first_step: 1,
  oldest_age_ns: 5,
  looks_like_kept_graph: false,
  reason: "",
  beside: false,
  callers: [],
};

test("Leaks tells of what grows, of what is too young, of what holds it, and of what nothing holds", async () => {
  fresh();
  const growing = {
    lines: [line],
    growing_lines: 1,
    growing_bytes: 4096,
    omitted_lines: 4,
    young: { groups: 2, in_every_step: true, steps: 89, needed_steps: 100 },
  };
  const holder = {
    path: "__main__.history",
    container: "__main__.history",
    kind: "list",
    length: 20,
    origin: "garbage",
    via: "graph",
    blocks: { bytes: 1024, count: 2 },
    way: [],
  };
  const looked = { looked_at: { bytes: 3072, count: 6 }, unheld: { bytes: 2048, count: 4 } };
  const bodies: any[] = [];
  answering({});
  const others = server.answer;
  server.answer = (path, body) => {
    if (!path.startsWith("api/ask/Leaks")) return others(path, body);
    bodies.push(body);
    return { body: leaksAnswer({ ...growing, ...(body.holders ? { ...looked, holders: [holder] } : {}) }) };
  };
  const at = await mounted(Leaks);
  assert.ok(bodies.every((body) => !body.include_steady), "lines that do not grow would be counted among those left out");
  assert.match(at.textContent, /1 line grows/);
  assert.match(at.textContent, /Too early to tell of others: 2 groups rose in every step, 89 of 100 steps seen\./);
  assert.match(at.textContent, /6 blocks that grow were looked at, with 3\.00 KiB/);
  assert.match(at.textContent, /in 2 blocks, by autograd graphs that it leads to, which waits for the garbage collector/);
  assert.match(at.textContent, /Nothing that was found \(C\+\+ code, or they were in use\): 2\.00 KiB in 4 blocks/);
  assert.match(at.textContent, /4 more lines are not shown/);
  assert.equal(at.all("b").find((one: any) => one.attributes["data-fact"] === "leak: confidence").textContent, "98 %");
  gone(at);
  fresh();
  server.answer = (path, body) =>
    path.startsWith("api/ask/Leaks") && body.holders
      ? { status: 403, body: { error: { code: "not_permitted", message: "its objects may not be read", hint: null } } }
      : others(path, body);
  const refused = await mounted(Leaks);
  assert.match(refused.textContent, /What holds it could not be read:its objects may not be read/);
  gone(refused);
});

test("under a line of Leaks are the stacks of its device and its kind of memory only, whatever the function is called", async () => {
  fresh();
  const group = (device: number, source: string, name: string) => ({
    ...line,
    device,
    source,
    line: { ...line.line, name: `of ${name}` },
    size_bytes: 1024,
    frames: [{ file: "lib.py", line: 1, name }],
  });
  const groups = [
    group(0, "pool", "mine"),
    group(1, "pool", "of_the_other_device"),
    group(0, "driver", "of_the_other_kind"),
  ];
  const lines = groups.map(({ device, source }) => ({ ...line, device, source }));
  answering({ Leaks: leaksAnswer({ lines, groups, growing_lines: 3 }) });
  const at = await mounted(Leaks);
  const stacks = at.all("article").map((one: any) => one.all("details").map((stack: any) => stack.textContent));
  assert.deepEqual(
    stacks.map((of: string[]) => of.length),
    [1, 1, 1],
  );
  for (const [i, name] of ["mine", "of_the_other_device", "of_the_other_kind"].entries())
    assert.ok(stacks[i][0].includes(name), stacks[i][0]);
  gone(at);
});

test("Steps says which of them are listed, and why a window has none", async () => {
  fresh();
  const step = (number: number, device: number) => ({
    step: number,
    from_boot_ns: number * 1000,
    to_boot_ns: number * 1000 + 1000,
    device,
    min_allocated_bytes: 1,
    max_allocated_bytes: 2,
    end_allocated_bytes: 1,
    max_reserved_bytes: 3,
    allocs: 1,
    frees: 1,
    steps: 1,
  });
  const device = (one: number) => ({ device: one, steps: 500, min_bytes: null, max_bytes: null, floor_bytes_per_step: 0, smallest_gap: null, largest_gap: null });
  const limits: number[] = [];
  server.answer = (_, body) => {
    limits.push(body.limit);
    return {
      body: {
        as_of: "1",
        coverage: [],
        summary: { source: "marks", count: 500, median_ns: 1000, evidence: "marks" },
        lines: [],
        rows: [498, 499, 500].flatMap((one) => [step(one, 0), step(one, 1)]),
        survivor_count: 1,
        survivor_bytes: 10,
        unchecked_blocks: 6,
        devices: [device(0), device(1)],
      },
    };
  };
  const at = await mounted(Steps);
  assert.match(at.textContent, /Of device 1, the last 3 of 500 steps are listed and drawn\./);
  assert.match(at.textContent, /Of 6 more blocks that is not known: too many came in one step\./);
  state.view.value = { ...state.view.value, from: 1000, to: 2000 };
  await settled();
  assert.match(at.textContent, /The steps of this window are older than those that are listed/);
  assert.equal(limits.at(-1), 0, "all that are kept are asked for");
  gone(at);
});

test("Time asks again for failed allocations that nobody pushed", async () => {
  fresh();
  answering({ Fluctuation: courseOf([], 1, 2, []) });
  const at = await mounted(Time);
  const pools = () => server.asked.filter((path) => path === "api/ask/Pool").length;
  assert.equal(pools(), 1);
  state.beat.value += 5;
  await settled();
  assert.equal(pools(), 2);
  gone(at);
});

test("a server that was started anew is told from a daemon that refuses", async () => {
  server.answer = () => ({ status: 403, body: "open the link that memscope-ctl ui printed" });
  await assert.rejects(ask("List", {}, null), { code: "stranger", message: /started anew/ });
  server.answer = () => ({ status: 403, body: { error: { code: "not_permitted", message: "no" } } });
  await assert.rejects(ask("List", {}, null), { code: "not_permitted" });
});

test("what is pushed may lack the devices, and a stream that begins anew brings its own findings", async () => {
  const about = { version: "0", source: { kind: "daemon", name: "unix", live: true }, pids: null, nodes: null };
  const failure = { error: { code: "unavailable", message: "no driver answers", hint: null } };
  answering({ List: { processes: [process(42)] } });
  const others = server.answer;
  server.answer = (path, body) =>
    path === "api/about"
      ? { body: about }
      : path.startsWith("api/ask/Devices")
        ? { status: 500, body: failure }
        : others(path, body);
  state.list.value = null;
  state.begin();
  await settled();
  assert.equal(state.list.value!.processes.length, 1);
  assert.equal(state.devicesError.value?.message, "no driver answers");
  const source = Source.all.at(-1)!;
  const first = state.beat.value;
  source.tell("open");
  assert.equal(state.beat.value, first, "what was just asked is not asked again");
  source.tell("now", { list: { processes: [process(42), process(43)] }, devices: failure });
  assert.equal(state.list.value!.processes.length, 2);
  assert.equal(state.devices.value, null);
  const at = await mounted(Now);
  assert.match(at.textContent, /no driver answers/);
  source.tell("now", { list: { processes: [process(42)] }, devices: { as_of: "7", devices: [] } });
  assert.equal(state.devicesError.value, null);
  assert.equal(state.asOf.value!.unixNs, "7");
  const finding = { kind: "finding", pid: 42, time_unix_ns: "1", time_boot_ns: 1, body: { number: 3 } };
  const oom = { ...finding, kind: "oom", body: {} };
  source.tell("event", finding);
  source.tell("event", oom);
  const before = state.beat.value;
  source.tell("missed", { events: 7 });
  assert.ok(state.beat.value - before >= 30, "every question is put again");
  assert.equal(state.heardOf(42, null, "finding").length, 1);
  it.document.hidden = true;
  shown.visibilitychange();
  it.document.hidden = false;
  shown.visibilitychange();
  const next = Source.all.at(-1)!;
  assert.notEqual(next, source);
  next.tell("open");
  assert.equal(state.heardOf(42, null, "finding").length, 0);
  assert.equal(state.heardOf(42, null, "oom").length, 1);
  // The server does not know the page any more: it says so, and does not ask for ever.
  server.answer = () => ({ status: 403, body: "no" });
  next.readyState = 2;
  next.tell("error");
  await settled();
  assert.match(state.aboutError.value!.message, /started anew/);
  assert.equal(state.link.value, "lost");
  gone(at);
});

/** One block in each segment, of these states and streams, as /api/memory answers. */
const columns = (of: { state?: string; stream?: number | string }[]) => ({
  as_of: "1000000000",
  as_of_boot_ns: 1000,
  coverage: [],
  omitted_blocks: 0,
  omitted_bytes: 0,
  segments: {
    device: of.map(() => 0),
    address: of.map((_, i) => 0x1000 * (i + 1)),
    size_bytes: of.map(() => 0x1000),
    stream: of.map(({ stream }) => stream ?? 0),
    large: of.map(() => false),
  },
  blocks: {
    segment: of.map((_, i) => i),
    address: of.map((_, i) => 0x1000 * (i + 1)),
    size_bytes: of.map(() => 0x1000),
    requested_bytes: of.map(() => null),
    state: of.map(({ state }) => state ?? "active"),
    since_boot_ns: of.map(() => null),
    stack: of.map(() => null),
  },
  frames: [],
  stacks: { frames: [], truncated: [], missing: [] },
});

/** Answers what Memory asks. */
function answeringMemory(of: () => Parameters<typeof columns>[0]) {
  server.answer = (path) => ({ body: path === "api/memory" ? columns(of()) : { as_of: "1", holders: [], summary: {} } });
}

/** Begins as the page does, with a source of this kind and these answers; those that are not given are refused. */
async function begun(source: object, answers: Record<string, object>) {
  fresh();
  state.list.value = null;
  state.asOf.value = null;
  const about = { version: "0", source, pids: null, nodes: null, now_unix_ns: "90000000000" };
  const all: Record<string, object> = { "api/about": about, "api/memory": columns([{}]), ...answers };
  server.answer = (path) => {
    const body = all[path] ?? all[path.replace(/^api\/ask\//, "")];
    return body ? { body } : { status: 409, body: { error: { code: "not_exact", message: "not all is known", hint: null } } };
  };
  state.begin();
  after.push(() => {
    it.document.hidden = true;
    shown.visibilitychange?.();
    it.document.hidden = false;
  });
  await settled();
}

const daemon = { kind: "daemon", name: "unix", live: true };
const recording = { kind: "recording", name: "run.mscope", live: false };

test("what changed last is asked for when nothing more is pushed", async () => {
  const timers = heldTimers();
  after.push(timers.end);
  await begun(daemon, { List: { processes: [process(42)] }, Devices: { as_of: "1", devices: [] } });
  await mounted(Memory);
  const asked = () => server.asked.filter((path) => path === "api/memory").length;
  assert.equal(asked(), 1);
  const source = Source.all.at(-1)!;
  const changed = (allocated_bytes: number) =>
    source.tell("now", { list: { processes: [process(42, { allocated_bytes })] }, devices: { as_of: "2", devices: [] } });
  changed(1 << 30);
  await settled();
  assert.equal(asked(), 1);
  const before = state.beat.value;
  timers.pass();
  await settled();
  assert.equal(asked(), 2);
  for (const every of [1, 2, 3, 4, 5, 10, 15, 30, 60])
    assert.notEqual(slow(before, every), slow(state.beat.value, every), `each ${every}`);
  // All is not asked at once again and again, but as if something were pushed each second.
  const quiet = state.beat.value;
  timers.pass();
  assert.equal(state.beat.value, quiet);
  changed(1 << 20);
  for (let second = 1; second <= 4; second++) {
    timers.pass();
    assert.equal(state.beat.value, quiet + 1 + second);
  }
  await settled();
  assert.equal(asked(), 3);
  // Nobody is asked while the daemon is gone.
  source.tell("gone", {});
  const gone = state.beat.value;
  timers.pass();
  assert.equal(state.beat.value, gone);
});

test("many marks neither push out what failed, nor ask more often than once a second", async () => {
  const timers = heldTimers();
  let now = 1e9;
  const mine = performance.now;
  performance.now = () => now;
  after.push(timers.end, () => (performance.now = mine));
  await begun(daemon, { List: { processes: [process(42)] }, Devices: { as_of: "1", devices: [] } });
  const source = Source.all.at(-1)!;
  const event = { pid: 42, time_unix_ns: "1000000000", time_boot_ns: 1, body: {} };
  source.tell("event", { ...event, kind: "oom" });
  const said = state.said.value;
  assert.match(said, /^Process 42 ran out of device memory at 00:00:01\.000 UTC\.$/);
  const before = state.beat.value;
  now += 1000;
  for (let i = 0; i < 300; i++) source.tell("event", { ...event, kind: "mark" });
  assert.equal(state.beat.value, before + 1);
  now += 1000;
  source.tell("event", { ...event, kind: "mark" });
  assert.equal(state.beat.value, before + 2);
  assert.equal(state.heardOf(42, null, "oom").length, 1);
  source.tell("event", { ...event, kind: "oom", time_unix_ns: "2000000000" });
  assert.notEqual(state.said.value, said, "the next one is said too");
});

test("earlier moments can be asked for where nothing is told of the devices", async () => {
  const List = { processes: [process(42, { known_from_unix_ns: "1000000000" })] };
  for (const [source, answers, told] of [
    [daemon, { List }, "90000000000"],
    [daemon, { List, Stats: { as_of: "80000000000", coverage: [], devices: [], failures: [] } }, "80000000000"],
    [recording, { List, Stats: { as_of: "50000000000", coverage: [], devices: [], failures: [] } }, "50000000000"],
    [recording, { List }, undefined],
  ] as const) {
    await begun(source, answers);
    assert.equal(state.devicesError.value?.message, "not all is known");
    assert.equal(state.asOf.value?.unixNs, told);
    const at = await mounted(Memory);
    assert.doesNotMatch(at.textContent, /nothing of them is kept/);
    assert.match(at.textContent, /At its peak/);
    assert.equal(at.all("input").filter((one: any) => one.attributes.type === "range").length, told ? 1 : 0);
    gone(at);
  }
  await begun(daemon, { List: { processes: [process(42)] } });
  assert.match((await mounted(Memory)).textContent, /nothing of them is kept/);
});

test("some seconds ago are counted from now, and of a recording from its end", async () => {
  const then = 1_000_000_000_000_000_000n;
  const mine = Date.now;
  const now = mine();
  Date.now = () => now;
  after.push(() => (Date.now = mine));
  for (const [live, passed] of [
    [true, 3600n],
    [false, 0n],
  ] as const) {
    fresh();
    state.about.value!.source.live = live;
    state.asOf.value = { unixNs: String(then), toldAt: now - 3600_000 };
    state.view.value = { ...state.view.value, metric: "growth" };
    server.answer = () => ({ body: stacks([]) });
    const at = await mounted(Whose);
    at.all("button").find((one: any) => one.textContent === "10 s ago").send("click");
    assert.equal(state.view.value.base, String(then + (passed - 10n) * 1_000_000_000n));
    gone(at);
  }
});

test("a request that failed is not said to have room where only a piece of another stream or an old number has it", async () => {
  const room = async (largest: number, free_bytes: number) => {
    fresh();
    const device = {
      device: 0,
      reserved_bytes: 1 << 30,
      free: { bytes: largest, count: 1 },
      largest_free_bytes: largest,
      idle_segments: { bytes: 0, count: 0 },
      fragmentation_of_free: 0,
    };
    const failed = { device: 0, size_bytes: 1 << 30, device_free_bytes: null, time_boot_ns: 1, time_unix_ns: "1000", line: null };
    answering({
      Stats: { as_of: "1", coverage: [], devices: [{ ...stat, free_bytes }], failures: [] },
      Pool: { as_of: "1", coverage: [], devices: [device], failed_allocations: [failed] },
    });
    const at = await mounted(Oom);
    const text = at.textContent;
    gone(at);
    assert.doesNotMatch(text, /would have room\./);
    return text;
  };
  assert.match(await room(2 ** 31, 0), /1\.00 GiB would fit into the largest free piece, if that is of its stream and pool/);
  assert.match(await room(0, 2 ** 31), /1\.00 GiB would fit into what was free on the device when that was last seen\./);
  assert.match(await room(2 ** 29, 0), /more than all that is free \(512\.00 MiB, as last seen\)/);
});

/** The texts of a column of a table, after its heading was pressed. */
async function sortedBy(table: any, name: string): Promise<string[]> {
  const headings = table.all("th").map((one: any) => one.textContent);
  table.all("button").find((one: any) => one.textContent === name).send("click");
  await settled();
  return table.all("tbody")[0].all("tr").map((row: any) => row.all("td")[headings.indexOf(name)].textContent);
}

test("streams are sorted as numbers", async () => {
  fresh();
  const streams = [9, 10, "18446744073709551615", 2];
  answeringMemory(() => streams.map((stream) => ({ stream })));
  const memory = await mounted(Memory);
  assert.deepEqual(await sortedBy(memory.all("table")[0], "Stream"), ["18446744073709551615", "10", "9", "2"]);
  gone(memory);
  fresh();
  state.view.value = { ...state.view.value, metric: "growth", base: "step:1" };
  const one = { bytes: 1024, count: 3 };
  const groups = [9, 10, 2].map((stream) => ({ device: 0, stream, size_bytes: 512, came: one, went: one, stayed: one }));
  answering({
    Stacks: stacks([row(["main"], 1024)]),
    Diff: { as_of: "1", from_unix_ns: "1000", to_unix_ns: "2000", coverage: [], omitted_groups: 0, groups, devices: [] },
  });
  const whose = await mounted(Whose);
  const table = whose.all("table").find((one: any) => /Changes by size/.test(one.textContent));
  assert.deepEqual(await sortedBy(table, "Stream"), ["10", "9", "2"]);
});

test("the slider of moments stays where it was put", async () => {
  const mine = Date.now;
  let now = 0;
  // Each look at the clock finds it a second on.
  Date.now = () => (now += 1000);
  after.push(() => (Date.now = mine));
  for (const source of [recording, daemon]) {
    fresh([process(42, { known_from_unix_ns: "1000000000" })]);
    state.about.value!.source = source;
    state.asOf.value = { unixNs: "61000000007", toldAt: now };
    answeringMemory(() => [{}]);
    const at = await mounted(Memory);
    const slider = at.all("input").find((one: any) => one.attributes.type === "range");
    for (const value of ["999", "500", "501"]) {
      const before = state.view.value.at;
      slider.send("input", { currentTarget: { value } });
      for (let turn = 0; turn < 50 && state.view.value.at === before; turn++) await settled();
      await settled();
      assert.equal(slider.attributes.value, value);
    }
    gone(at);
  }
});

test("the keys of the map lead on over segments in which nothing is handed out", async () => {
  fresh();
  let of: { state?: string }[] = [{}, { state: "inactive" }, {}];
  answeringMemory(() => of);
  const at = await mounted(Memory);
  const map = () => at.all("div").find((one: any) => one.attributes["aria-label"]?.startsWith("Map of"));
  const key = async (word: string) => {
    map().send("keydown", { key: word });
    await settled();
    return state.view.value.block;
  };
  assert.equal(await key("ArrowLeft"), String(0x3000));
  assert.equal(await key("ArrowUp"), String(0x1000));
  assert.equal(await key("ArrowDown"), String(0x3000));
  // Where nothing is handed out at all, there is nothing to go to.
  state.view.value = { ...state.view.value, block: null };
  of = [{ state: "inactive" }];
  state.beat.value += 4;
  await settled();
  assert.equal(await key("ArrowLeft"), null);
  // Nor is there anything above or below, and free room is not chosen instead.
  for (const [states, block, word] of [
    [["inactive", "active"], 0x2000, "ArrowUp"],
    [["active", "inactive"], 0x1000, "ArrowDown"],
  ] as const) {
    of = states.map((state) => ({ state }));
    state.view.value = { ...state.view.value, block: String(block) };
    state.beat.value += 4;
    await settled();
    assert.equal(await key(word), String(block), word);
  }
});

test("the arrow up in the map passes over no segment that begins with free room", async () => {
  fresh();
  const four = columns([{}, { state: "inactive" }, {}, {}]).blocks;
  const blocks = {
    ...four,
    segment: [0, 1, 1, 2],
    address: [0x1000, 0x2000, 0x2800, 0x3000],
    size_bytes: [0x1000, 0x800, 0x800, 0x1000],
  };
  answeringMemory(() => []);
  const { answer } = server;
  server.answer = (path, body) =>
    path === "api/memory" ? { body: { ...columns([{}, {}, {}]), blocks } } : answer(path, body);
  state.view.value = { ...state.view.value, block: String(0x3000) };
  const at = await mounted(Memory);
  const map = at.all("div").find((one: any) => one.attributes["aria-label"]?.startsWith("Map of"));
  for (const block of [0x2800, 0x1000]) {
    map.send("keydown", { key: "ArrowUp" });
    await settled();
    assert.equal(state.view.value.block, String(block));
  }
});

test("a map that has fewer rows now shows them", async () => {
  fresh();
  let of = Array.from({ length: 100 }, () => ({}));
  answeringMemory(() => of);
  const at = await mounted(Memory);
  const map = at.all("div").find((one: any) => one.attributes["aria-label"]?.startsWith("Map of"));
  for (let i = 0; i < 9; i++) map.send("keydown", { key: "PageDown" });
  of = of.slice(0, 2);
  state.beat.value += 4;
  await settled();
  at.all("canvas")[1].send("pointermove", { clientX: 1, clientY: 1 });
  await settled();
  assert.match(at.textContent, /0x1000: 4\.00 KiB, handed out/);
});

test("what holds the chosen block is asked for again, and not shown of a program that has ended", async () => {
  fresh();
  state.view.value = { ...state.view.value, block: String(0x1000) };
  answeringMemory(() => [{}]);
  const at = await mounted(Memory);
  const asked = () => server.asked.filter((path) => path === "api/ask/Holders").length;
  assert.equal(asked(), 1);
  state.beat.value += 30;
  await settled();
  assert.equal(asked(), 2);
  assert.match(at.textContent, /No Python object is known to hold it/);
  state.list.value = { processes: [process(42, { state: "exited" })] as any };
  await settled();
  assert.match(at.textContent, /this one is not traced any more/);
  assert.doesNotMatch(at.textContent, /No Python object is known to hold it/);
});

test("a question about a program that ends meanwhile is given up, with what was known of it", async () => {
  fresh();
  state.view.value = { ...state.view.value, block: String(0x1000) };
  answeringMemory(() => [{}]);
  const at = await mounted(Memory);
  assert.match(at.textContent, /No Python object is known to hold it/);
  const refused = { status: 409, body: { error: { code: "ended", message: "it has ended", hint: null } } };
  const { answer } = server;
  const flights: (() => void)[] = [];
  server.answer = (path, body) =>
    path === "api/ask/Holders" ? new Promise((done) => flights.push(() => done(refused))) : answer(path, body);
  state.beat.value += 30;
  await settled();
  assert.equal(flights.length, 1);
  state.list.value = { processes: [process(42, { state: "exited" })] as any };
  await settled();
  flights[0]!();
  await settled();
  assert.match(at.textContent, /this one is not traced any more/);
  assert.doesNotMatch(at.textContent, /No Python object is known to hold it|it has ended/);
});

test("growth by stack stands in the table too", async () => {
  fresh();
  state.view.value = { ...state.view.value, by: "stack", metric: "growth", base: "step:1" };
  const grew = row(["main"], 4096);
  const rows = [{ ...grew, amounts: { ...grew.amounts, before: { bytes: 1024, count: 1 } } }];
  answering({ Stacks: stacks(rows, { from_unix_ns: "1000" }), Diff: { as_of: "1", from_unix_ns: "1", to_unix_ns: "2", coverage: [], omitted_groups: 0, groups: [], devices: [] } });
  const at = await mounted(Whose);
  const table = at.all("table").find((one: any) => /Memory by stack/.test(one.textContent));
  assert.deepEqual(await sortedBy(table, "Growth"), ["+3.00 KiB"]);
});

test("a fleet that answers again takes away that it did not", async () => {
  const timers = heldTimers();
  after.push(timers.end);
  await begun({ kind: "fleet", name: "nodes.txt", live: true }, {});
  const source = Source.all.at(-1)!;
  server.answer = () => ({ status: 503, body: { error: { code: "unreachable", message: "nobody answers", hint: null } } });
  source.readyState = 2;
  source.tell("error");
  await settled();
  assert.equal(state.aboutError.value?.message, "nobody answers");
  source.tell("now", { fleet: { nodes: [] } });
  assert.equal(state.aboutError.value, null);
});

test("what is unfolded stays unfolded where the next answer has it in another row", async () => {
  fresh();
  state.view.value = { ...state.view.value, by: "stack" };
  const rows = [row(["one"], 4096), row(["two"], 2048)];
  server.answer = () => ({ body: stacks(rows) });
  const at = await mounted(Whose);
  const of = (name: string, word: string) => at.all(name).find((one: any) => one.textContent.includes(word));
  const one = of("details", "in one");
  rows.reverse();
  state.beat.value += 5;
  await settled();
  assert.equal(of("details", "in one"), one);
  gone(at);
  fresh();
  const lines = [line, { ...line, line: { ...line.line, line: 8 } }];
  answering({ Leaks: leaksAnswer({ lines, growing_lines: 2 }) });
  const leaks = await mounted(Leaks);
  const article = () => leaks.all("article").find((one: any) => one.textContent.includes("train.py:8"));
  const eight = article();
  answering({ Leaks: leaksAnswer({ lines: [...lines].reverse(), growing_lines: 2 }) });
  state.beat.value += 5;
  await settled();
  assert.equal(article(), eight);
});

test("the whole course is asked for once more when something has happened meanwhile", async () => {
  const flights: ((answer: { body: unknown }) => void)[] = [];
  server.answer = () => new Promise((done) => flights.push(done));
  const known = new Known(42, null, () => undefined, () => undefined);
  const answer = { body: courseOf([0], 1e9, 1e12, []) };
  void known.overview();
  void known.overview();
  await settled();
  assert.equal(flights.length, 1);
  flights[0]!(answer);
  await settled();
  assert.equal(flights.length, 2);
  flights[1]!(answer);
  await settled();
  assert.equal(flights.length, 2, "once more is enough");
});

test("what the driver keeps for itself is told beside what the memory is for", async () => {
  fresh();
  const one = { bytes: 1024, count: 1 };
  const device = {
    device: 0,
    categories: [{ category: "weights", blocks: one, unsure: one }],
    blocks: one,
    pending_free_bytes: 0,
    cached_bytes: null,
    device_used_bytes: 8192,
    unexplained_bytes: 1024,
    device_used_is_old: false,
    context_bytes: null,
    driver_reserved_bytes: 6144,
  };
  answering({ Owners: { as_of: "1", coverage: [], devices: [device], owners: [], more: 0, more_bytes: 0, explained: [] } });
  assert.match((await mounted(Now)).textContent, /kept by the driver 6\.00 KiB/);
});
