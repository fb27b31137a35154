// What needs no browser: numbers as text, links, tiles of time, and where rectangles and pixels lie.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as map from "../src/blockmap.ts";
import { type Columns, pictured } from "../src/columns.ts";
import { isOwn } from "../src/frames.ts";
import { FIRST, asMoment, read, write } from "../src/hash.ts";
import * as icicle from "../src/icicle.ts";
import { type Span, Tiles, bounds, joined, needed, panned, zoomed } from "../src/tiles.ts";
import * as units from "../src/units.ts";
import "./views.test.ts";

test("sizes are written as crates/units writes them", () => {
  const sizes: [number | string, string][] = [
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1.00 KiB"],
    [1024 * 1024 - 1, "1.00 MiB"],
    [1_320_702_444, "1.23 GiB"],
    ["18446744073709551615", "16.00 EiB"],
  ];
  for (const [count, text] of sizes) assert.equal(units.bytes(count), text);
  assert.equal(units.signedBytes(-(1 << 20)), "-1.00 MiB");
  assert.equal(units.signedBytes(2048), "+2.00 KiB");
  assert.equal(units.grouped(999), "999");
  assert.equal(units.grouped("1320702444"), "1,320,702,444");
});

test("what lies in the middle is rounded as Rust rounds it, to the even digit", () => {
  assert.equal(units.bytes(1_179_648), "1.12 MiB");
  assert.equal(units.bytes(1_441_792), "1.38 MiB");
  assert.equal(units.nanoseconds(1_250_000_000), "1.2 s");
  assert.equal(units.nanoseconds(1_350_000_000), "1.4 s");
  assert.equal(units.fixed(-0.125, 2), "-0.12");
  assert.equal(units.fixed(2.5, 0), "2");
  assert.equal(units.fixed(3.5, 0), "4");
  assert.equal(units.fixed(0.3, 2), "0.30");
  assert.equal(units.sure(0.985), "98 %");
  assert.equal(units.sure(0.9951), "100 %");
});

test("durations have their two largest units, as crates/units writes them", () => {
  const all: [number, string][] = [
    [200, "200 ms"],
    [1500, "1.5 s"],
    [30_000, "30 s"],
    [123_000, "2 m 3 s"],
    [7_200_000, "2 h"],
    [200_000_000, "2 d 7 h"],
  ];
  for (const [ms, text] of all) assert.equal(units.nanoseconds(ms * 1e6), text);
  assert.equal(units.nanoseconds(1500), "1 µs");
});

test("moments are in UTC", () => {
  assert.equal(units.moment("951782400000000000"), "2000-02-29 00:00:00 UTC");
  assert.equal(units.moment("1750000000250000000"), "2025-06-15 15:06:40 UTC");
  assert.equal(units.clock("1750000000250000000"), "15:06:40.250");
});

test("a link gives the same view again", () => {
  const view = {
    ...FIRST,
    view: "memory" as const,
    pid: 4242,
    node: "a b&c",
    from: 100,
    to: 200,
    at: "1795747237616574726",
    filter: "x=1&y#%",
    color: "age",
    block: "140311435149312",
    theme: "dark" as const,
    base: "mark:épo ch#2",
    device: 0,
  };
  assert.deepEqual(read(write(view)), view);
  assert.equal(write(FIRST), "#/now");
  // A window of a recording of a snapshot: boot time is counted from 1970 there.
  const since1970 = { ...FIRST, view: "time" as const, from: 1795766440187134700, to: 1795766442706934000 };
  assert.deepEqual(read(write(since1970)), since1970);
  assert.deepEqual(read(""), FIRST);
});

test("a window between two pixels is in the link to the nanosecond", () => {
  const link = write({ ...FIRST, view: "steps", from: 37_715_719_950_667.25, to: 37_715_719_990_667.75 });
  const view = read(link);
  assert.deepEqual([view.from, view.to], [37_715_719_950_667, 37_715_719_990_668]);
});

