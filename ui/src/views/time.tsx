// Time: allocated and reserved bytes of each device, from all that was watched to microseconds. Tiles of the course are asked for as the
// window needs them; what is there already is drawn at once.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { ask, useAnswer } from "../ask.ts";
import { Known, seen } from "../course.ts";
import { Bytes, Choice, Failed, Nobody, Notes, Table, short } from "../parts.tsx";
import { beat, go, heardOf, hrefTo, pid, systemIsDark, view, node as nodeOf } from "../state.ts";
import { type Span, panned, zoomed } from "../tiles.ts";
import type {
  LeaksAnswer,
  MarksAnswer,
  NamedMoment,
  PoolAnswer,
  StepsAnswer,
} from "../types.ts";
import { bytes, clock, grouped, nanoseconds } from "../units.ts";
import { slow } from "./now.tsx";
import { failures } from "./oom.tsx";

/** Rows of the table that says the same as a chart. */
const MOST_ROWS = 200;
/** Height of a chart, pixels. */
const HEIGHT = 300;
interface Sign {
  boot: number;
  kind: "mark" | "oom" | "finding";
  text: string;
  /** Where it concerns one device only. */
  device?: number;
}

export function Time(): JSX.Element {
  const id = pid.value;
  return id === null ? <Nobody /> : <Course key={`${id} ${nodeOf.value}`} id={id} />;
}

