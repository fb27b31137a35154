// Numbers as texts for people.

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

function exactBytes(bytes) {
  return bytes < 1024 ? `${bytes} B` : `${bytesText(bytes)} (${bytes.toLocaleString("en")} B)`;
}

function spanText(ns) {
  const units = [[86400e9, "d"], [3600e9, "h"], [60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  for (const [size, name] of units) {
    if (ns >= size) {
      return `${(ns / size).toFixed(ns / size < 10 ? 2 : 1)} ${name}`;
    }
  }
  return `${Math.round(ns)} ns`;
}

// Text for a moment (nanoseconds of this page's clock): how long before the snapshot it was, and the time of day.
function momentText(data, ns) {
  const before = data.as_of - ns;
  const clock = data.as_of_unix_ms ? new Date(data.as_of_unix_ms - before / 1e6) : null;
  const said = before <= 0 ? "at the snapshot" : `${spanText(before)} before the snapshot`;
  return clock ? `${said} (${clock.toLocaleTimeString([], { hour12: false })}.${String(clock.getMilliseconds()).padStart(3, "0")})` : said;
}

function countText(count, one, many) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

function streamText(hex) {
  return hex === "0" ? "default stream" : `stream 0x${hex}`;
}

// A round step so that about `count` of them fill `span`; bytes step in powers of two.
function roundStep(span, count, base) {
  const raw = Math.max(span / count, 1);
  const power = base ** Math.floor(Math.log(raw) / Math.log(base));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  return power * steps.find((step) => step * power >= raw * 0.999);
}