test("a link that makes no sense is a view all the same", () => {
  for (const hash of [
    "#/nowhere?pid=-3&from=9&to=2",
    "#/now?pid=99999999999",
    "#%%%",
    "#/now?at=<script>&theme=pink&by=A B&block=x",
  ]) {
    const view = read(hash);
    assert.equal(view.view, "now");
    assert.deepEqual(
      [view.pid, view.from, view.to, view.at, view.theme, view.by, view.block],
      [null, null, null, null, "auto", "own_line", null],
    );
  }
});

test("moments are what requests take", () => {
  assert.equal(asMoment(null), undefined);
  assert.deepEqual(asMoment("1795747237616574726"), { unix_ns: "1795747237616574726" });
  assert.deepEqual(asMoment("step:9"), { step: "9" });
  assert.deepEqual(asMoment("mark:a:b"), { mark: "a:b" });
  assert.deepEqual(asMoment("peak"), { peak: {} });
  assert.deepEqual(asMoment("peak:1"), { peak: { device: 1 } });
});

const span = (from: number, to: number, level = 1): Span => ({
  from,
  to,
  minAllocated: level,
  maxAllocated: level,
  minReserved: level,
  maxReserved: level,
});

test("a window needs two or three tiles, however long it is", () => {
  for (const length of [3e3, 1e6, 5e9, 3.6e12, 9e15]) {
    for (const from of [0, 123_456_789, 37_715_719_950_667]) {
      const { level, first, last } = needed(from, from + length);
      assert.ok(last - first + 1 <= 3 && last >= first, `${from} ${length}`);
      assert.ok(bounds(level, first)[0] <= from && bounds(level, last)[1] >= from + length);
    }
  }
});

test("what is there is shown until the finer answer comes", () => {
  const tiles = new Tiles<string>(10);
  const { level, first } = needed(2 ** 30, 2 ** 31);
  const coarse = { level: level + 3, index: Math.floor(first / 8), knownTo: 2 ** 40, content: "coarse" };
  tiles.put(coarse);
  assert.deepEqual(
    tiles.best(2 ** 30, 2 ** 31 - 1).map((part) => part.tile.content),
    ["coarse"],
  );
  tiles.put({ level, index: first, knownTo: 2 ** 40, content: "fine" });
  assert.deepEqual(
    tiles.best(2 ** 30, 2 ** 31 - 1).map((part) => part.tile.content),
    ["fine", "coarse"],
  );
});

test("what a tile did not know yet comes from one that does", () => {
  const tiles = new Tiles<string>(10);
  tiles.put({ level: 30, index: 0, knownTo: 1000, content: "old" });
  tiles.put({ level: 31, index: 0, knownTo: 2 ** 30 + 5, content: "new" });
  assert.deepEqual(
    tiles.best(0, 2 ** 30).map(({ tile, from, to }) => [tile.content, from, to]),
    [
      ["old", 0, 1000],
      ["new", 1000, 2 ** 30 + 5],
    ],
  );
});

test("tiles that end in the present are asked for again, others never", () => {
  const tiles = new Tiles<string>(10);
  tiles.put({ level: 20, index: 0, knownTo: 2 ** 19, content: "" });
  assert.equal(tiles.wants(20, 0, 2 ** 19, 10), false);
  assert.equal(tiles.wants(20, 0, 2 ** 19 + 5, 10), false);
  assert.equal(tiles.wants(20, 0, 2 ** 19 + 50, 10), true);
  tiles.put({ level: 20, index: 0, knownTo: 2 ** 20, content: "" });
  assert.equal(tiles.wants(20, 0, 2 ** 30, 10), false);
  assert.equal(tiles.wants(20, 1, 2 ** 30, 10), true);
});

test("only so many tiles are kept, and the ones used last stay", () => {
  const tiles = new Tiles<number>(3);
  for (const index of [0, 1, 2]) tiles.put({ level: 20, index, knownTo: 0, content: index });
  tiles.get(20, 0);
  tiles.put({ level: 20, index: 3, knownTo: 0, content: 3 });
  assert.equal(tiles.size, 3);
  assert.equal(tiles.get(20, 1), undefined);
  assert.equal(tiles.get(20, 0)?.content, 0);
});