function Course({ id }: { id: number }): JSX.Element {
  const node = nodeOf.value;
  const { from, to, at, device } = view.value;
  const drawn = useSignal(0);
  const error = useSignal<Error | null>(null);
  const brush = useSignal<[number, number] | null>(null);
  const mode = useSignal<"brush" | "pan">("brush");
  const fit = useSignal(false);
  const known = useRef<Known | null>(null);
  known.current ??= new Known(
    id,
    node,
    () => (drawn.value += 1),
    (problem) => (error.value = problem),
  );
  const it = known.current;
  useEffect(() => () => it.stop(), []);
  useEffect(() => void it.overview(), [slow(beat.value, 2)]);
  void drawn.value;
  const all = it.all;
  const window: [number, number] | null =
    all && from !== null && to !== null ? [Math.max(all[0], from), Math.max(all[0] + 1000, to)] : all;
  useEffect(() => {
    if (window) it.need(window[0], window[1]);
  }, [window?.[0], window?.[1], drawn.value, beat.value]);
  const steps = useAnswer<StepsAnswer>(`${id} ${node}`, slow(beat.value, 5), (signal) =>
    ask("Steps", { pid: id, limit: 4096 }, node, signal),
  );
  const marks = useAnswer<MarksAnswer>(`${id} ${node}`, slow(beat.value, 5), (signal) =>
    ask("Marks", { pid: id }, node, signal),
  );
  const leaks = useAnswer<LeaksAnswer>(`${id} ${node}`, slow(beat.value, 5), (signal) =>
    ask("Leaks", { pid: id, limit: 10 }, node, signal),
  );
  // The trace in the answer about the pool has the failed allocations, also those from before the page was open.
  // They are asked for again as all else is: what failed while nobody looked was not pushed.
  const pool = useAnswer<PoolAnswer>(
    `${id} ${node}`,
    `${slow(beat.value, 5)} ${heardOf(id, node, "oom").length}`,
    (signal) => ask("Pool", { pid: id }, node, signal),
  );
  const signs = [
    ...signsOf(id, node, marks.value.answer, pool.value.answer),
    ...beginnings(leaks.value.answer, steps.value.answer),
  ];
  const move = (next: [number, number] | null, replace = true) => {
    if (!next || !all || next[1] - next[0] >= all[1] - all[0]) go({ from: null, to: null }, replace);
    else go({ from: next[0], to: next[1] }, replace);
  };
  const key = (event: KeyboardEvent) => {
    if (!window || !all || event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = (window[0] + window[1]) / 2;
    const next = {
      "+": () => zoomed(window, 0.5, middle, all),
      "=": () => zoomed(window, 0.5, middle, all),
      "-": () => zoomed(window, 2, middle, all),
      ArrowLeft: () => panned(window, -0.2, all),
      ArrowRight: () => panned(window, 0.2, all),
      Home: () => panned(window, -1e9, all),
      End: () => panned(window, 1e9, all),
    }[event.key];
    if (event.key === "0") move(null);
    else if (event.key === "Enter") go({ at: String(it.unix(middle)) });
    else if (event.key === "Escape") {
      brush.value = null;
      if (at !== null) go({ at: null });
    } else if (next) move(next());
    else return;
    event.preventDefault();
  };
  const devices = seen(it.devices(), device);
  const isWaiting = window !== null && it.wanted(window[0], window[1]).indices.length > 0 && !error.value;
  return (
    <>
      <section
        class="section"
        aria-labelledby="h-time"
        data-id="time"
        aria-busy={isWaiting ? "true" : "false"}
      >
        <div class="head">
          <h2 id="h-time">Memory over time</h2>
          {window && (
            <p class="asof" data-fact="window">
              {clock(it.unix(window[0]).toString())} – {clock(it.unix(window[1]).toString())} UTC ·{" "}
              {nanoseconds(window[1] - window[0])}
              {isWaiting && " · finer numbers are being read"}
            </p>
          )}
        </div>
        <div class="tools">
          <button
            type="button"
            onClick={() => window && all && move(zoomed(window, 0.5, (window[0] + window[1]) / 2, all))}
          >
            Closer
          </button>
          <button
            type="button"
            onClick={() => window && all && move(zoomed(window, 2, (window[0] + window[1]) / 2, all))}
          >
            Farther
          </button>
          <button type="button" onClick={() => move(null, false)}>
            All
          </button>
          <Choice
            label="What dragging does"
            of={
              [
                ["brush", "Drag marks"],
                ["pan", "Drag moves"],
              ] as const
            }
            value={mode.value}
            set={(word) => (mode.value = word)}
          />
          <Choice
            label="Where the scale begins"
            of={
              [
                ["zero", "From zero"],
                ["fit", "Only what changes"],
              ] as const
            }
            value={fit.value ? "fit" : "zero"}
            set={(word) => (fit.value = word === "fit")}
          />
          {it.devices().length > 1 && (
            <label>
              Device{" "}
              <select
                value={devices.length === 1 ? (devices[0] ?? "") : ""}
                onChange={(event) =>
                  go({ device: event.currentTarget.value === "" ? null : Number(event.currentTarget.value) })
                }
              >
                <option value="">all</option>
                {it.devices().map((one) => (
                  <option key={one} value={one ?? ""}>
                    {one ?? "unknown"}
                  </option>
                ))}
              </select>
            </label>
          )}
          <span class="quiet keys">
            Wheel, + and −: zoom · ← →: move · 0: all · Enter: this moment · click: that moment
          </span>
        </div>
        <Failed error={error.value} />
        {!all && !error.value && <p class="quiet">Asking …</p>}
        {window &&
          all &&
          devices.map((one) => (
            <div key={one} class="charted">
              <h3>Device {one ?? "unknown"}</h3>
              <div
                class="chart"
                tabIndex={0}
                role="group"
                aria-label={`Course of device ${one ?? "unknown"}: allocated and reserved bytes. The keys plus, minus and the arrows change the window, Enter takes its middle as the moment.`}
                onKeyDown={key}
              >
                <Plot
                  it={it}
                  device={one}
                  window={window}
                  all={all}
                  steps={steps.value.answer}
                  signs={signs}
                  drag={mode.value}
                  fit={fit.value}
                  brush={brush.value}
                  at={at !== null && /^\d+$/.test(at) ? Number(BigInt(at) - it.offset) : null}
                  move={move}
                  mark={(range) => (brush.value = range && [Math.round(range[0]), Math.round(range[1])])}
                  pick={(boot) => go({ at: String(it.unix(boot)) })}
                />
              </div>
            </div>
          ))}
        <ul class="legend">
          <li>
            <span class="swatch band-a" aria-hidden="true" />
            allocated: lowest to highest
          </li>
          <li>
            <span class="swatch band-r" aria-hidden="true" />
            reserved: lowest to highest (dashed)
          </li>
          <li>
            <span class="glyph" aria-hidden="true">
              │
            </span>
            step
          </li>
          <li>
            <span class="glyph" aria-hidden="true">
              ▼
            </span>
            mark
          </li>
          <li>
            <span class="glyph" aria-hidden="true">
              ◆
            </span>
            finding
          </li>
          <li>
            <span class="glyph" aria-hidden="true">
              ✕
            </span>
            failed allocation
          </li>
        </ul>
        {brush.value && (
          <div class="tools brushed" role="group" aria-label="What to do with the marked window">
            <b class="number">
              {clock(it.unix(brush.value[0]).toString())} – {clock(it.unix(brush.value[1]).toString())} (
              {nanoseconds(brush.value[1] - brush.value[0])})
            </b>
            <button
              type="button"
              onClick={() => {
                const range = brush.value;
                brush.value = null;
                move(range, false);
              }}
            >
              Look closer
            </button>
            <a
              class="button"
              href={hrefTo({
                view: "whose",
                base: String(it.unix(brush.value[0])),
                at: String(it.unix(brush.value[1])),
                metric: "growth",
              })}
            >
              What changed in it
            </a>
            <a class="button" href={hrefTo({ view: "memory", at: String(it.unix(brush.value[1])) })}>
              Memory at its end
            </a>
            <a class="button" href={hrefTo({ view: "steps", from: brush.value[0], to: brush.value[1] })}>
              Its steps
            </a>
            <button type="button" onClick={() => (brush.value = null)}>
              Unmark
            </button>
          </div>
        )}
        {window && <Alternative it={it} window={window} devices={devices} signs={signs} />}
        <Notes of={[{ coverage: window ? it.notes(window[0], window[1]) : [] }, steps.value.answer, marks.value.answer]} />
        {leaks.value.answer && Number(leaks.value.answer.growing_lines) > 0 && (
          <p>
            <a href={hrefTo({ view: "leaks" })}>
              {grouped(leaks.value.answer.growing_lines)} growing{" "}
              {Number(leaks.value.answer.growing_lines) === 1 ? "line" : "lines"}
            </a>
          </p>
        )}
      </section>
    </>
  );
}

function signsOf(id: number, node: string | null, marks: MarksAnswer | null, pool: PoolAnswer | null): Sign[] {
  const signs: Sign[] = (marks?.marks ?? []).map((mark: NamedMoment) => ({
    boot: Number(mark.time_boot_ns),
    kind: "mark" as const,
    text: mark.name,
  }));
  for (const one of failures(id, node, pool)) {
    const where = one.line ? ` at ${short(one.line.file)}:${one.line.line}` : "";
    const text = `failed: ${bytes(one.size_bytes)}${where}`;
    signs.push({ boot: Number(one.time_boot_ns), kind: "oom", text, device: one.device });
  }
  for (const event of heardOf(id, node, "finding")) {
    if (event.time_boot_ns === null) continue;
    signs.push({
      boot: Number(event.time_boot_ns),
      kind: "finding",
      text: `${event.body.withdrawn ? "withdrawn: " : ""}${String(event.body.file ?? "")}:${String(event.body.line ?? "")}`,
    });
  }
  return signs;
}

/** Where lines began to grow that still do: at their first step, and without steps at their oldest block. A recording has no other findings. */
function beginnings(leaks: LeaksAnswer | null, steps: StepsAnswer | null): Sign[] {
  const growing = (leaks?.lines ?? []).filter((one) => one.verdict === "growing" && !one.beside);
  return growing.flatMap((one) => {
    const first = one.first_step == null ? null : Number(one.first_step);
    const step = (steps?.rows ?? []).find(
      (row) => first !== null && Number(row.step) - Number(row.steps) < first && first <= Number(row.step),
    );
    const oldest = Number(leaks?.as_of_boot_ns) - Number(one.oldest_age_ns);
    // Of what a process freed as it ended the age is not known.
    if (!step && Number(one.oldest_age_ns) === 0) {
      return [];
    }
    const where = one.line ? `${one.line.file}:${one.line.line}` : `blocks of ${bytes(one.largest_bytes)}`;
    return [
      {
        boot: step ? Number(step.from_boot_ns) : oldest,
        kind: "finding",
        text: `grows from here: ${where}`,
        device: one.device ?? undefined,
      },
    ];
  });
}

/** The same course in fewer intervals, as many as a table can have. */
function fewer(course: Span[]): Span[] {
  const stride = Math.max(1, Math.ceil(course.length / MOST_ROWS));
  const some: Span[] = [];
  for (let i = 0; i < course.length; i += stride) {
    const group = course.slice(i, i + stride);
    const of = (name: keyof Span, how: (...values: number[]) => number) => how(...group.map((span) => span[name]));
    some.push({
      from: of("from", Math.min),
      to: of("to", Math.max),
      minAllocated: of("minAllocated", Math.min),
      maxAllocated: of("maxAllocated", Math.max),
      minReserved: of("minReserved", Math.min),
      maxReserved: of("maxReserved", Math.max),
    });
  }
  return some;
}

function Alternative({
  it,
  window,
  devices,
  signs,
}: {
  it: Known;
  window: [number, number];
  devices: (number | null)[];
  signs: Sign[];
}): JSX.Element {
  const open = useSignal(false);
  const some = open.value
    ? devices.flatMap((device) => fewer(it.course(device, window[0], window[1])).map((span) => ({ device, span })))
    : [];
  return (
    <details class="alternative" onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary>The same as a table</summary>
      {open.value && (
        <Table
          caption="Course as a table"
          rows={some}
          empty="Nothing is known of this window."
          columns={[
            { name: "Device", number: true, by: (row) => row.device, cell: (row) => row.device ?? "unknown" },
            {
              name: "From (UTC)",
              by: (row) => row.span.from,
              cell: (row) => <span class="number">{clock(it.unix(row.span.from).toString())}</span>,
            },
            {
              name: "For",
              number: true,
              by: (row) => row.span.to - row.span.from,
              cell: (row) => nanoseconds(row.span.to - row.span.from),
            },
            {
              name: "Lowest allocated",
              number: true,
              by: (row) => row.span.minAllocated,
              cell: (row) => <Bytes of={row.span.minAllocated} />,
            },
            {
              name: "Highest allocated",
              number: true,
              by: (row) => row.span.maxAllocated,
              cell: (row) => <Bytes of={row.span.maxAllocated} />,
            },
            {
              name: "Lowest reserved",
              number: true,
              by: (row) => row.span.minReserved,
              cell: (row) => <Bytes of={row.span.minReserved} />,
            },
            {
              name: "Highest reserved",
              number: true,
              by: (row) => row.span.maxReserved,
              cell: (row) => <Bytes of={row.span.maxReserved} />,
            },
          ]}
        />
      )}
      {open.value && signs.length > 0 && (
        <Table
          caption="What happened"
          rows={signs}
          columns={[
            {
              name: "When (UTC)",
              by: (sign) => sign.boot,
              cell: (sign) => (
                <button type="button" class="small number" onClick={() => go({ at: String(it.unix(sign.boot)) })}>
                  {clock(it.unix(sign.boot).toString())}
                </button>
              ),
            },
            { name: "Kind", by: (sign) => sign.kind, cell: (sign) => sign.kind },
            { name: "Name", by: (sign) => sign.text, cell: (sign) => sign.text },
          ]}
        />
      )}
    </details>
  );
}

interface PlotProps {
  it: Known;
  device: number | null;
  window: [number, number];
  all: [number, number];
  steps: StepsAnswer | null;
  signs: Sign[];
  at: number | null;
  drag: "brush" | "pan";
  fit: boolean;
  brush: [number, number] | null;
  move: (window: [number, number] | null) => void;
  mark: (range: [number, number] | null) => void;
  pick: (boot: number) => void;
}

/** Lengths between two lines of the time axis, seconds. */
const LENGTHS = [
  1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
  15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
];

function Plot(props: PlotProps): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  const plot = useRef<uPlot | null>(null);
  // The axis counts seconds since midnight of the day on which the watching began, so that it has the digits for microseconds.
  const origin = useRef(0);
  const zero = () => {
    const { it, all } = latest.current;
    if (origin.current === 0) {
      const day = 86_400_000_000_000n;
      origin.current = Number((it.unix(all[0]) / day) * day - it.offset);
    }
    return origin.current;
  };
  const seconds = (boot: number) => (boot - zero()) / 1e9;
  const boot = (second: number) => zero() + second * 1e9;
  useEffect(() => {
    const css = () => getComputedStyle(document.documentElement);
    const ink = (name: string) => () => css().getPropertyValue(name).trim();
    const host = place.current!;
    const options: uPlot.Options = {
      width: Math.max(200, host.clientWidth),
      height: HEIGHT,
      padding: [10, 26, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false, setScale: false }, points: { show: false }, y: false },
      scales: {
        x: {
          time: false,
          auto: false,
          range: () => [seconds(latest.current.window[0]), seconds(latest.current.window[1])],
        },
        y: { range: (_, low, high) => heights(low ?? 0, high ?? 1, latest.current.fit) },
      },
      axes: [
        {
          stroke: ink("--ink-2"),
          grid: { stroke: ink("--line"), width: 1 },
          ticks: { stroke: ink("--line"), width: 1 },
          incrs: LENGTHS,
          space: 90,
          size: 30,
          font: "11px system-ui",
          values: (_, splits, __, ___, step) => splits.map((split) => axisTime(split, step)),
        },
        {
          stroke: ink("--ink-2"),
          grid: { stroke: ink("--line"), width: 1 },
          ticks: { show: false },
          size: 76,
          font: "11px system-ui",
          incrs: POWERS,
          values: (_, splits) => splits.map((split) => (split === 0 ? "0" : bytes(split).replace(".00", ""))),
        },
      ],
      series: [
        {},
        { stroke: ink("--r-line"), width: 1, dash: [4, 3], paths: uPlot.paths.stepped!({ align: 1 }) },
        { stroke: ink("--r-line"), width: 1, dash: [4, 3], paths: uPlot.paths.stepped!({ align: 1 }) },
        { stroke: ink("--a-line"), width: 1.5, paths: uPlot.paths.stepped!({ align: 1 }) },
        { stroke: ink("--a-line"), width: 1, paths: uPlot.paths.stepped!({ align: 1 }) },
      ],
      bands: [
        { series: [1, 2], fill: ink("--r-band") as unknown as string },
        { series: [3, 4], fill: ink("--a-band") as unknown as string },
      ],
      hooks: { draw: [(chart) => overlay(chart, latest.current, seconds, css())] },
    };
    // A band takes its colour once; with another theme the chart is made anew.
    options.bands = options.bands!.map((band) => ({ ...band, fill: (band.fill as unknown as () => string)() }));
    const chart = new uPlot(options, [[], [], [], [], []] as unknown as uPlot.AlignedData, host);
    plot.current = chart;
    const stop = pointer(chart, latest, boot);
    const sized = new ResizeObserver(() => chart.setSize({ width: Math.max(200, host.clientWidth), height: HEIGHT }));
    sized.observe(host);
    return () => {
      stop();
      sized.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [view.value.theme, props.device, systemIsDark.value]);
  useEffect(() => {
    const { it, device, window } = props;
    const course = it.course(device, window[0], window[1]);
    const x: number[] = [];
    const y: (number | null)[][] = [[], [], [], []];
    for (const [index, span] of course.entries()) {
      x.push(seconds(span.from));
      [span.maxReserved, span.minReserved, span.maxAllocated, span.minAllocated].forEach((value, i) =>
        y[i]!.push(value),
      );
      const next = course[index + 1];
      if (!next || next.from > span.to + 1) {
        // Behind a stretch of which nothing is known the line is interrupted.
        x.push(seconds(span.to));
        [span.maxReserved, span.minReserved, span.maxAllocated, span.minAllocated].forEach((value, i) =>
          y[i]!.push(next ? null : value),
        );
      }
    }
    plot.current?.setData([x, ...y] as unknown as uPlot.AlignedData, true);
  });
  return <div class="plot" ref={place} />;
}

/** Which heights the chart has: from zero, or only those between the lowest and the highest level that are seen. */
function heights(low: number, high: number, fit: boolean): [number, number] {
  const room = Math.max(1024, high - low) * 0.08;
  return fit ? [Math.max(0, low - room), high + room] : [0, Math.max(1, high) * 1.06];
}

const POWERS = Array.from({ length: 55 }, (_, i) => 2 ** i);

function axisTime(second: number, step: number): string {
  const day = ((second % 86_400) + 86_400) % 86_400;
  const whole = Math.floor(day + 1e-7);
  const two = (value: number) => String(value).padStart(2, "0");
  const text = `${two(Math.floor(whole / 3600))}:${two(Math.floor((whole % 3600) / 60))}`;
  if (step >= 60) return text;
  const digits = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  const rest = digits ? (day - whole).toFixed(digits).slice(1) : "";
  return `${text}:${two(whole % 60)}${rest}`;
}

/** Steps, marks, findings, failed allocations, the moment and the marked window, over the chart. */
function overlay(chart: uPlot, props: PlotProps, seconds: (boot: number) => number, css: CSSStyleDeclaration): void {
  const { ctx } = chart;
  const { left, top, width, height } = chart.bbox;
  const ratio = devicePixelRatio || 1;
  const ink = (name: string) => css.getPropertyValue(name).trim();
  const x = (boot: number) => chart.valToPos(seconds(boot), "x", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  const rows = (props.steps?.rows ?? []).filter(
    (row) => (row.device ?? null) === props.device || props.device === null,
  );
  const seen = rows.filter(
    (row) => Number(row.to_boot_ns) >= props.window[0] && Number(row.to_boot_ns) <= props.window[1],
  );
  // More than one line every few pixels would be a surface.
  if (seen.length > 0 && seen.length < width / (6 * ratio)) {
    ctx.strokeStyle = ink("--line-2");
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (const row of seen) {
      const at = Math.round(x(Number(row.to_boot_ns))) + 0.5;
      ctx.moveTo(at, top + height - 14 * ratio);
      ctx.lineTo(at, top + height);
    }
    ctx.stroke();
    if (seen.length < width / (60 * ratio)) {
      ctx.fillStyle = ink("--ink-2");
      ctx.font = `${10 * ratio}px system-ui`;
      ctx.textAlign = "left";
      for (const row of seen)
        ctx.fillText(String(row.step), x(Number(row.to_boot_ns)) + 3 * ratio, top + height - 5 * ratio);
    }
  }
  ctx.font = `${11 * ratio}px system-ui`;
  ctx.textAlign = "center";
  for (const sign of props.signs) {
    if (sign.boot < props.window[0] || sign.boot > props.window[1]) continue;
    if (sign.device !== undefined && sign.device !== props.device) continue;
    ctx.fillStyle = ink(sign.kind === "mark" ? "--ink-2" : sign.kind === "oom" ? "--bad" : "--warn");
    ctx.fillText(sign.kind === "mark" ? "▼" : sign.kind === "oom" ? "✕" : "◆", x(sign.boot), top + 12 * ratio);
  }
  if (props.at !== null) {
    ctx.strokeStyle = ink("--accent");
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath();
    ctx.moveTo(x(props.at), top);
    ctx.lineTo(x(props.at), top + height);
    ctx.stroke();
  }
  if (props.brush) {
    ctx.fillStyle = ink("--brush");
    ctx.fillRect(x(props.brush[0]), top, x(props.brush[1]) - x(props.brush[0]), height);
  }
  ctx.restore();
}

/** Wheel, drag, click and double click. */
function pointer(chart: uPlot, latest: { current: PlotProps }, boot: (second: number) => number): () => void {
  const { over } = chart;
  const at = (event: MouseEvent) => boot(chart.posToVal(event.clientX - over.getBoundingClientRect().left, "x"));
  const stop = new AbortController();
  const on = <K extends keyof HTMLElementEventMap>(
    name: K,
    then: (event: HTMLElementEventMap[K]) => void,
    passive = true,
  ) => over.addEventListener(name, then, { signal: stop.signal, passive });
  let from: { x: number; boot: number; window: [number, number] } | null = null;
  on(
    "wheel",
    (event) => {
      event.preventDefault();
      const { window, all, move } = latest.current;
      move(
        Math.abs(event.deltaX) > Math.abs(event.deltaY)
          ? panned(window, event.deltaX / 1000, all)
          : zoomed(window, Math.exp(event.deltaY / 400), at(event), all),
      );
    },
    false,
  );
  on("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = { x: event.clientX, boot: at(event), window: latest.current.window };
    over.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    if (!from || Math.abs(event.clientX - from.x) < 4) return;
    const { drag, all, move, mark } = latest.current;
    if (drag === "pan" || event.shiftKey) move(panned(from.window, (from.x - event.clientX) / over.clientWidth, all));
    else {
      const now = at(event);
      mark([Math.max(all[0], Math.min(from.boot, now)), Math.min(all[1], Math.max(from.boot, now))]);
    }
  });
  on("pointerup", (event) => {
    if (from && Math.abs(event.clientX - from.x) < 4)
      latest.current.pick(Math.min(latest.current.all[1], Math.max(latest.current.all[0], from.boot)));
    from = null;
  });
  on("pointercancel", () => (from = null));
  on("dblclick", () => latest.current.move(null));
  return () => stop.abort();
}
