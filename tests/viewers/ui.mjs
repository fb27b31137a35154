// The page of `memscope-ctl ui`: each of its views, in both themes and on a phone, shows what memscope-ctl says, complains of nothing, asks
// nobody else, and axe finds nothing in it.
//
//   node ui.mjs EXPECTED.json AXE.js [FOLDER]     a line of JSON; exit code 1 if anything is wrong. Pictures go into the folder
//
// EXPECTED.json: {"url": what memscope-ctl ui printed, "pid", "node": of a fleet its node, "silent": nodes that do not answer, "mark": a hostile
// name, "ps", "stats", "steps", "pool", "top", "leaks", "course", "owners", "ranks": answers of memscope-ctl --json for the same moment}. The
// processes must rest.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Browser, THROUGH } from "./browser.mjs";

const PATIENCE_MS = 60_000;
const VIEWS = ["now", "time", "memory", "whose", "leaks", "steps", "oom", "ranks"];
const SIZES = { desk: [1440, 900], phone: [390, 844] };
const BLOCKS = 400_000;

const [expectedFile, axeFile, pictures] = process.argv.slice(2);
if (!axeFile) {
  console.error("node ui.mjs EXPECTED.json AXE.js [FOLDER]");
  process.exit(2);
}
const expected = JSON.parse(readFileSync(expectedFile, "utf8"));
const axe = readFileSync(axeFile, "utf8");
const origin = new URL(expected.url).origin;
const wrong = [];
const grouped = (count) => String(count).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

async function until(page, what, expression) {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    const value = await page.run(expression);
    if (value) return value;
    if (performance.now() > end)
      throw new Error(
        `${what} did not come; the page says: ${await page.run("document.querySelector('main')?.innerText.slice(0, 600)")}`,
      );
    await page.painted();
  }
}

const READY = `document.querySelector("main[data-view]") && ![...document.querySelectorAll("main .quiet")].some((one) => one.textContent.startsWith("Asking")) && document.querySelectorAll("[aria-busy=true]").length === 0`;

const NODE = expected.node ? `&node=${expected.node}` : "";

async function show(page, view, more = "") {
  await page.run(`{ location.hash = "#/${view}?pid=${expected.pid}${NODE}${more}"; true }`);
  await until(page, view, `document.querySelector("main")?.dataset.view === "${view}" && ${READY}`);
  await page.painted();
}

// The text of a fact, or the exact bytes behind it.
const fact = (name) => `document.querySelector('[data-fact="${name}"]')?.textContent`;
const exact = (name) => `(document.querySelector('[data-fact="${name}"] .number')?.title ?? document.querySelector('[data-fact="${name}"] .unknown')?.textContent)`;

async function same(page, what, expression, value) {
  const seen = await until(page, what, expression);
  if (seen !== value) wrong.push(`${what}: the page says ${seen}, memscope-ctl ${value}`);
}

const inBytes = (count) => (count === null || count === undefined ? "unknown" : `${grouped(count)} bytes`);

// A number as exactly as the notes of an answer say that it is known, by the rule of memscope-ctl's tables.
function limited(answer, kinds, count, text) {
  const spoilt = answer.coverage.filter((note) => note.affects.some((kind) => kinds.includes(kind)));
  if (spoilt.length === 0) return text(count);
  // Bytes are compared by their title, which has the number alone.
  return spoilt.every((note) => note.lower_bound) ? `${text === grouped ? "at least " : ""}${text(count)}` : "unknown";
}

// The cells of a table's rows: the exact number behind each, or its text.
const cells = (table) =>
  `[...document.querySelectorAll('${table} tbody tr')].map((row) => [...row.cells].map((cell) => cell.querySelector(".number[title]")?.title ?? cell.textContent.trim()))`;

// That some columns of a table say what the rows of an answer do; the rows may be in another order.
async function sameRows(page, what, table, columns, rows) {
  const said = `JSON.stringify(${cells(table)}.map((row) => [${columns}].map((column) => row[column])).sort())`;
  const value = JSON.stringify(rows.map((row) => row.map(String)).sort());
  const end = performance.now() + PATIENCE_MS;
  let seen = await page.run(said);
  // What the page has was asked for a little earlier, and may be of the moment before the process came to rest.
  while (seen !== value && performance.now() < end) {
    await page.painted();
    seen = await page.run(said);
  }
  if (seen !== value) wrong.push(`${what}: the page says ${seen}, memscope-ctl ${value}`);
}

