// Our own page (`--format html`): it asks for nothing but itself, complains of nothing, and each of its views draws.
//
//   node page.mjs FILE.html…      a line of JSON for each file; exit code 1 if anything is wrong with one
//
// With FILE.html goes FILE.html.expected if it is there: {"devices": {"0": {"active": BYTES, "reserved": BYTES}}},
// which the page must show.

import { readFileSync, existsSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { Browser } from "./browser.mjs";

// In the page: how many colours a canvas has, and which part of it is not paper.
const LOOK = `(id) => {
  const canvas = document.getElementById(id);
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  return { colours: counts.size, drawn: 1 - Math.max(...counts.values()) / pixels.length, pixels: pixels.length };
}`;

const VIEWS = ["levels", "blocks", "segments"];

async function check(browser, file) {
  const url = pathToFileURL(resolve(file)).href;
  const body = readFileSync(file);
  const wrong = [];
  const page = await browser.page((asked) => (asked === url ? { body, type: "text/html; charset=utf-8" } : null));
  const seen = {};
  let seconds = null;
  try {
    seconds = Math.round(await page.open(url)) / 1000;
    const devices = await page.run(`Array.from(document.getElementById("device").options, (o) => o.textContent)`);
    const has = await page.run(`!document.querySelector("main").hidden`);
    if (has !== devices.length > 0) wrong.push(`${devices.length} devices, and the views are ${has ? "" : "not "}shown`);
    for (const [index, device] of devices.entries()) {
      await page.run(`{ const s = document.getElementById("device"); s.value = ${index}; s.dispatchEvent(new Event("change")); }`);
      await page.painted();
      seen[device] = await views(page, wrong, device);
      numbers(file, device, seen[device].numbers, wrong);
      delete seen[device].numbers;
    }
  } catch (error) {
    // A page whose script failed is not as the questions above take it to be.
    wrong.push(`looking at it failed: ${error.message}`);
  }
  if (page.requests.some((asked) => asked !== url)) wrong.push(`it asked for ${page.requests.filter((asked) => asked !== url)}`);
  wrong.push(...page.problems);
  await page.close();
  return { file, bytes: body.length, seconds, devices: seen, wrong };
}

async function views(page, wrong, device) {
  const seen = { views: {} };
  for (const id of VIEWS) {
    const look = await page.run(`(${LOOK})("${id}")`);
    seen.views[id] = { colours: look.colours, drawn: Math.round(look.drawn * 1000) / 1000 };
    // A little text ("no trace") is drawn as well.
    if (look.pixels < 10_000 || look.colours < 2 || look.drawn < 0.0005) wrong.push(`device ${device}: nothing in ${id}: ${JSON.stringify(look)}`);
    seen.views[id].said = await said(page, id);
    if (!seen.views[id].said) wrong.push(`device ${device}: pointing at ${id} says nothing`);
  }
  seen.rows = await page.run(`document.querySelectorAll("#table tbody tr").length`);
  if (seen.rows === 0) wrong.push(`device ${device}: the table is empty`);
  seen.numbers = await page.run(`Object.fromEntries(Array.from(document.querySelectorAll("#numbers div"), (d) => [d.querySelector("dt").textContent, d.querySelector("dd").textContent]))`);
  for (const [term, value] of Object.entries(seen.numbers)) {
    if (/NaN|undefined|Infinity/.test(value)) wrong.push(`device ${device}: ${term}: ${value}`);
  }
  await zoom(page, wrong, device, seen);
  return seen;
}

// What is said of the places along a line through the view: the first that is something.
async function said(page, id) {
  const box = await page.run(`{ const c = document.getElementById("${id}"); c.scrollIntoView({ block: "center" }); const b = c.getBoundingClientRect(); [b.left, b.top, b.width, b.height] }`);
  for (const [right, down] of [[0.5, 0.5], [0.5, 0.9], [0.9, 0.95], [0.99, 0.98], [0.2, 0.2], [0.1, 0.1], [0.02, 0.05]]) {
    await page.point(box[0] + box[2] * right, box[1] + box[3] * down);
    await page.painted();
    const words = await page.run(`document.getElementById("said-${id}").textContent`);
    if (words) return words;
  }
  return "";
}

// The wheel, keys and the button do what the page says.
async function zoom(page, wrong, device, seen) {
  const range = "state.range.to - state.range.from";
  const all = await page.run(range);
  const [x, y] = await page.run(`{ const c = document.getElementById("levels"); c.scrollIntoView({ block: "center" }); c.focus(); const b = c.getBoundingClientRect(); [b.left + b.width / 2, b.top + b.height / 2] }`);
  await page.point(x, y);
  await page.wheel(x, y, -200);
  await page.key("+");
  await page.key("ArrowRight");
  await page.painted();
  const near = await page.run(range);
  const started = performance.now();
  await page.run(`document.getElementById("reset").click()`);
  await page.painted();
  seen.redrawn = Math.round(performance.now() - started) / 1000;
  const again = await page.run(range);
  // Below 100 ns there is no closer look.
  if (!(near < all || all <= 100) || again !== all) wrong.push(`device ${device}: zoom: ${all}, ${near}, ${again} ns`);
}

function numbers(file, device, shown, wrong) {
  if (!existsSync(`${file}.expected`)) return;
  const expected = JSON.parse(readFileSync(`${file}.expected`, "utf8")).devices[device];
  if (!expected) {
    wrong.push(`device ${device} is not expected`);
    return;
  }
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const text = (bytes) => {
    const unit = bytes < 1024 ? 0 : Math.floor(Math.log2(bytes) / 10);
    const value = bytes / 1024 ** unit;
    return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
  };
  for (const [term, bytes] of [["Handed out (rounded)", expected.allocated], ["Reserved in segments", expected.reserved]]) {
    if (shown[term] !== text(bytes)) wrong.push(`device ${device}: ${term}: the page says ${shown[term]}, PyTorch ${text(bytes)}`);
  }
}

const files = process.argv.slice(2);
if (files.length === 0) {
  console.error("node page.mjs FILE.html…");
  process.exit(2);
}
const browser = await Browser.start();
let bad = 0;
try {
  for (const file of files) {
    const result = await check(browser, file);
    if (result.wrong.length > 0) bad += 1;
    console.log(JSON.stringify({ browser: browser.version, ...result }));
  }
} finally {
  await browser.stop();
}
process.exit(bad ? 1 : 0);
