// Memory: each segment a row, the blocks in it by address, at one moment. Drawn pixel by pixel on a canvas.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { type State, ask, memory, useAnswer } from "../ask.ts";
import * as map from "../blockmap.ts";
import { type Columns, type Picture, pictured } from "../columns.ts";
import { asMoment } from "../hash.ts";
import { Bytes, Choice, Failed, Nobody, Notes, Place, Section, Table } from "../parts.tsx";
import { fresh, go, pid, present, said, selected, systemIsDark, unreadable, view, node as nodeOf } from "../state.ts";
import type { HoldersAnswer, OwnersAnswer, StepsAnswer } from "../types.ts";
import { address, bytes, clock, grouped, moment, nanoseconds } from "../units.ts";
import { Fact, NAMES, slow } from "./now.tsx";

const COLORS = [
  ["stack", "Stack"],
  ["age", "Age"],
  ["size", "Size"],
  ["stream", "Stream"],
  ["owner", "Owner"],
] as const;
/** So many blocks make an answer of some megabytes. */
const MANY = 20_000;
/** Heights of rows at the beginning, pixels. */
const LOWEST_ROW = 8;
const TALLEST_ROW = 26;
type ColorBy = (typeof COLORS)[number][0];

export function Memory(): JSX.Element {
  const id = pid.value;
  return id === null ? <Nobody /> : <Blocks key={`${id} ${nodeOf.value}`} id={id} />;
}