const millis = (unixNs) => new Date(Number(BigInt(unixNs) / 1_000_000n)).toISOString().slice(0, 23).replace("T", " ");

const CHECKS = {
  async now(page) {
    const device = expected.stats.devices[0];
    const totals = device.source === "driver" ? ["totals", "driver"] : ["totals"];
    for (const [name, field, kinds] of [
      ["allocated", "allocated_bytes", totals],
      ["reserved", "reserved_bytes", totals],
      ["peak allocated", "peak_allocated_bytes", ["history"]],
      ["peak reserved", "peak_reserved_bytes", ["history"]],
      ["asked for", "requested_bytes", ["blocks"]],
    ]) {
      await same(page, `now: ${name}`, exact(name), limited(expected.stats, kinds, device[field], inBytes));
    }
    await same(
      page,
      "now: live blocks",
      fact("live blocks"),
      limited(expected.stats, ["blocks"], device.live_blocks, grouped),
    );
    const often = limited(expected.stats, ["history"], device.oom_count, grouped);
    const times = often === "1" ? "once" : often === "unknown" ? often : `${often} times`;
    await same(page, "now: ran out of memory", fact("ran out of memory"), times);
    const processes = expected.ps.flatMap(({ processes }) => processes);
    const head = `[...document.querySelectorAll('[data-id="processes"] th')].map((one) => one.textContent)`;
    const columns = await page.run(`["Allocated", "Reserved", "Lost"].map((name) => ${head}.findIndex((one) => one.startsWith(name)))`);
    await sameRows(
      page,
      "now: processes",
      '[data-id="processes"] table',
      columns,
      processes.map((one) => [inBytes(one.allocated_bytes), inBytes(one.reserved_bytes), grouped(one.lost_records)]),
    );
    const uses = expected.owners.owners.slice(0, 12);
    await sameRows(
      page,
      "now: uses",
      '[data-id="owners"] table',
      [2, 3],
      uses.map(({ blocks }) => [inBytes(blocks.bytes), grouped(blocks.count)]),
    );
    const silent = await page.run(`[...document.querySelectorAll('[data-fact="silent"] b')].map((one) => one.textContent).join()`);
    if (silent !== expected.silent.join()) wrong.push(`now: ${silent} did not answer, of ${expected.silent}`);
  },
  async time(page) {
    await page.run(`{ document.querySelector("details.alternative").open = true; true }`);
    const { overall } = expected.course.devices[0];
    for (const [column, most, field] of [
      [3, false, "min_allocated_bytes"],
      [4, true, "max_allocated_bytes"],
      [5, false, "min_reserved_bytes"],
      [6, true, "max_reserved_bytes"],
    ]) {
      const all = `[...document.querySelectorAll("details.alternative tbody tr")].map((row) => row.cells[${column}]?.querySelector(".number")?.title).filter(Boolean).map((text) => Number(text.replace(/\\D/g, "")))`;
      const extreme = `(() => { const all = ${all}; return all.length ? String(Math.${most ? "max" : "min"}(...all)) : ""; })()`;
      await same(page, `time: ${field}`, extreme, String(overall[field]));
    }
    for (const failed of expected.pool.failed_allocations) {
      const time = millis(failed.time_unix_ns).slice(11);
      await until(
        page,
        `the failed allocation at ${time}`,
        `[...document.querySelectorAll("details.alternative tr")].some((row) => row.textContent.includes("${time}") && row.textContent.includes("failed"))`,
      );
    }
    for (const { line } of expected.leaks.lines.filter((one) => one.verdict === "growing" && !one.beside)) {
      const where = JSON.stringify(`grows from here: ${line.file}:${line.line}`);
      await until(
        page,
        where,
        `[...document.querySelectorAll("details.alternative tr")].some((row) => row.textContent.includes(${where}))`,
      );
    }
    const all = await page.run(fact("window"));
    await page.run(`{ document.querySelector(".chart").focus(); true }`);
    await page.key("+");
    await page.key("+");
    await until(
      page,
      "a closer look by keys",
      `location.hash.includes("from=") && ${fact("window")} !== ${JSON.stringify(all)}`,
    );
    await page.key("ArrowLeft");
    await page.painted();
    await until(page, "the finer course", READY);
    const failed = await page.run(`document.querySelector("main .failed")?.textContent`);
    if (failed) wrong.push(`time: a closer look says ${failed}`);
    await page.key("0");
    await until(page, "all of time again", `!location.hash.includes("from=")`);
    const text = await page.run("document.querySelector('main').textContent");
    if (!text.includes(expected.mark)) wrong.push(`time: the mark ${expected.mark} is not in the table`);
  },
  async memory(page) {
    const device = expected.stats.devices[0];
    await same(page, "memory: blocks", fact("blocks"), grouped(device.live_blocks));
    await same(page, "memory: segments", fact("segments"), grouped(device.segments));
    await same(page, "memory: handed out", exact("handed out"), inBytes(device.allocated_bytes));
    await page.run(`{ document.querySelector(".map").focus(); true }`);
    await page.key("ArrowRight");
    await until(
      page,
      "the life of a block",
      `document.querySelector('[data-id="life"]') && location.hash.includes("block=")`,
    );
    await page.key("Escape");
    await until(page, "no block", `!document.querySelector('[data-id="life"]')`);
    // Each block has the colour of its use, and not only the largest of each use.
    await page.run(`{ [...document.querySelectorAll(".choice button")].find((one) => one.textContent === "Owner").click(); true }`);
    await until(page, "the uses of blocks", `document.querySelector(".legend li[data-name]")`);
    const uses = expected.owners.devices[0].categories
      .filter(({ blocks }) => blocks.bytes > 0)
      .map(({ blocks }) => inBytes(blocks.bytes))
      .sort();
    const legend = `JSON.stringify([...document.querySelectorAll(".legend li[data-name]")].map((one) => one.title).sort())`;
    await same(page, "memory: colours by owner", legend, JSON.stringify(uses));
    await page.run(`{ [...document.querySelectorAll(".choice button")].find((one) => one.textContent === "Stack").click(); true }`);
  },
  async whose(page) {
    const rows = expected.top.groups.map(({ own, stacks }) => [
      inBytes(own.live.bytes),
      inBytes(own.peak.bytes),
      inBytes(own.allocated.bytes),
      grouped(own.live.count),
      grouped(stacks),
    ]);
    await sameRows(page, "whose: lines", '[data-id="stacks-table"] table', [1, 2, 3, 4, 5], rows);
  },
  async leaks(page) {
    const growing = expected.leaks.lines.find((line) => line.verdict === "growing");
    if (!growing) {
      wrong.push("leaks: memscope-ctl says that nothing grows, so nothing is compared");
      return;
    }
    const place = `${growing.line.file.split("/").at(-1)}:${growing.line.line}`;
    await same(
      page,
      "leaks: the line",
      `document.querySelector('[data-id="leaks"] .leak .place b')?.textContent`,
      place,
    );
    await same(page, "leaks: live", `document.querySelector('[data-fact="leak: live"]')?.title`, inBytes(growing.live_bytes));
  },
  async steps(page) {
    const { count } = expected.steps.summary;
    if (count !== null) await same(page, "steps", fact("steps"), grouped(count));
    await sameRows(
      page,
      "steps: rows",
      '[data-id="steps"] table',
      [2, 3, 4, 5, 6, 7],
      expected.steps.rows.map((row) => [
        inBytes(row.min_allocated_bytes),
        inBytes(row.max_allocated_bytes),
        inBytes(row.end_allocated_bytes),
        inBytes(row.max_reserved_bytes),
        grouped(row.allocs),
        grouped(row.frees),
      ]),
    );
  },
  async oom(page) {
    const device = expected.pool.devices[0];
    // What is free is known only where all blocks are.
    const blocks = limited(expected.pool, ["totals", "blocks"], 0, grouped) === "0";
    const free = (count) => (blocks ? inBytes(count) : "unknown");
    await same(page, "largest free piece", exact("largest free"), free(device.largest_free_bytes));
    await same(page, "free in the pool", exact("free in the pool"), free(device.free.bytes));
    await same(page, "idle segments", exact("idle segments"), free(device.idle_segments.bytes));
    const ooms = expected.stats.devices.reduce((sum, device) => sum + device.oom_count, 0);
    const often = limited(expected.stats, ["history"], ooms, grouped);
    if (ooms > 0 && often !== "unknown") await same(page, "failed allocations", fact("ooms"), often);
    if (ooms > 0)
      await sameRows(
        page,
        "failed allocations",
        '[aria-label="Failed allocations, a table"] table',
        [2, 3],
        expected.pool.failed_allocations.map((one) => [inBytes(one.size_bytes), inBytes(one.device_free_bytes)]),
      );
  },
  async ranks(page) {
    const { jobs } = expected.ranks;
    if (jobs.length === 0) {
      await until(page, "that there are no ranks", `document.querySelector('[data-id="ranks"]').textContent.includes("No traced process is a rank")`);
      return;
    }
    const [job] = jobs;
    await same(page, "ranks: how many", fact("ranks"), grouped(job.ranks.length));
    const step = (ns) => (ns === null ? "unknown" : `${grouped(ns)} ns`);
    await sameRows(
      page,
      "ranks",
      '[aria-label^="Ranks of"] table',
      [1, 2, 3, 4, 5, 6, 8],
      job.ranks.map((rank) => [
        rank.node,
        rank.pid,
        inBytes(rank.peak_allocated_bytes),
        inBytes(rank.allocated_bytes),
        inBytes(rank.peak_reserved_bytes),
        inBytes(rank.floor_bytes),
        step(rank.step_median_ns),
      ]),
    );
    const odd = await page.run(`[...document.querySelectorAll('[data-fact="odd"] p b')].map((one) => one.textContent).join()`);
    const stand = job.judgement.odd.map(({ rank }) => `Rank ${rank}`).join();
    if (odd !== stand) wrong.push(`ranks: the page says that ${odd} stand out, memscope-ctl ${stand}`);
    for (const { explained } of job.judgement.odd) {
      if (!explained) continue;
      await sameRows(
        page,
        "ranks: lines",
        '[data-fact="odd"] table',
        [1, 2],
        explained.lines.slice(0, 5).map((line) => [inBytes(line.bytes), inBytes(line.peers_bytes)]),
      );
    }
  },
};

