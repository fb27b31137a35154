// Drawing: each function fills a canvas and returns what is drawn where, to find what the pointer is at.

const NONE = -1;
const REST = -2;

function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const hex = style.getPropertyValue(`--${name}`).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const names = ["paper", "ink", "soft", "line", "allocated", "reserved", "pending", "inactive", "edge"];
  const colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
  colours.dark = colours.paper[0] < 128;
  return colours;
}

const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;
// ImageData is red, green, blue, alpha in memory: every machine that this runs on is little-endian.
const pixel = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const mix = (a, b, part) => a.map((value, at) => Math.round(value + (b[at] - value) * part));

function fit(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  context.font = `${Math.round(11 * ratio)}px system-ui, sans-serif`;
  return { context, width, height, ratio };
}

// Index of the last value that is not above `wanted`; -1 if there is none.
function lastUpTo(values, wanted) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// For every column of pixels: the lowest and the highest level in its span of time, and the time of the highest.
function columnsOf(levels, range, width) {
  const [times, allocated, reserved] = levels;
  const columns = [];
  let at = lastUpTo(times, range.from);
  for (let x = 0; x < width; x += 1) {
    const start = range.from + ((range.to - range.from) * x) / width;
    const end = range.from + ((range.to - range.from) * (x + 1)) / width;
    const column = { start, time: end, low: Infinity, high: 0, reserved: 0, known: false };
    const take = (index, time) => {
      column.low = Math.min(column.low, allocated[index]);
      if (!column.known || allocated[index] > column.high) {
        column.high = allocated[index];
        column.time = time;
      }
      column.reserved = Math.max(column.reserved, reserved[index]);
      column.known = true;
    };
    if (at >= 0) take(at, start);
    while (at + 1 < times.length && times[at + 1] < end) {
      at += 1;
      take(at, times[at]);
    }
    columns.push(column);
  }
  return columns;
}

function axes(view, top, range, data, colours) {
  const { context, width, height, ratio } = view;
  context.fillStyle = css(colours.ink);
  context.textBaseline = "bottom";
  const step = roundStep(top, 4, 2);
  for (let bytes = step; bytes < top; bytes += step) {
    const y = Math.round(height - (bytes / top) * height) + 0.5;
    context.strokeStyle = css(colours.line, 0.8);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
    label(context, colours, bytesText(bytes), 4 * ratio, y - 1);
  }
  const span = range.to - range.from;
  const beat = roundStep(span, Math.max(2, width / ratio / 160), 10);
  for (let back = Math.max(0, Math.ceil((data.as_of - range.to) / beat) * beat); back < data.as_of - range.from; back += beat) {
    const x = ((data.as_of - back - range.from) / span) * width;
    context.strokeStyle = css(colours.line, 0.8);
    context.beginPath();
    context.moveTo(x, height);
    context.lineTo(x, height - 6 * ratio);
    context.stroke();
    const text = back === 0 ? "snapshot" : `−${spanText(back)}`;
    const room = context.measureText(text).width;
    if (x + 3 + room < width) label(context, colours, text, x + 3 * ratio, height - 1);
    else label(context, colours, text, width - room - 3 * ratio, height - 1);
  }
}

// Draws text with an outline in the background's colour, so that it can be read on any colour.
function label(context, colours, text, x, y) {
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = css(colours.paper, 0.85);
  context.strokeText(text, x, y);
  context.lineWidth = 1;
  context.fillText(text, x, y);
}

function drawLevels(canvas, data, device, range) {
  const view = fit(canvas);
  const { context, width, height, ratio } = view;
  const colours = theme();
  const columns = columnsOf(device.levels, range, width);
  const top = Math.max(1, ...columns.map((c) => Math.max(c.high, c.reserved))) * 1.08;
  const y = (bytes) => height - (bytes / top) * height;
  context.fillStyle = css(colours.allocated, 0.3);
  columns.forEach((column, x) => {
    if (column.known) context.fillRect(x, y(column.high), 1, height - y(column.high));
  });
  context.fillStyle = css(colours.allocated);
  columns.forEach((column, x) => {
    if (column.known) context.fillRect(x, y(column.high), 1, Math.max(1.5 * ratio, y(column.low) - y(column.high)));
  });
  context.strokeStyle = css(colours.reserved);
  context.lineWidth = 1.5 * ratio;
  context.beginPath();
  let drawn = false;
  columns.forEach((column, x) => {
    if (!column.known) return;
    if (drawn) context.lineTo(x, y(column.reserved));
    else context.moveTo(x, y(column.reserved));
    drawn = true;
  });
  if (!device.reserved_at_end) context.stroke();
  context.lineWidth = 1;
  if (drawn) {
    axes(view, top, range, data, colours);
  } else {
    context.fillStyle = css(colours.soft);
    context.fillText("No trace: the course over time is not known.", 8 * ratio, 20 * ratio);
  }
  return { columns, ratio };
}

// For every block its colour and that of its upper edge.
function blockColours(device, colours) {
  return device.blocks[2].map((size, index) => {
    let mixed = Math.imul(size ^ (size / 4294967296), 0x9e3779b1);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x85ebca6b) >>> 0;
    const hue = (mixed % 360) / 60;
    const light = (colours.dark ? 0.42 : 0.62) + (index % 3) * 0.045;
    const chroma = (1 - Math.abs(2 * light - 1)) * 0.5;
    const second = chroma * (1 - Math.abs((hue % 2) - 1));
    const base = [[chroma, second, 0], [second, chroma, 0], [0, chroma, second], [0, second, chroma], [second, 0, chroma], [chroma, 0, second]][Math.floor(hue)];
    const colour = base.map((value) => Math.round((value + light - chroma / 2) * 255));
    return [pixel(colour), pixel(mix(colour, colours.paper, 0.45))];
  });
}

