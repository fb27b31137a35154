// The page: one device at a time, one range of time for both views over time.

const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const state = { device: data.devices[0], range: null, picked: NONE, segment: NONE, sort: 4, up: false };
let drawn = {};

function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

// The range of time that can be shown: the trace's time, or without a trace the time since the oldest block came.
// If no time before the snapshot is known of any block, the range is the snapshot's own moment.
function whole(device) {
  const from = device.from < data.as_of ? device.from : Math.min(data.as_of, ...device.blocks[0].slice(0, 1));
  return from < data.as_of ? { from, to: data.as_of } : { from: data.as_of, to: data.as_of + 1 };
}

function header() {
  const name = `${data.comm} (process ${data.pid})`;
  document.title = `${name}: GPU memory`;
  by("title").textContent = `GPU memory of ${name}`;
  const when = data.as_of_unix_ms ? new Date(data.as_of_unix_ms).toLocaleString() : "at an unknown time of day";
  by("subtitle").textContent = `${when}; ${countText(data.trace_entries, "trace entry", "trace entries")}; memscope ${data.version}${data.cmdline ? `; ${data.cmdline}` : ""}`;
  const limits = [...data.notes];
  if (data.lost_records) limits.unshift(`${countText(data.lost_records, "record was", "records were")} lost: the course over time has gaps.`);
  if (data.trace_dropped) limits.unshift(`${countText(data.trace_dropped, "older trace entry is", "older trace entries are")} no longer kept: the course begins after them.`);
  if (data.devices.some((device) => device.reserved_at_end)) limits.unshift("At the level blocks sizes are rounded, and as calls for segments are not seen, no line is drawn for what was reserved.");
  if (limits.length) {
    by("limits").hidden = false;
    by("limits").querySelector("summary").textContent = `What limits these numbers (${limits.length})`;
    for (const limit of limits) element("li", limit, by("limits").querySelector("ul"));
  }
  data.devices.forEach((device, index) => {
    element("option", String(device.device), by("device")).value = index;
  });
  by("choice").hidden = data.devices.length < 2;
}

function numbers(device) {
  const { rows, peak, reserved, drawn } = tiles(device, data);
  by("numbers").replaceChildren();
  for (const [term, value] of rows) {
    const box = element("div", undefined, by("numbers"));
    element("dt", term, box);
    element("dd", value, box);
  }
  by("segments").setAttribute("aria-label", `Map of segments. ${drawn} ${rows.map((row) => row.join(" ")).join(", ")}`);
  by("levels").setAttribute("aria-label", `Allocated bytes over time, at most ${bytesText(peak)}${device.reserved_at_end ? "" : " requested"}; reserved at the end ${bytesText(reserved)}`);
  by("segments-how").textContent = `In order of address, wrapped like text. Fragmentation is the part of the free room that is not in the largest free block. ${drawn}`;
  const shown = device.addresses.length;
  const hidden = device.blocks_seen - shown;
  by("blocks-how").textContent = `${hidden ? `${shown.toLocaleString("en")} of ${countText(device.blocks_seen, "block", "blocks")}` : countText(shown, "block", "blocks")}, stacked by age, coloured by size${hidden ? `; the other ${hidden.toLocaleString("en")}, none of them larger, are the grey band on top` : ""}. Up and Down go through the blocks in the middle.${device.from < data.as_of ? "" : whole(device).from < data.as_of ? " There is no trace: only blocks that still live are seen." : " There is no trace: these are the blocks at the moment of the snapshot."}`;
  by("blocks").setAttribute("aria-label", `${countText(shown, "block", "blocks")} over time, stacked; the table below has the live ones by size`);
}

const columnNames = ["Size", "Stream", "Size is", "Count", "Bytes", "Share", "Oldest"];