async function accessible(page, where) {
  const { violations } = await page.run(
    `axe.run(document, { resultTypes: ["violations"] }).then((found) => ({ violations: found.violations.map((one) => one.id + ": " + one.nodes.slice(0, 3).map((node) => node.target.join(" ") + " " + (node.any[0]?.message ?? node.failureSummary ?? "")).join("; ")) }))`,
  );
  for (const violation of violations) wrong.push(`${where}: axe: ${violation}`);
}

async function size(page, [width, height]) {
  await page.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
}

async function picture(page, name) {
  if (!pictures) return;
  const { data } = await page.send("Page.captureScreenshot", { format: "png" });
  writeFileSync(join(pictures, `${name}.png`), Buffer.from(data, "base64"));
}

// As many blocks as a large program has, made up: small ones, of a few stacks, with free room between them.
function many() {
  const segments = {
    address: [],
    size_bytes: [],
    device: [],
    stream: [],
    pool_first: [],
    pool_second: [],
    large: [],
    expandable: [],
    seen: [],
  };
  const blocks = {
    address: [],
    size_bytes: [],
    requested_bytes: [],
    state: [],
    segment: [],
    stack: [],
    since_boot_ns: [],
  };
  let address = 0x7f0000000000;
  for (let segment = 0; segment < 200; segment++) {
    const begin = address;
    for (let i = 0; i < BLOCKS / 200; i++) {
      const size = 512 * (1 + ((i * 7919 + segment * 104729) % 61));
      blocks.address.push(address);
      blocks.size_bytes.push(size);
      blocks.requested_bytes.push(size - 3);
      blocks.state.push(i % 5 === 4 ? "inactive" : "active");
      blocks.segment.push(segment);
      blocks.stack.push(i % 40);
      blocks.since_boot_ns.push(1_000_000 * i);
      address += size;
    }
    for (const [name, value] of Object.entries({
      address: begin,
      size_bytes: address - begin,
      device: 0,
      stream: segment % 3,
      pool_first: 0,
      pool_second: 0,
      large: true,
      expandable: false,
      seen: true,
    }))
      segments[name].push(value);
    address += 1 << 21;
  }
  const frames = Array.from({ length: 40 }, (_, i) => ({
    name: `f${i}`,
    file: "/srv/train.py",
    line: i + 1,
    kind: "python",
  }));
  const stacks = {
    frames: frames.map((_, i) => [i]),
    truncated: frames.map(() => false),
    missing: frames.map(() => null),
  };
  return JSON.stringify({
    pid: expected.pid,
    as_of: "1795747237616574726",
    as_of_boot_ns: 38730972448836,
    coverage: [],
    omitted_blocks: 0,
    omitted_bytes: 0,
    segments,
    blocks,
    frames,
    stacks,
  });
}

