// PyTorch's own viewer with a snapshot of ours, and with PyTorch's own of the same moment: in each view the same
// must be drawn, element by element and attribute by attribute, and nothing may go wrong.
//
//   node memory-viz.mjs MemoryViz.js OURS.pickle CONTROL.pickle [OURS CONTROL]…
//
// Instead of a pickle it may be a page that PyTorch made of one (torch.cuda._memory_viz.trace_plot). A line of JSON
// for each pair; exit code 1 if anything is wrong with one. The viewer is not part of this project:
// it is torch/utils/viz/MemoryViz.js of PyTorch's sources, with the files beside it. The d3 that it wants from a
// network comes from npm.

import { readFileSync, existsSync, statSync } from "node:fs";
import { dirname, join, basename } from "node:path";
import { fileURLToPath } from "node:url";
import { Browser } from "./browser.mjs";

// Where `cargo xtask viewers` has npm put what package.json names.
const MODULES = process.env.MEMSCOPE_VIEWER_MODULES ?? join(dirname(fileURLToPath(import.meta.url)), "../../target/viewers");
const ORIGIN = "https://viewer.invalid";
const SCRIPT = "text/javascript; charset=utf-8";

// The file of a module of npm, as a bundler would choose it.
function moduleFile(name, from) {
  for (let folder = from; ; folder = dirname(folder)) {
    const place = join(folder, "node_modules", name);
    if (existsSync(join(place, "package.json"))) {
      const about = JSON.parse(readFileSync(join(place, "package.json"), "utf8"));
      return join(place, about.module ?? about.exports?.default ?? about.main);
    }
    if (folder === dirname(folder)) throw new Error(`npm's ${name} is not in ${MODULES}: \`cargo xtask viewers --memory-viz-js FILE\` installs it`);
  }
}