// Draws the blocks that are live at each column's highest moment, stacked by age, the oldest at the bottom. The
// `mark` that it returns highlights a block without stacking all blocks again.
function drawBlocks(canvas, data, device, range) {
  const view = fit(canvas);
  const { context, width, height } = view;
  const colours = theme();
  const columns = columnsOf(device.levels, range, width);
  const [born, gone, sizes, flags] = device.blocks;
  // Goes through the columns twice and keeps no list for each, because tens of thousands of blocks may live at once.
  const sweep = (visit) => {
    const live = new Int32Array(born.length);
    let count = 0;
    let next = 0;
    columns.forEach((column, x) => {
      while (next < born.length && born[next] <= column.time) live[count++] = next++;
      let kept = 0;
      for (let at = 0; at < count; at += 1) {
        const id = live[at];
        const lives = flags[id] & 1;
        if (!lives && gone[id] <= column.start) continue;
        live[kept++] = id;
        if (lives || gone[id] > column.time) visit(id, column, x);
      }
      count = kept;
    });
  };
  for (const column of columns) column.shown = 0;
  sweep((id, column) => { column.shown += sizes[id]; });
  for (const column of columns) column.total = Math.max(column.shown, column.known ? column.high : 0);
  const top = Math.max(1, ...columns.map((column) => column.total)) * 1.08;
  const ids = new Int32Array(width * height).fill(NONE);
  const pixels = new Uint32Array(width * height);
  pixels.fill(pixel(colours.paper));
  const paints = (device.paints ??= {});
  const kind = colours.dark ? "dark" : "light";
  paints[kind] ??= blockColours(device, colours);
  const rest = pixel(colours.inactive);
  const sums = new Float64Array(width);
  const fill = (bytes, id, x, paint, edge) => {
    const from = Math.round((sums[x] / top) * height);
    sums[x] += bytes;
    const to = Math.round((sums[x] / top) * height);
    for (let up = from; up < to; up += 1) {
      const at = (height - 1 - up) * width + x;
      ids[at] = id;
      pixels[at] = up === to - 1 && to - from > 3 ? edge : paint;
    }
  };
  const middle = [];
  sweep((id, column, x) => {
    const [paint, edge] = paints[kind][id];
    fill(sizes[id], id, x, paint, edge);
    if (x === width >> 1) middle.push(id);
  });
  columns.forEach((column, x) => fill(column.total - column.shown, REST, x, rest, rest));
  const mark = (picked) => {
    const marked = context.createImageData(width, height);
    const into = new Uint32Array(marked.data.buffer);
    into.set(pixels);
    const ink = pixel(colours.ink);
    if (picked >= 0) ids.forEach((id, at) => { if (id === picked) into[at] = ink; });
    context.putImageData(marked, 0, 0);
    axes(view, top, range, data, colours);
  };
  return { ids, width, height, middle, ratio: view.ratio, mark };
}

// Draws the segments one after the other, wrapped like text. A byte has the same width everywhere.
function drawSegments(canvas, device, picked) {
  const view = fit(canvas);
  const { context, width, height, ratio } = view;
  const colours = theme();
  const places = [];
  const total = device.segments.reduce((sum, segment) => sum + segment.size, 0);
  const rows = Math.max(1, Math.min(20, Math.max(3, device.segments.length)));
  const perRow = Math.max(1, total / rows);
  const rowHeight = Math.floor(height / rows);
  const bar = Math.max(2, rowHeight - Math.round(3 * ratio));
  const ids = new Int32Array(width * rows).fill(NONE);
  const paint = (from, to, colour, id) => {
    for (let start = from; start < to; ) {
      const row = Math.min(rows - 1, Math.floor(start / perRow + 1e-9));
      const end = row === rows - 1 ? to : Math.min(to, (row + 1) * perRow);
      if (end <= start) break;
      const left = Math.round(((start - row * perRow) / perRow) * width);
      const right = Math.round(((end - row * perRow) / perRow) * width);
      context.fillStyle = css(colour);
      context.fillRect(left, row * rowHeight, right - left, bar);
      ids.fill(id, row * width + left, row * width + Math.min(width, right));
      start = end;
    }
  };
  let base = 0;
  device.segments.forEach((segment, of) => {
    const [offsets, sizes, states] = segment.blocks;
    offsets.forEach((offset, block) => {
      const id = places.length;
      places.push({ of, block });
      const active = id % 2 ? colours.allocated : mix(colours.allocated, colours.paper, 0.25);
      const colour = id === picked ? colours.ink : [colours.inactive, active, colours.pending][states[block]];
      paint(base + offset, base + offset + sizes[block], colour, id);
    });
    base += segment.size;
  });
  let edge = 0;
  context.fillStyle = css(colours.edge);
  for (const segment of device.segments) {
    const row = Math.min(rows - 1, Math.floor(edge / perRow + 1e-9));
    context.fillRect(Math.round(((edge - row * perRow) / perRow) * width), row * rowHeight, 2 * ratio, bar);
    edge += segment.size;
  }
  return { ids, places, width, rows, rowHeight, ratio };
}