function table(device) {
  const [sizes, requested, counts, bytes, since] = device.groups;
  const total = bytes.reduce((a, b) => a + b, device.group_bytes_left_out);
  const rows = sizes.map((size, at) => [size, device.group_streams[at], requested[at], counts[at], bytes[at], bytes[at] / total, since[at] ? data.as_of - since[at] + 1 : Infinity]);
  const key = state.sort;
  rows.sort((a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) * (state.up ? 1 : -1));
  const head = by("table").tHead.rows[0];
  head.replaceChildren();
  columnNames.forEach((name, at) => {
    const cell = element("th", undefined, head);
    cell.scope = "col";
    cell.setAttribute("aria-sort", at !== key ? "none" : state.up ? "ascending" : "descending");
    const button = element("button", name + (at !== key ? "" : state.up ? " ▲" : " ▼"), cell);
    button.type = "button";
    button.addEventListener("click", () => {
      state.up = state.sort === at ? !state.up : false;
      state.sort = at;
      table(state.device);
      by("table").tHead.rows[0].cells[at].firstChild.focus();
    });
  });
  const body = by("table").tBodies[0];
  body.replaceChildren();
  for (const [size, stream, asked, count, sum, share, age] of rows) {
    const row = element("tr", undefined, body);
    const words = [exactBytes(size), streamText(stream), asked ? "requested" : "rounded", count.toLocaleString("en"), bytesText(sum), `${(share * 100).toFixed(1)} %`, age === Infinity ? "not known" : spanText(Math.max(0, age))];
    for (const word of words) element("td", word, row);
  }
  const left = device.groups_left_out;
  by("table-how").textContent = `Bytes are the blocks' rounded bytes.${left ? ` ${countText(left, "group", "groups")} with fewer bytes (${bytesText(device.group_bytes_left_out)} together) are not listed.` : ""}`;
}

function aboutBlock(device, id) {
  const [born, gone, sizes, flags] = device.blocks;
  const kind = flags[id] & 8 ? "rounded" : "requested";
  const came = flags[id] & 4 ? "came at an unknown time" : `came ${momentText(data, born[id])}`;
  const went = flags[id] & 1 ? "lives" : flags[id] & 2 ? "went unseen" : `lived ${flags[id] & 4 ? "at least " : ""}${spanText(gone[id] - born[id])}`;
  return `0x${device.addresses[id]}: ${exactBytes(sizes[id])} ${kind}, ${streamText(device.streams[id])}, ${came}, ${went}`;
}

function aboutPlace(device, { of, block }) {
  const segment = device.segments[of];
  const [offsets, sizes, states, requested, since] = segment.blocks;
  const what = ["free room", "block", "freed block that a stream still uses"][states[block]];
  const asked = states[block] && requested[block] ? `, ${exactBytes(requested[block])} requested` : "";
  const came = states[block] && since[block] ? `, came ${momentText(data, since[block] - 1)}` : "";
  const where = `${segment.expandable ? "expandable " : ""}${segment.kind} segment 0x${segment.addr} of ${bytesText(segment.size)}, ${streamText(segment.stream)}${segment.pool === "(0, 0)" ? "" : `, private pool ${segment.pool}`}${segment.seen ? "" : ", older than the attach (its ends are its blocks' ends)"}`;
  return `0x${(BigInt(`0x${segment.addr}`) + BigInt(offsets[block])).toString(16)}: ${what} of ${exactBytes(sizes[block])}${asked}${came}; in ${where}`;
}

const wanted = new Set();
function redraw(...views) {
  if (!wanted.size) {
    requestAnimationFrame(() => {
      if (wanted.has("time")) {
        drawn.levels = drawLevels(by("levels"), data, state.device, state.range);
        drawn.blocks = drawBlocks(by("blocks"), data, state.device, state.range);
      }
      if (wanted.has("time") || wanted.has("picked")) drawn.blocks.mark(state.picked);
      if (wanted.has("segments")) drawn.segments = drawSegments(by("segments"), state.device, state.segment);
      wanted.clear();
    });
  }
  for (const view of views) wanted.add(view);
}

const redrawAll = () => redraw("time", "segments");