function Blocks({ id }: { id: number }): JSX.Element {
  const node = nodeOf.value;
  const { at, color, block: chosen } = view.value;
  // An answer of many blocks is asked for again less often: it is large.
  const every = useRef(4);
  const state = useAnswer<Columns>(`${id} ${node} ${at}`, slow(fresh.value, every.current), (signal) =>
    memory({ pid: id, at: asMoment(at) }, node, signal),
  );
  const answer = state.value.answer;
  const picture = useMemo(() => (answer ? pictured(answer) : null), [answer]);
  every.current = (picture?.blocks.count ?? 0) > MANY ? 60 : 4;
  const by = (COLORS.some(([word]) => word === color) ? color : "stack") as ColorBy;
  const whyNot = unreadable.value;
  const wantsOwners = by === "owner" && !whyNot;
  const owners = useAnswer<OwnersAnswer>(
    `${id} ${node} ${at}`,
    wantsOwners ? slow(fresh.value, 15) : "none",
    wantsOwners ? (signal) => ask("Owners", { pid: id, blocks: true, at: asMoment(at) }, node, signal) : null,
  );
  const index = picture && chosen !== null ? picture.indexOf(chosen) : -1;
  return (
    <Section title="Memory" state={state.value as State<Columns>} id="memory" earlier>
      <Moments id={id} />
      <div class="tools">
        <Choice label="Colour by" of={COLORS} value={by} set={(word) => go({ color: word }, true)} />
        {owners.value.asking && !owners.value.answer && <span class="quiet">Asking the program's objects …</span>}
        {by === "owner" && whyNot && <span class="quiet">{whyNot}</span>}
      </div>
      {picture && <BlockMap picture={picture} by={by} owners={owners.value.answer} chosen={index} />}
      {picture && (
        <p class="quiet" data-fact="memory-sums">
          <b data-fact="segments">{grouped(picture.segments.count)}</b> segments with <Bytes of={picture.reserved} />,{" "}
          <b data-fact="blocks">{grouped(picture.handedOut)}</b> blocks handed out with{" "}
          <span data-fact="handed out">
            <Bytes of={picture.allocated} />
          </span>
          , <Bytes of={picture.pending} /> waiting for a stream
        </p>
      )}
      {answer && Number(answer.omitted_blocks ?? 0) > 0 && (
        <p class="failed">
          {grouped(answer.omitted_blocks!)} blocks with {bytes(answer.omitted_bytes ?? 0)} are not shown: they are more
          than one answer has.
        </p>
      )}
      {picture &&
        chosen !== null &&
        (index >= 0 ? (
          <Life id={id} picture={picture} block={index} />
        ) : (
          <p>No block is at {address(chosen)} at this moment.</p>
        ))}
      {picture && (
        <details class="alternative">
          <summary>The segments as a table</summary>
          <Table
            caption="Segments"
            rows={picture.rows}
            columns={[
              { name: "Address", by: (row) => Number(row.address), cell: (row) => <code>{address(row.address)}</code> },
              { name: "Device", number: true, by: (row) => row.device, cell: (row) => row.device },
              { name: "Size", number: true, by: (row) => row.size, cell: (row) => <Bytes of={row.size} /> },
              {
                name: "Handed out",
                number: true,
                by: (row) => row.allocated,
                cell: (row) => <Bytes of={row.allocated} />,
              },
              { name: "Blocks", number: true, by: (row) => row.blocks, cell: (row) => grouped(row.blocks) },
              { name: "Stream", number: true, by: (row) => Number(row.stream), cell: (row) => row.stream },
              { name: "Kind", by: (row) => row.kind, cell: (row) => row.kind },
            ]}
          />
        </details>
      )}
      <Notes of={[answer, by === "owner" ? owners.value.answer : null]} />
      {by === "owner" && <Failed error={owners.value.error} />}
    </Section>
  );
}

/** The slider through time: from the first moment that is known until now, and steps beside it. */
function Moments({ id }: { id: number }): JSX.Element {
  const node = nodeOf.value;
  const { at } = view.value;
  const process = selected.value;
  const steps = useAnswer<StepsAnswer>(`${id} ${node}`, slow(fresh.value, 5), (signal) =>
    ask("Steps", { pid: id, limit: 1 }, node, signal),
  );
  const from = process?.known_from_unix_ns;
  // It ends where the present was when one left it: else it would slip away beneath the pointer, and what a key moves.
  const end = useRef<bigint | null>(null);
  if (at === null || end.current === null) end.current = present();
  const to = end.current;
  const last = steps.value.answer?.summary.count;
  const step = useSignal("");
  const waiting = useRef<ReturnType<typeof setTimeout> | null>(null);
  if (from == null)
    return (
      <p class="quiet">
        {at === null ? "The present moment." : "An earlier moment."} Earlier ones cannot be asked for: nothing of them
        is kept.
      </p>
    );
  const begin = BigInt(from);
  const length = to !== null && to > begin ? to - begin : 1n;
  // Rounded: where what `set` cuts off moved it to the place before, the keys would never get any further.
  const value =
    at !== null && /^\d+$/.test(at) ? Math.round((Number(BigInt(at) - begin) * 1000) / Number(length)) : 1000;
  const set = (next: number) => {
    if (waiting.current !== null) clearTimeout(waiting.current);
    waiting.current = setTimeout(
      () => go({ at: next >= 1000 ? null : String(begin + (length * BigInt(Math.round(next))) / 1000n) }, true),
      60,
    );
  };
  return (
    <div class="moments">
      {to !== null && (
        <label class="slider">
          <span>Moment</span>
          <input
            type="range"
            min={0}
            max={1000}
            step={1}
            value={Math.max(0, Math.min(1000, value))}
            aria-valuetext={at === null ? "now" : /^\d+$/.test(at) ? moment(at) : at}
            onInput={(event) => set(Number(event.currentTarget.value))}
          />
          <output class="number">{at === null ? "now" : /^\d+$/.test(at) ? clock(at) : at}</output>
        </label>
      )}
      <button type="button" onClick={() => go({ at: "peak" })}>
        At its peak
      </button>
      {last != null && (
        <form
          class="inline"
          onSubmit={(event) => {
            event.preventDefault();
            if (/^\d+$/.test(step.value)) go({ at: `step:${step.value}` });
          }}
        >
          <label>
            End of step{" "}
            <input
              inputMode="numeric"
              size={7}
              value={step.value}
              placeholder={String(last)}
              onInput={(event) => (step.value = event.currentTarget.value)}
            />
          </label>
          <button type="submit">Go</button>
        </form>
      )}
      {at !== null && (
        <button type="button" onClick={() => go({ at: null })}>
          Now
        </button>
      )}
    </div>
  );
}

/** Colours of kinds, as in app.css, for the canvas. */
function palette(): string[] {
  const css = getComputedStyle(document.documentElement);
  return ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"].map((name) =>
    css.getPropertyValue(name).trim(),
  );
}