// A module with the names that it imports replaced by addresses that we answer.
function rewritten(file) {
  const path = [file, `${file}.js`, join(file, "index.js")].find((path) => existsSync(path) && statSync(path).isFile());
  if (!path) return null;
  const from = dirname(path);
  const text = readFileSync(path, "utf8").replace(/(\bfrom\s*["']|\bimport\s*["'])([^"'./][^"']*)(["'])/g,
    (_, before, name, after) => `${before}/npm${moduleFile(name, from)}${after}`);
  return { body: text, type: SCRIPT };
}

// What the viewer gets when it asks.
function answers(viewer) {
  const text = readFileSync(viewer, "utf8");
  const wanted = text.match(/["']https:\/\/[^"']*\/d3@(\d+)/);
  if (!wanted) throw new Error(`${viewer} imports no d3 that is known here`);
  const d3 = moduleFile(`d3-${wanted[1]}`, MODULES);
  const about = JSON.parse(readFileSync(join(MODULES, "node_modules", `d3-${wanted[1]}`, "package.json"), "utf8"));
  const given = (file) => (url) => {
    const { origin, pathname } = new URL(url);
    if (url === `${ORIGIN}/`) return file.endsWith(".html") ? { type: "text/html; charset=utf-8", body: readFileSync(file) } : { type: "text/html; charset=utf-8", body: `<!doctype html><link rel="icon" href="data:,"><body><script type="module">import { add_local_files } from "${ORIGIN}/viz/${basename(viewer)}"; window.show = add_local_files;</script>` };
    // From us, or from where PyTorch's pages have it.
    const part = pathname.match(/^(?:\/viz|.*\/torch\/utils\/viz)\/([\w.-]+\.js)$/);
    if (part) {
      const path = join(dirname(viewer), part[1]);
      return existsSync(path) ? { body: readFileSync(path), type: SCRIPT } : null;
    }
    if (pathname === "/favicon.ico") return { body: "", type: "image/x-icon" };
    if (origin === ORIGIN && pathname.startsWith("/npm/")) return rewritten(decodeURIComponent(pathname.slice(4)));
    // d3 and its parts: all are in d3, and must share one state.
    if (/\/d3(-[a-z]+)?@\d+/.test(pathname)) return { body: `export * from "${ORIGIN}/npm${d3}";`, type: SCRIPT };
    return null;
  };
  return { given, d3: about.version };
}

// In the page: the part of it that is shown, and in it the text about what is pointed at.
const PLACES = `
  const shown = Array.from(document.body.children).filter((e) => e.tagName === "DIV" && getComputedStyle(e).display !== "none").at(-1);
  const texts = Array.from(shown.querySelectorAll("pre"));
  const said = texts.find((e) => e.style.gridRow.startsWith("2")) ?? texts.at(-1);
  const events = texts.filter((e) => e !== said);
`;

// What is drawn, each element as a number made of its name, attributes and own text. The text about what is
// pointed at is not among them: it has times.
const DRAWN = `(() => {
  ${PLACES}
  const number = (text) => { let h = 0x811c9dc5; for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193); return h >>> 0; };
  const words = (e) => e.tagName + Array.from(e.attributes, (a) => " " + a.name + "=" + a.value).join("") + Array.from(e.childNodes, (n) => n.nodeType === 3 ? n.data : "").join("|");
  const all = [...shown.querySelectorAll("svg *"), ...events];
  const tags = {};
  for (const e of all) tags[e.tagName.toLowerCase()] = (tags[e.tagName.toLowerCase()] ?? 0) + 1;
  return { tags, numbers: all.map((e) => number(words(e))), words: all.map((e) => words(e).slice(0, 160)), said: said?.textContent ?? "" };
})()`;

// Points at polygons spread over the plot, or chooses events spread over the list, for each of which the state at
// that event is drawn; gives what is said (frames among it) and what is drawn then.
const WALK = `(async (most) => {
  ${PLACES}
  const frames = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const from = events.length > 0 ? events : Array.from(shown.querySelector("svg")?.querySelectorAll("polygon") ?? []);
  const kinds = events.length > 0 ? ["mousedown"] : ["mouseleave", "mouseover"];
  const found = [];
  const steps = Math.min(most, from.length);
  for (let step = 0; step < steps; step += 1) {
    const at = Math.floor((step * (from.length - 1)) / Math.max(1, steps - 1));
    for (const kind of kinds) from[at].dispatchEvent(new MouseEvent(kind, { bubbles: true, view: window }));
    await frames();
    // Times differ by microseconds, and PyTorch before 2.9 writes no compile_context. What follows the first lines are
    // frames: ours has those of allocations.
    const words = said.textContent.replace(/, timestamp [^\\n]*/, "").replace(/, Compile context: [^,\\n]*/, "").split("\\n");
    const taken = events.length > 0 ? / alloc /.test(" " + words[1]) : words[1] !== "alloc not recorded, stack trace for free:";
    if (!taken) words.splice(words[2]?.trim().startsWith("(stream") ? 3 : 2);
    const drawn = events.length > 0 ? ${DRAWN} : null;
    found.push({ at, said: words.join("\\n"), tags: drawn?.tags, numbers: drawn && String(drawn.numbers) });
  }
  return found;
})`;

const STEPS = 24;
const VIEW = 1;
const DEVICE = 2;
const choose = (page, select, value) => page.run(`{ const s = document.querySelectorAll("select")[${select}]; s.value = ${JSON.stringify(value)}; s.dispatchEvent(new Event("change")); }`);
const options = (page, select) => page.run(`Array.from(document.querySelectorAll("select")[${select}].options, (o) => o.textContent)`);

// Opens a snapshot and goes through all views of all devices.
async function open(browser, answers, file) {
  const given = answers(file);
  const page = await browser.page(given);
  const seen = {};
  let views = [];
  try {
    await page.open(`${ORIGIN}/`);
    await page.run(`new Promise((done, fail) => { let n = 0; const wait = () => document.querySelectorAll("select").length > ${DEVICE} ? done() : n++ > 2000 ? fail(new Error("the viewer did not load")) : setTimeout(wait, 10); wait(); })`);
    views = await options(page, VIEW);
    if (!file.endsWith(".html")) {
      // The module that gives us this function may not have run yet, though the one that it imports has.
      await page.run(`new Promise((done) => { const wait = () => (window.show ? done() : setTimeout(wait, 10)); wait(); })`);
      await page.run(`window.show([{ name: "snapshot", base64: "${padded(file).toString("base64")}" }], ${JSON.stringify(views[0])})`);
    }
    await page.painted();
    for (const device of await options(page, DEVICE)) {
      await choose(page, DEVICE, device);
      for (const view of views) {
        await choose(page, VIEW, view);
        await page.painted();
        const drawn = await page.run(DRAWN);
        const walk = await page.run(`${WALK}(${STEPS})`);
        seen[`${device}: ${view}`] = { ...drawn, walk };
      }
    }
  } catch (error) {
    page.problems.push(`${error.message}`);
  }
  return { page, seen, views, problems: page.problems, refused: page.requests.filter((url) => !given(url)) };
}

// Padded with bytes, as PyTorch does it: the viewer reads no padding of base64.
function padded(file) {
  const body = readFileSync(file);
  return Buffer.concat([body, Buffer.alloc((3 - (body.length % 3)) % 3)]);
}

const count = ({ tags }) => Object.values(tags).reduce((a, b) => a + b, 0);

async function compare(ours, control) {
  const wrong = [];
  const table = {};
  for (const [whose, side] of [["ours", ours], ["PyTorch's", control]]) {
    const all = [...side.problems, ...side.refused.map((url) => `it asked for ${url}`)];
    wrong.push(...Array.from(new Set(all)).slice(0, 5).map((problem) => `${whose}: ${problem}`));
  }
  const places = new Set([...Object.keys(ours.seen), ...Object.keys(control.seen)]);
  if (places.size === 0) wrong.push("no view was drawn");
  for (const place of places) {
    const [a, b] = [ours.seen[place], control.seen[place]];
    if (!a || !b) {
      wrong.push(`${place}: only in ${a ? "ours" : "PyTorch's"}`);
      continue;
    }
    table[place] = { elements: count(a), control: count(b), tags: a.tags, pointed: a.walk.length, same: true };
    // Settings are a text; what must be in them is compared by the tests of conformance.
    if (count(a) === 0) {
      table[place].settings = a.said;
      if (!a.said.includes("{")) wrong.push(`${place}: no settings are shown`);
      continue;
    }
    const at = a.numbers.findIndex((number, index) => number !== b.numbers[index]);
    if (at >= 0 || a.numbers.length !== b.numbers.length) {
      table[place].same = false;
      const differ = a.numbers.filter((number, index) => number !== b.numbers[index]).length;
      wrong.push(`${place}: ${a.numbers.length} elements, PyTorch's ${b.numbers.length}; ${differ} differ; the first: ${a.words[at]}; PyTorch's: ${b.words[at]}`);
    }
    const step = a.walk.findIndex((found, index) => JSON.stringify(found) !== JSON.stringify(b.walk[index]));
    if (step >= 0 || a.walk.length !== b.walk.length) {
      table[place].same = false;
      const told = ({ at, said, tags } = {}) => `${at}: ${said} ${JSON.stringify(tags)}`;
      wrong.push(`${place}: pointed at ${told(a.walk[step])}; PyTorch's: ${told(b.walk[step])}`);
    }
    if (a.walk.some(({ said }) => !said)) wrong.push(`${place}: nothing is said of some element`);
  }
  return { table, wrong };
}

const [viewer, ...files] = process.argv.slice(2);
if (!viewer || files.length === 0 || files.length % 2 !== 0) {
  console.error("node memory-viz.mjs MemoryViz.js OURS.pickle CONTROL.pickle [OURS CONTROL]…");
  process.exit(2);
}
const { given, d3 } = answers(viewer);
const browser = await Browser.start();
let bad = 0;
try {
  for (let at = 0; at < files.length; at += 2) {
    const [ours, control] = [await open(browser, given, files[at]), await open(browser, given, files[at + 1])];
    const result = await compare(ours, control);
    await ours.page.close();
    await control.page.close();
    if (result.wrong.length > 0) bad += 1;
    console.log(JSON.stringify({ browser: browser.version, d3, viewer, file: files[at], views: ours.views, ...result }));
  }
} finally {
  await browser.stop();
}
process.exit(bad ? 1 : 0);