test("intervals of several tiles are one row without overlaps", () => {
  const row = joined([
    { spans: [span(0, 10), span(10, 30)], from: 0, to: 20 },
    { spans: [span(15, 25, 2), span(25, 40, 2)], from: 20, to: 40 },
  ]);
  assert.deepEqual(
    row.map(({ from, to, minAllocated }) => [from, to, minAllocated]),
    [
      [0, 10, 1],
      [10, 20, 1],
      [20, 25, 2],
      [25, 40, 2],
    ],
  );
});

test("zooming keeps what is under the pointer, and stays within what there is", () => {
  const all: [number, number] = [0, 1_000_000];
  const near = zoomed(all, 0.5, 250_000, all);
  assert.deepEqual(near, [125_000, 625_000]);
  assert.deepEqual(zoomed(near, 100, 300_000, all), all);
  assert.deepEqual(panned(near, -1, all), [0, 500_000]);
  assert.ok(zoomed([0, 1000], 0.001, 500, all)[1] - zoomed([0, 1000], 0.001, 500, all)[0] >= 1000);
});

test("an icicle has the sums of its stacks, the largest first", () => {
  const root = icicle.tree([
    { frames: [1, 2, 3], value: 10 },
    { frames: [4, 3], value: 30 },
    { frames: [], value: 5 },
    { frames: [9], value: 0 },
  ]);
  assert.equal(root.total, 45);
  assert.deepEqual(
    root.children.map((node) => [node.frame, node.total, node.own]),
    [
      [3, 40, 0],
      [icicle.MISSING, 5, 5],
    ],
  );
  const rects = icicle.layout(root, 450);
  const of = (frame: number) => rects.find((rect) => rect.node.frame === frame)!;
  assert.deepEqual([of(4).left, of(4).width, of(4).depth], [0, 300, 2]);
  assert.deepEqual([of(2).left, of(2).width], [300, 100]);
  assert.equal(icicle.at(rects, 310, 2), of(2));
  assert.equal(icicle.at(rects, 310, 9), null);
  assert.equal(icicle.beside(rects, of(4), "ArrowRight"), of(2));
  assert.equal(icicle.beside(rects, of(2), "ArrowUp"), of(3));
  assert.equal(icicle.beside(rects, of(3), "ArrowDown"), of(4));
  assert.deepEqual(icicle.layout(icicle.tree([]), 100), []);
  assert.ok(icicle.layout(root, 45, 6).every((rect) => rect.width >= 6));
});

const segments: map.Segments = { count: 2, size: Float64Array.of(100, 50), first: Uint32Array.of(0, 3, 4) };
const blocks: map.Blocks = {
  count: 4,
  offset: Float64Array.of(0, 40, 60, 10),
  size: Float64Array.of(40, 10, 40, 30),
  state: Uint8Array.of(1, 0, 1, 1),
};
const look: map.Look = { width: 100, height: 8, row: 4, top: 0, left: 0, right: 1, full: false };

test("each pixel of the map is of the block that lies there", () => {
  const pixels = new Uint32Array(100 * 8);
  map.paint(segments, blocks, look, Uint32Array.of(11, 12, 13, 14), 1, 0, pixels);
  assert.equal(pixels[10], 11);
  assert.equal(pixels[45], 1, "free room");
  assert.equal(pixels[55], 1, "what no block is known of");
  assert.equal(pixels[80], 13);
  assert.equal(pixels[3 * 100 + 10], 0, "the gap between two rows");
  assert.equal(pixels[4 * 100 + 20], 14);
  assert.equal(pixels[4 * 100 + 60], 0, "behind the segment's end");
  assert.deepEqual(map.hit(segments, blocks, look, 80, 1), { row: 0, block: 2 });
  assert.deepEqual(map.hit(segments, blocks, look, 55, 1), { row: 0, block: -1 });
  assert.deepEqual(map.hit(segments, blocks, look, 20, 5), { row: 1, block: 3 });
  assert.deepEqual(map.hit(segments, blocks, look, 20, 50), { row: -1, block: -1 });
});

test("rows of their own scale fill the width", () => {
  const pixels = new Uint32Array(100 * 8);
  map.paint(segments, blocks, { ...look, full: true }, Uint32Array.of(11, 12, 13, 14), 1, 0, pixels);
  assert.equal(pixels[4 * 100 + 60], 14);
  assert.equal(pixels[4 * 100 + 99], 1);
});