function word(hex: string): number {
  const value = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((value & 255) << 16) | (value & 0xff00) | (value >>> 16)) >>> 0;
}

/** A row of colours that grow darker, or in the dark lighter: their order is seen without the hue. */
function ramp(steps: number): number[] {
  const css = getComputedStyle(document.documentElement);
  const [low, high] = [word(css.getPropertyValue("--ramp-0").trim()), word(css.getPropertyValue("--ramp-1").trim())];
  return Array.from({ length: steps }, (_, i) => map.mixed(high, low, i / (steps - 1)));
}

interface Coloured {
  words: Uint32Array;
  /** With a name and exact bytes where the colour stands for a kind of blocks. */
  legend: { text: string; color: number; name?: string; bytes?: number }[];
}

function coloured(picture: Picture, by: ColorBy, owners: OwnersAnswer | null): Coloured {
  const { blocks } = picture;
  const words = new Uint32Array(blocks.count);
  const colors = palette().map(word);
  const other = word(getComputedStyle(document.documentElement).getPropertyValue("--c-other").trim());
  const legend: Coloured["legend"] = [];
  if (by === "age" || by === "size") {
    const shades = ramp(8);
    const limits =
      by === "size"
        ? [1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 256 << 20]
        : [1e8, 1e9, 1e10, 3e10, 6e10, 3e11, 1.8e12];
    for (let i = 0; i < blocks.count; i++) {
      const value = by === "size" ? blocks.size[i]! : picture.asOfBoot - picture.since[i]!;
      if (Number.isNaN(value)) words[i] = other;
      else {
        let shade = 0;
        while (shade < limits.length && value > limits[shade]!) shade += 1;
        words[i] = shades[shade]!;
      }
    }
    const text = (limit: number) => (by === "size" ? bytes(limit).replace(".00", "") : nanoseconds(limit));
    shades.forEach((color, i) =>
      legend.push({ color, text: i < limits.length ? `≤ ${text(limits[i]!)}` : `> ${text(limits.at(-1)!)}` }),
    );
    if (by === "age") legend.push({ color: other, text: "age unknown" });
    return { words, legend };
  }
  // The largest kinds have a colour of their own, all others one together.
  const kind = new Int32Array(blocks.count).fill(-1);
  const names: string[] = [];
  if (by === "stream") {
    const known = new Map<string, number>();
    const of = picture.rows.map((row) => {
      if (!known.has(row.stream)) known.set(row.stream, names.push(`stream ${row.stream}`) - 1);
      return known.get(row.stream)!;
    });
    for (let row = 0; row < picture.segments.count; row++)
      kind.fill(of[row]!, picture.segments.first[row]!, picture.segments.first[row + 1]!);
  } else if (by === "stack") {
    kind.set(picture.stack);
    names.push(...picture.named);
  } else {
    const found = new Map<string, string>();
    // A daemon that is too old to tell them all tells the largest of each use.
    for (const owner of owners?.owners ?? [])
      for (const one of owner.addresses?.length ? owner.addresses : [owner.address])
        found.set(String(one), owner.category);
    const places = new Map<string, number>();
    for (let i = 0; i < blocks.count && found.size > 0; i++) {
      const category = blocks.state[i] === 1 ? found.get(picture.addressOf(i)) : undefined;
      if (category === undefined) continue;
      if (!places.has(category)) places.set(category, names.push(NAMES[category] ?? category) - 1);
      kind[i] = places.get(category)!;
    }
  }
  const sums = new Float64Array(names.length + 1);
  for (let i = 0; i < blocks.count; i++)
    if (blocks.state[i] !== 0) sums[kind[i]! < 0 ? names.length : kind[i]!]! += blocks.size[i]!;
  const order = names
    .map((_, i) => i)
    .filter((i) => sums[i]! > 0)
    .sort((a, b) => sums[b]! - sums[a]!);
  const colorOf = new Uint32Array(names.length).fill(other);
  order.slice(0, colors.length).forEach((at, rank) => {
    colorOf[at] = colors[rank]!;
    legend.push({
      text: `${names[at]} (${bytes(sums[at]!)})`,
      color: colors[rank]!,
      name: names[at]!,
      bytes: sums[at]!,
    });
  });
  for (let i = 0; i < blocks.count; i++) words[i] = kind[i]! < 0 ? other : colorOf[kind[i]!]!;
  const rest = order.slice(colors.length).reduce((sum, at) => sum + sums[at]!, 0);
  if (rest > 0) legend.push({ text: `${grouped(order.length - colors.length)} others (${bytes(rest)})`, color: other });
  if (sums[names.length]! > 0)
    legend.push({
      text:
        by === "owner"
          ? owners
            ? `not told, or not the same block any more (${bytes(sums[names.length]!)})`
            : `not known (${bytes(sums[names.length]!)})`
          : `no stack known (${bytes(sums[names.length]!)})`,
      color: other,
    });
  return { words, legend };
}