function pick(id) {
  if (id === state.picked) return;
  state.picked = id;
  by("said-blocks").textContent = id === REST ? "Smaller blocks, which are not drawn one by one" : id === NONE ? "" : aboutBlock(state.device, id);
  redraw("picked");
}

function pickPlace(id) {
  if (id === state.segment) return;
  state.segment = id;
  const place = drawn.segments?.places[id];
  by("said-segments").textContent = place ? aboutPlace(state.device, place) : "";
  redraw("segments");
}

function look(from, to) {
  const all = whole(state.device);
  const span = Math.min(Math.max(to - from, 100), all.to - all.from);
  const start = Math.min(Math.max(from, all.from), all.to - span);
  state.range = { from: start, to: start + span };
  redraw("time");
}

function zoom(factor, at = 0.5) {
  const span = state.range.to - state.range.from;
  const still = state.range.from + span * at;
  look(still - span * factor * at, still + span * factor * (1 - at));
}

function move(part) {
  const by = (state.range.to - state.range.from) * part;
  look(state.range.from + by, state.range.to + by);
}

function overTime(canvas, point, leave, steps) {
  let start = null;
  const part = (event) => {
    const box = canvas.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  // The wheel zooms only when the view has the focus or Ctrl is held; otherwise it scrolls the page.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, part(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    start = part(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    const end = part(event);
    if (start !== null && Math.abs(end - start) > 0.01) {
      const { from, to } = state.range;
      look(from + (to - from) * Math.min(start, end), from + (to - from) * Math.max(start, end));
    }
    start = null;
  });
  canvas.addEventListener("pointermove", (event) => point(event, part(event)));
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), 0: () => choose(state.device), ...steps };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function step(by) {
  const stack = drawn.blocks?.middle ?? [];
  if (stack.length) pick(stack[Math.min(stack.length - 1, Math.max(0, stack.indexOf(state.picked) + by))]);
}

function listen() {
  overTime(by("levels"), (event, part) => {
    const column = drawn.levels?.columns[Math.floor(part * (drawn.levels.columns.length - 1))];
    by("said-levels").textContent = column?.known ? `${momentText(data, column.time)}: ${bytesText(column.high)} allocated${state.device.reserved_at_end ? "" : `, ${bytesText(column.reserved)} reserved`}` : "not known: before the trace";
  }, () => { by("said-levels").textContent = ""; }, {});
  overTime(by("blocks"), (event) => {
    const { ids, width, height, ratio } = drawn.blocks ?? {};
    const x = Math.floor(event.offsetX * ratio);
    const y = Math.floor(event.offsetY * ratio);
    if (ids) pick(x >= 0 && x < width && y >= 0 && y < height ? ids[y * width + x] : NONE);
  }, () => pick(NONE), { ArrowUp: () => step(1), ArrowDown: () => step(-1) });
  const segments = by("segments");
  segments.addEventListener("pointermove", (event) => {
    const { ids, width, rows, rowHeight, ratio } = drawn.segments ?? {};
    if (!ids) return;
    const row = Math.floor((event.offsetY * ratio) / rowHeight);
    const x = Math.floor(event.offsetX * ratio);
    pickPlace(row >= 0 && row < rows && x >= 0 && x < width ? ids[row * width + x] : NONE);
  });
  segments.addEventListener("pointerleave", () => pickPlace(NONE));
  segments.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !drawn.segments) return;
    event.preventDefault();
    pickPlace(Math.min(drawn.segments.places.length - 1, Math.max(0, state.segment + step)));
  });
  by("device").addEventListener("change", (event) => choose(data.devices[event.target.value]));
  by("reset").addEventListener("click", () => choose(state.device));
  window.addEventListener("resize", redrawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
}

function choose(device) {
  state.device = device;
  state.range = whole(device);
  state.picked = NONE;
  state.segment = NONE;
  numbers(device);
  table(device);
  redrawAll();
}

header();
if (state.device) {
  listen();
  choose(state.device);
} else {
  by("subtitle").textContent += "; no memory of any device was seen";
  document.querySelector("main").hidden = true;
}