// Frames while the map of so many blocks is zoomed and moved by the wheel, each second.
const FRAMES = `new Promise((done) => {
  const canvas = document.querySelector(".map .over");
  const box = canvas.getBoundingClientRect();
  let frames = 0;
  const began = performance.now();
  const turn = () => {
    frames += 1;
    const at = performance.now() - began;
    if (at > 3000) return done(frames * 1000 / at);
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: at % 1500 < 750 ? -30 : 30, deltaX: frames % 7 === 0 ? 90 : 0, clientX: box.left + box.width / 3, clientY: box.top + 20, bubbles: true, cancelable: true }));
    requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
})`;

const browser = await Browser.start();
const seen = { browser: browser.version };
try {
  let madeUp = null;
  const page = await browser.page((url) =>
    madeUp && url.includes("/api/memory")
      ? { body: madeUp, type: "application/json" }
      : url.startsWith(origin)
        ? THROUGH
        : null,
  );
  await size(page, SIZES.desk);
  await page.open(expected.url);
  seen.first_paint_ms = await page.run(
    `Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1)`,
  );
  await page.run(`${axe}; true`);
  for (const [name, dimensions] of Object.entries(SIZES)) {
    await size(page, dimensions);
    for (const theme of ["light", "dark"]) {
      for (const view of VIEWS) {
        const where = `${view}, ${name}, ${theme}`;
        try {
          await show(page, view, `&theme=${theme}`);
          if (name === "desk" && theme === "light") await CHECKS[view](page);
          await accessible(page, where);
          const failed = await page.run(`[...document.querySelectorAll("main .failed")].map((one) => one.textContent)`);
          for (const text of failed) wrong.push(`${where}: it says ${text}`);
          const wide = await page.run("document.documentElement.scrollWidth");
          if (wide > dimensions[0]) wrong.push(`${where}: it is ${wide} pixels wide`);
          await picture(page, `${view}-${name}-${theme}`);
        } catch (error) {
          wrong.push(`${where}: ${error.message}`);
        }
      }
    }
  }
  if (await page.run(`document.querySelectorAll("main img, main script, main iframe").length`))
    wrong.push("a name became an element");
  await page.run("history.back()");
  await until(page, "the view before", `document.querySelector("main").dataset.view !== "ranks"`);
  await size(page, SIZES.desk);
  madeUp = many();
  await show(page, "memory", "&color=size");
  await until(page, "many blocks", `${fact("segments")} === "200"`);
  seen.frames_per_s = Math.round(await page.run(FRAMES));
  await picture(page, "many-blocks");
  if (page.requests.some((asked) => !asked.startsWith(origin)))
    wrong.push(`it asked for ${page.requests.filter((asked) => !asked.startsWith(origin))}`);
  wrong.push(...page.problems);
} catch (error) {
  wrong.push(`looking at it failed: ${error.message}`);
} finally {
  await browser.stop();
}
console.log(JSON.stringify({ ...seen, wrong }));
process.exit(wrong.length ? 1 : 0);