function hex(color: number): string {
  return `rgb(${color & 255} ${(color >>> 8) & 255} ${(color >>> 16) & 255})`;
}

function BlockMap({
  picture,
  by,
  owners,
  chosen,
}: {
  picture: Picture;
  by: ColorBy;
  owners: OwnersAnswer | null;
  chosen: number;
}): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const look = useRef<map.Look>({ width: 1, height: 1, row: 14, top: 0, left: 0, right: 1, full: false });
  const full = useSignal(false);
  const hover = useSignal("");
  const theme = `${view.value.theme} ${systemIsDark.value}`;
  const colors = useMemo(() => coloured(picture, by, owners), [picture, by, owners, theme]);
  const pending = useRef(0);
  const image = useRef<{ data: ImageData; words: Uint32Array } | null>(null);
  const draw = () => {
    pending.current = 0;
    const it = canvas.current;
    const context = it?.getContext("2d");
    if (!it || !context) return;
    const { width, height } = look.current;
    if (it.width !== width || it.height !== height || !image.current) {
      for (const one of [it, over.current!]) {
        one.width = width;
        one.height = height;
      }
      const data = context.createImageData(width, height);
      image.current = { data, words: new Uint32Array(data.data.buffer) };
    }
    const css = getComputedStyle(document.documentElement);
    map.paint(
      picture.segments,
      picture.blocks,
      look.current,
      colors.words,
      word(css.getPropertyValue("--free").trim()),
      word(css.getPropertyValue("--paper").trim()),
      image.current.words,
    );
    context.putImageData(image.current.data, 0, 0);
    outline(over.current!, picture, look.current, chosen, css.getPropertyValue("--ink").trim());
  };
  const latest = useRef(draw);
  latest.current = draw;
  const count = useRef(0);
  count.current = picture.segments.count;
  const again = () => {
    if (pending.current === 0) pending.current = requestAnimationFrame(() => latest.current());
  };
  const taller = (factor: number) => {
    const { row, height, top } = look.current;
    const next = Math.max(2, Math.min(200, Math.round(row * factor)));
    look.current = { ...look.current, row: next, top: top + height / row / 2 - height / next / 2 };
    clamp();
    again();
  };
  useEffect(() => {
    const host = canvas.current!.parentElement!;
    const sized = new ResizeObserver(() => {
      const ratio = Math.min(2, devicePixelRatio || 1);
      const width = Math.max(50, Math.round(host.clientWidth * ratio));
      const height = Math.max(50, Math.round(host.clientHeight * ratio));
      look.current = { ...look.current, width, height };
      // All rows are seen if they can be told apart then; else the rows are as low as they can be pointed at.
      const fitting = Math.floor(height / Math.max(1, count.current));
      look.current.row = Math.max(LOWEST_ROW * ratio, Math.min(Math.round(TALLEST_ROW * ratio), fitting));
      again();
    });
    sized.observe(host);
    return () => sized.disconnect();
  }, []);
  useEffect(() => {
    look.current.full = full.value;
    // Another picture may have fewer rows than those that one looked at.
    clamp();
    again();
    return () => {
      if (pending.current) cancelAnimationFrame(pending.current);
      pending.current = 0;
    };
  }, [colors, chosen, full.value]);
  const clamp = () => {
    const { row, height, top } = look.current;
    look.current.top = Math.max(0, Math.min(picture.segments.count - height / row, top));
  };
  const place = (event: MouseEvent): [number, number] => {
    const box = canvas.current!.getBoundingClientRect();
    return [
      ((event.clientX - box.left) * look.current.width) / box.width,
      ((event.clientY - box.top) * look.current.height) / box.height,
    ];
  };
  const choose = (block: number) => {
    if (block < 0) return;
    go({ block: picture.addressOf(block) }, true);
    said.value = picture.describe(block);
  };
  const drag = useRef<{ x: number; y: number; look: map.Look; moved: boolean } | null>(null);
  const zoom = (factor: number, x: number) => {
    look.current = map.closer(look.current, factor, x);
    again();
  };
  const pan = (share: number, rows: number) => {
    const { left, right } = look.current;
    const move = Math.max(-left, Math.min(1 - right, (right - left) * share));
    look.current = { ...look.current, left: left + move, right: right + move, top: look.current.top + rows };
    clamp();
    again();
  };
  useEffect(() => {
    const it = over.current!;
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const ratio = look.current.width / it.clientWidth;
      if (event.shiftKey) pan(0, (event.deltaY * ratio) / look.current.row);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / it.clientWidth, 0);
      else zoom(Math.exp(event.deltaY / 300), place(event)[0]);
    };
    it.addEventListener("wheel", wheel, { passive: false });
    return () => it.removeEventListener("wheel", wheel);
  });
  const reveal = (block: number) => {
    const row = map.rowOf(picture.segments, block);
    const { top, height, row: tall } = look.current;
    if (row < top || row + 1 > top + height / tall) look.current.top = row - height / tall / 2;
    clamp();
    const { begin, perPixel } = map.scale(picture.segments, map.widest(picture.segments), look.current, row);
    const x = (picture.blocks.offset[block]! - begin) / perPixel;
    if (x < 0 || x > look.current.width) pan((x - look.current.width / 2) / look.current.width, 0);
    again();
  };
  const key = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { segments, blocks } = picture;
    const next = (from: number, step: number) => {
      for (let i = from + step; i >= 0 && i < blocks.count; i += step) if (blocks.state[i] !== 0) return i;
      return from;
    };
    let to = chosen;
    if (event.key === "ArrowRight") to = next(chosen, 1);
    else if (event.key === "ArrowLeft") to = next(chosen < 0 ? blocks.count : chosen, -1);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const row =
        chosen < 0
          ? 0
          : Math.max(
              0,
              Math.min(segments.count - 1, map.rowOf(segments, chosen) + (event.key === "ArrowDown" ? 1 : -1)),
            );
      const offset = chosen < 0 ? 0 : blocks.offset[chosen]!;
      to = Math.min(map.firstBehind(segments, blocks, row, offset), segments.first[row + 1]! - 1);
      if (to >= 0 && blocks.state[to] === 0) {
        const ahead = next(to, 1);
        const isInRow = ahead !== to && ahead < segments.first[row + 1]!;
        // Up leads on upwards where nothing more lies in that row: else the way would end there.
        to = isInRow || chosen < 0 || event.key === "ArrowDown" ? ahead : next(to, -1);
        if (blocks.state[to] === 0) to = chosen;
      }
    } else if (event.key === "+" || event.key === "=") zoom(0.5, look.current.width / 2);
    else if (event.key === "-") zoom(2, look.current.width / 2);
    else if (event.key === "0") {
      look.current = { ...look.current, left: 0, right: 1, top: 0 };
      again();
    } else if (event.key === "PageDown" || event.key === "PageUp")
      pan(0, (event.key === "PageDown" ? 1 : -1) * (look.current.height / look.current.row) * 0.8);
    else if (event.key === "[" || event.key === "]") taller(event.key === "]" ? 1.5 : 1 / 1.5);
    else if (event.key === "Escape") go({ block: null }, true);
    else return;
    event.preventDefault();
    if (to !== chosen && to >= 0 && to < blocks.count) {
      choose(to);
      reveal(to);
    }
  };
  return (
    <div class="mapped">
      <div class="tools">
        <Choice
          label="Width of rows"
          of={
            [
              ["scale", "To scale"],
              ["full", "Each full width"],
            ] as const
          }
          value={full.value ? "full" : "scale"}
          set={(value) => (full.value = value === "full")}
        />
        <button type="button" onClick={() => zoom(0.5, look.current.width / 2)}>
          Closer
        </button>
        <button type="button" onClick={() => zoom(2, look.current.width / 2)}>
          Farther
        </button>
        <button type="button" onClick={() => taller(1.5)}>
          Taller rows
        </button>
        <button type="button" onClick={() => taller(1 / 1.5)}>
          Lower rows
        </button>
        <button
          type="button"
          onClick={() => {
            look.current = { ...look.current, left: 0, right: 1, top: 0 };
            again();
          }}
        >
          All
        </button>
        <span class="quiet keys">
          Wheel: zoom · with Shift: rows · drag: move · arrows: from block to block · + − 0 [ ]
        </span>
      </div>
      <div
        class="map"
        style={{ height: `min(56vh, ${Math.max(120, picture.segments.count * 26 + 2)}px)` }}
        tabIndex={0}
        role="application"
        aria-label={`Map of ${grouped(picture.blocks.count)} blocks in ${grouped(picture.segments.count)} segments. Arrow keys go from block to block.`}
        aria-describedby="block-said"
        onKeyDown={key}
      >
        <canvas ref={canvas} aria-hidden="true" />
        <canvas
          ref={over}
          aria-hidden="true"
          class="over"
          onPointerDown={(event) => {
            drag.current = { x: event.clientX, y: event.clientY, look: look.current, moved: false };
            event.currentTarget.setPointerCapture(event.pointerId);
          }}
          onPointerMove={(event) => {
            const start = drag.current;
            if (!start) {
              const { row, block } = map.hit(picture.segments, picture.blocks, look.current, ...place(event));
              hover.value =
                block >= 0
                  ? picture.describe(block)
                  : row >= 0
                    ? `segment ${address(picture.rows[row]!.address)}: no block here`
                    : "";
              return;
            }
            if (!start.moved && Math.hypot(event.clientX - start.x, event.clientY - start.y) < 4) return;
            start.moved = true;
            const box = event.currentTarget;
            look.current = { ...look.current, left: start.look.left, right: start.look.right, top: start.look.top };
            pan(
              (start.x - event.clientX) / box.clientWidth,
              ((start.y - event.clientY) * look.current.width) / box.clientWidth / look.current.row,
            );
          }}
          onPointerUp={(event) => {
            if (drag.current && !drag.current.moved)
              choose(map.hit(picture.segments, picture.blocks, look.current, ...place(event)).block);
            drag.current = null;
          }}
          onPointerCancel={() => (drag.current = null)}
          onPointerLeave={() => (hover.value = "")}
        />
      </div>
      <p class="hover" id="block-said">
        {hover.value ||
          (chosen >= 0 ? picture.describe(chosen) : "Point at a block, or go through them with the arrow keys.")}
      </p>
      <ul class="legend">
        {colors.legend.map((one) => (
          <li
            key={one.text}
            data-name={one.name}
            title={one.bytes === undefined ? undefined : `${grouped(one.bytes)} bytes`}
          >
            <span class="swatch" aria-hidden="true" style={{ background: hex(one.color) }} />
            {one.text}
          </li>
        ))}
        <li>
          <span class="swatch k-free" aria-hidden="true" />
          free room
        </li>
      </ul>
    </div>
  );
}

