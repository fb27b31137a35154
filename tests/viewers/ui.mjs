// The page of `memscope-ctl ui`: each of its views, in both themes and on a phone, shows what memscope-ctl says, complains of nothing, asks
// nobody else, and axe finds nothing in it.
//
//   node ui.mjs EXPECTED.json AXE.js [FOLDER]     a line of JSON; exit code 1 if anything is wrong. Pictures go into the folder
//
// EXPECTED.json: {"url": what memscope-ctl ui printed, "pid", "mark": a hostile name, "stats", "steps", "pool", "top", "leaks", "course": answers of
// memscope-ctl --json for the same moment}. The process must rest.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Browser, THROUGH } from "./browser.mjs";

const PATIENCE_MS = 60_000;
const VIEWS = ["now", "time", "memory", "whose", "leaks", "steps", "oom"];
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

async function show(page, view, more = "") {
  await page.run(`{ location.hash = "#/${view}?pid=${expected.pid}${more}"; true }`);
  await until(page, view, `document.querySelector("main")?.dataset.view === "${view}" && ${READY}`);
  await page.painted();
}

// The text of a fact, or the exact bytes behind it.
const fact = (name) => `document.querySelector('[data-fact="${name}"]')?.textContent`;
const exact = (name) => `document.querySelector('[data-fact="${name}"] .number')?.title`;

async function same(page, what, expression, value) {
  const seen = await until(page, what, expression);
  if (seen !== value) wrong.push(`${what}: the page says ${seen}, memscope-ctl ${value}`);
}

const inBytes = (count) => `${grouped(count)} bytes`;

const CHECKS = {
  async now(page) {
    const device = expected.stats.devices[0];
    for (const [name, field] of [
      ["allocated", "allocated_bytes"],
      ["reserved", "reserved_bytes"],
      ["peak allocated", "peak_allocated_bytes"],
    ]) {
      await same(page, `now: ${name}`, exact(name), inBytes(device[field]));
    }
    await same(page, "now: live blocks", fact("live blocks"), grouped(device.live_blocks));
  },
  async time(page) {
    await page.run(`{ document.querySelector("details.alternative").open = true; true }`);
    const most = expected.course.devices[0].overall.max_allocated_bytes;
    await same(
      page,
      "time: most allocated",
      `(() => { const all = [...document.querySelectorAll("details.alternative tbody tr")].map((row) => row.cells[4]?.querySelector(".number")?.title).filter(Boolean); return all.includes("${inBytes(most)}") ? "${inBytes(most)}" : all.at(-1); })()`,
      inBytes(most),
    );
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
  },
  async whose(page) {
    const rows = expected.top.groups.map((group) => group.own.live.bytes);
    await same(
      page,
      "whose: the largest line",
      `document.querySelector('[data-id="stacks-table"] tbody .number')?.title`,
      inBytes(Math.max(...rows)),
    );
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
  },
  async steps(page) {
    const { count } = expected.steps.summary;
    if (count !== null) await same(page, "steps", fact("steps"), grouped(count));
  },
  async oom(page) {
    await same(page, "largest free piece", exact("largest free"), inBytes(expected.pool.devices[0].largest_free_bytes));
    const ooms = expected.stats.devices.reduce((sum, device) => sum + device.oom_count, 0);
    if (ooms > 0) await same(page, "failed allocations", fact("ooms"), grouped(ooms));
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
  await until(page, "the view before", `document.querySelector("main").dataset.view !== "oom"`);
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