test("blocks smaller than a pixel are mixed with the free room, and a closer look tells them apart", () => {
  const count = 1000;
  const many: map.Blocks = {
    count,
    offset: Float64Array.from({ length: count }, (_, i) => i * 10),
    size: new Float64Array(count).fill(5),
    state: new Uint8Array(count).fill(1),
  };
  const one: map.Segments = { count: 1, size: Float64Array.of(10_000), first: Uint32Array.of(0, count) };
  const pixels = new Uint32Array(100 * 8);
  map.paint(one, many, look, new Uint32Array(count).fill(0xff000000), 0xffffffff, 0, pixels);
  assert.ok(Math.abs((pixels[50]! & 255) - 128) <= 1);
  const near = map.closer(look, 1 / 1000, 50);
  assert.ok(Math.abs(near.right - near.left - 0.001) < 1e-9);
  map.paint(one, many, near, new Uint32Array(count).fill(0xff000000), 0xffffffff, 0, pixels);
  assert.deepEqual([...new Set(pixels.slice(0, 100))].sort().slice(-1), [0xffffffff]);
  assert.equal(map.rowOf(segments, 3), 1);
  assert.equal(map.rowOf(segments, 2), 0);
});

test("blocks in columns are put into their segments by address, and summed up", () => {
  const answer: Columns = {
    as_of: "1795747237616574726",
    as_of_boot_ns: 9e9,
    segments: {
      device: [1, 0],
      address: [4096, "140311191879680"],
      size_bytes: [4096, 2048],
      stream: [0, "7"],
      large: [true, false],
    },
    blocks: {
      segment: [0, 1, 1],
      address: [4608, "140311191879680", "140311191880192"],
      size_bytes: [512, 512, 1024],
      requested_bytes: [500, null, 0],
      state: ["active", "pending_free", "inactive"],
      since_boot_ns: [1e9, null, null],
      stack: [0, null, null],
    },
    frames: [
      { kind: "python", file: "/usr/lib/python3/dist-packages/torch/nn/functional.py", line: 50, name: "relu" },
      { kind: "python", file: "/srv/train.py", line: 9, name: "forward" },
      { kind: "native", file: null, line: null, name: null },
    ],
    stacks: {
      frames: [[1, 0], [0, 1], [2], []],
      truncated: [false, false, false, false],
      missing: [null, null, null, "not_taken"],
    },
  };
  const picture = pictured(answer);
  assert.deepEqual(
    picture.rows.map((row) => [row.device, row.stream, row.kind, row.allocated]),
    [
      [0, "7", "small", 0],
      [1, "0", "large", 512],
    ],
  );
  assert.deepEqual([...picture.segments.first], [0, 2, 3]);
  assert.deepEqual([...picture.blocks.offset], [0, 512, 512]);
  assert.deepEqual([picture.allocated, picture.pending, picture.reserved, picture.handedOut], [512, 512, 6144, 1]);
  assert.equal(picture.indexOf("4700"), 2);
  assert.equal(picture.indexOf("5200"), -1);
  assert.equal(picture.addressOf(0), "140311191879680");
  assert.deepEqual(picture.alike(2), { count: 1, bytes: 512 });
  assert.equal(picture.describe(2), "0x1200: 512 B, handed out, 8 s old, train.py:9 forward");
  assert.deepEqual(picture.named, ["train.py:9", "train.py:9 → functional.py:50", "unknown", "not taken"]);
  assert.ok(Number.isNaN(picture.since[0]!) && Number.isNaN(picture.requested[0]!));
});

test("what the program's own lines are is told as crates/units tells it", () => {
  // The tests run in target/ui.
  const table = readFileSync("../../crates/units/src/own.cases", "utf8");
  const cases = table.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  assert.ok(cases.length > 30);
  for (const line of cases) {
    const [whose, name, file, number] = line.split("\t");
    const kind = whose === "compiled" ? "native" : "python";
    assert.equal(isOwn({ kind, name, file, line: Number(number) }), whose === "own", line);
  }
});