function outline(canvas: HTMLCanvasElement, picture: Picture, look: map.Look, block: number, ink: string): void {
  const context = canvas.getContext("2d")!;
  context.clearRect(0, 0, canvas.width, canvas.height);
  // Where the rows that are seen lie among all: as a scroll bar says it.
  const rows = look.height / look.row;
  if (rows < picture.segments.count) {
    const length = Math.max(16, (look.height * rows) / picture.segments.count);
    context.fillStyle = ink;
    context.globalAlpha = 0.5;
    context.fillRect(look.width - 5, (look.top / (picture.segments.count - rows)) * (look.height - length), 4, length);
    context.globalAlpha = 1;
  }
  if (block < 0 || block >= picture.blocks.count) return;
  const row = map.rowOf(picture.segments, block);
  const { begin, perPixel } = map.scale(picture.segments, map.widest(picture.segments), look, row);
  const left = (picture.blocks.offset[block]! - begin) / perPixel;
  context.strokeStyle = ink;
  context.lineWidth = 2;
  context.strokeRect(
    left - 1,
    (row - look.top) * look.row - 1,
    Math.max(3, picture.blocks.size[block]! / perPixel) + 2,
    look.row + 1,
  );
}

/** The life of a block: what it is, when it came, who allocated it, who holds it, and what else that stack holds. */
function Life({ id, picture, block }: { id: number; picture: Picture; block: number }): JSX.Element {
  const node = nodeOf.value;
  const { at } = view.value;
  const where = picture.addressOf(block);
  const handedOut = picture.blocks.state[block] === 1;
  const holders = useAnswer<HoldersAnswer>(
    `${id} ${node} ${where} ${picture.since[block]} ${handedOut}`,
    unreadable.value ?? slow(fresh.value, 30),
    handedOut && at === null && !unreadable.value
      ? (signal) => ask("Holders", { pid: id, addresses: [where], limit: 5 }, node, signal)
      : null,
  );
  const frames = picture.stacks[picture.stack[block]!];
  const alike = picture.alike(block);
  const since = picture.since[block]!;
  const asked = picture.requested[block]!;
  return (
    <section class="life" aria-label="The selected block" data-id="life">
      <div class="head">
        <h3>
          Block <code>{address(where)}</code>
        </h3>
        <button type="button" onClick={() => go({ block: null }, true)}>
          Close
        </button>
      </div>
      <dl class="facts">
        <Fact
          name="state"
          value={
            picture.blocks.state[block] === 1
              ? "handed out"
              : picture.blocks.state[block] === 2
                ? "freed, a stream still uses it"
                : "free room"
          }
        />
        <Fact name="size" value={<Bytes of={picture.blocks.size[block]} />} />
        <Fact name="requested" value={<Bytes of={Number.isNaN(asked) ? null : asked} />} />
        <Fact
          name="allocated"
          value={
            Number.isNaN(since)
              ? "before the attach, or not known"
              : `${nanoseconds(picture.asOfBoot - since)} before this moment`
          }
        />
        <Fact
          name="segment"
          value={<code>{address(picture.rows[map.rowOf(picture.segments, block)]!.address)}</code>}
        />
        <Fact
          name="same stack"
          value={
            alike.count > 0 ? (
              <>
                <span class="number">{grouped(alike.count)}</span> blocks, <Bytes of={alike.bytes} />
              </>
            ) : (
              <span class="unknown">unknown</span>
            )
          }
        />
      </dl>
      <h4>Allocated by</h4>
      {frames && frames.length > 0 ? (
        <ol class="frames">
          {frames.map((frame, i) => (
            <li key={i}>
              <Place line={frame} />
            </li>
          ))}
        </ol>
      ) : (
        <p class="unknown">stack unknown</p>
      )}
      {handedOut && <h4>Held by</h4>}
      {handedOut && (at !== null || unreadable.value) && (
        <p class="quiet">
          {unreadable.value ?? "It is read from the running program, so it is known of the present moment only."}
        </p>
      )}
      <Failed error={holders.value.error} />
      {holders.value.asking && !holders.value.answer && <p class="quiet">Reading the program's objects …</p>}
      {holders.value.answer &&
        (holders.value.answer.holders.length === 0 ? (
          <p>No Python object is known to hold it.</p>
        ) : (
          <ul>
            {holders.value.answer.holders.map((holder) => (
              <li key={holder.path}>
                <code>{holder.path}</code>{" "}
                <span class="quiet">
                  ({holder.via}
                  {holder.kind
                    ? `, in a ${holder.kind}${holder.length != null ? ` of ${grouped(holder.length)}` : ""}`
                    : ""}
                  )
                </span>
              </li>
            ))}
          </ul>
        ))}
      <Notes of={[holders.value.answer]} about="holders" />
    </section>
  );
}
